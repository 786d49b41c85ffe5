"""Waits while something is away: they double up to a limit, and no two workers wait alike."""

from __future__ import annotations

import random

LONGEST = 5.0
"""Seconds of the longest wait."""


class Backoff:
    """From 0.1 to 5 s, each wait between half and the whole of its step."""

    def __init__(self, first: float = 0.1, longest: float = LONGEST) -> None:
        self._first = min(first, longest)
        self._longest = longest
        self._step = self._first

    def next(self) -> float:
        """Seconds to wait now."""
        step, self._step = self._step, min(self._longest, self._step * 2)
        return step * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It is back."""
        self._step = self._first
