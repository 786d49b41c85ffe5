"""Completion markers: which work was done, or is being done, whatever job does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from .edits import check_name
from .errors import InvalidField
from .policy import Seconds

FOR_GOOD = 100 * 365.25 * 86_400.0
"""Seconds that a completion counts which is kept for good: a hundred years."""


@dataclass(frozen=True, slots=True)
class Once:
    """Says which work of a handler is the same: ``@app.job(..., once=Once(lambda order_id: f"order-{order_id}"))``.

    ``key`` takes (some of) the handler's arguments and answers up to 400 characters, or None: no marker for this one.
    A job whose key is marked as completed, or as in progress by a job that runs now, is skipped: it goes to the archive
    as ``skipped`` and its handler is not called. ``keep`` is how long a completion counts, in seconds or as a
    timedelta, 7 days by default; None is for good. A run in progress counts as long as it holds its lease, and its
    marker is gone when it fails. ``scope`` is shared by handlers whose keys mean the same; by default each type has its
    own.
    """

    key: Callable[..., str | None]
    keep: Seconds | None = timedelta(days=7)
    scope: str | None = None

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise InvalidField("keep", f"{self.keep!r}", expected="seconds or a timedelta, more than 0, or None")
        if self.scope is not None:
            check_name("scope", self.scope)

    @property
    def seconds(self) -> float:
        """How long a completion counts; NaN for what is no duration."""
        if self.keep is None:
            return FOR_GOOD
        kept: object = self.keep.total_seconds() if isinstance(self.keep, timedelta) else self.keep
        return min(float(kept), FOR_GOOD) if isinstance(kept, int | float) else math.nan


@dataclass(frozen=True, slots=True)
class Mark:
    """The marker a run holds while it is in progress. ``keep`` is how many seconds its completion will count."""

    scope: str
    key: str
    keep: float
