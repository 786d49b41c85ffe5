"""Fetched jobs that wait here for a slot, while another worker waits for work: they are better off there.

A worker looks for such others when handlers turn out to be slow: when a fetched job has waited for ``SLOW`` seconds.
Where there is nobody else, holding the job costs nothing, and spares the claims that would bring it back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial

from redrive.store.port import WorkerPort

from .hop import Hop
from .running import Running

SLOW = 0.05


class Elsewhere:
    """Asks who else waits for work, at most once in ``interval`` seconds, and only while jobs are held."""

    def __init__(self, store: WorkerPort, hop: Hop, *, worker_id: str, interval: float) -> None:
        self._store = store
        self._hop = hop
        self._worker_id = worker_id
        self._interval = interval
        self._asked = -math.inf
        self.rest_until = -math.inf
        """On the monotonic clock: until then a claim would only bring back what was given away."""

    def wait(self, runs: Sequence[Running]) -> float:
        """Seconds until ``wanted`` has something to ask about these runs; endless when there are none."""
        if not runs:
            return math.inf
        oldest = min(run.job.claimed_at for run in runs)
        return max(0.0, oldest + SLOW - time.monotonic(), self._asked + self._interval - time.monotonic())

    async def wanted(self, runs: Sequence[Running]) -> list[Running]:
        """Those of the runs, waiting for a slot, whose types a worker serves that waits for work."""
        if self.wait(runs) > 0:
            return []
        self._asked = time.monotonic()
        types = await self._hop(partial(self._store.awaited, self._worker_id))
        found = [run for run in runs if run.job.type in types]
        if found:
            self.rest_until = time.monotonic() + self._interval
        return found
