"""A worker's turn at bulk operations that nobody else runs."""

from __future__ import annotations

from collections.abc import Callable

from .chores import Chore
from .outages import Outage

Round = Callable[[Callable[[], bool]], object]
"""Gives each running operation a turn; asks whether it shall stop."""
INTERVAL = 1.0
"""Seconds between two rounds: a canary's verdict, or an operation that lost its owner, waits no longer."""


class OperationsChore(Chore):
    """A round every second. When it stops, what is under way ends with its batch."""

    def __init__(self, round_: Round, outage: Outage) -> None:
        super().__init__("operations", INTERVAL, lambda: round_(lambda: self._stopped), outage)
