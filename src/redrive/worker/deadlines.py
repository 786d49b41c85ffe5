"""When runs must end: one timer for all of them.

Runs of one timeout end in the order they began, so each timeout keeps its runs in a dict and only the first of each is
looked at. Watching and forgetting a run costs two dict operations; a timer per run costs a tenth of a short job.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from .running import Running


class Deadlines:
    """Calls ``overdue`` with each run that is still watched when its time is over."""

    def __init__(self, overdue: Callable[[Running], None], loop: asyncio.AbstractEventLoop) -> None:
        self._overdue = overdue
        self._loop = loop
        self._lanes: dict[float, dict[Running, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf

    def watch(self, run: Running, seconds: float, now: float) -> None:
        """Watch ``run`` from ``now`` (monotonic) on."""
        deadline = now + seconds
        lane = self._lanes.get(seconds)
        if lane is None:
            lane = self._lanes[seconds] = {}
        lane[run] = deadline
        if deadline < self._at:
            self._arm(deadline)

    def forget(self, run: Running, seconds: float) -> None:
        """The run has ended."""
        lane = self._lanes.get(seconds)
        if lane is not None:
            lane.pop(run, None)

    def close(self) -> None:
        """Watch nothing any more."""
        self._lanes.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._fire)

    def _fire(self) -> None:
        self._at, self._timer = math.inf, None
        now = time.monotonic()
        for lane in list(self._lanes.values()):
            while lane:
                run, deadline = next(iter(lane.items()))
                if deadline > now:
                    break
                del lane[run]
                self._overdue(run)
        first = min((next(iter(lane.values())) for lane in self._lanes.values() if lane), default=math.inf)
        if first < self._at:
            self._arm(first)
