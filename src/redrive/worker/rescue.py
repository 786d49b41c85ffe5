"""Rescue: take the jobs of workers that vanished, and of nobody else.

A lease that was not renewed says that its worker is gone, unless nobody could renew. So a round is left out

- until ``GRACE`` intervals have passed since the database was away, or since this worker began: all leases look
  expired then, and those who live renew them first;
- when the round had to wait for the database longer than an interval: so did the heartbeats of the others;
- after the database's clock made a step against the time that has passed here (set by hand, a suspended host).

What happens between the look at the clock and the rescue is judged by the store, in the rescue's own transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta

import structlog

from redrive.domain.lifecycle import TypeRules
from redrive.store.port import BATCH, WorkerPort

from .chores import Chore
from .options import WorkerOptions
from .outages import Outage

log = structlog.get_logger("redrive.worker")

GRACE = 2
"""Intervals for everybody to come back: a wait, a connection, a heartbeat."""


class Rescuer:
    """The rescues of one worker, a round each heartbeat."""

    def __init__(
        self,
        store: WorkerPort,
        rules: Callable[[str], TypeRules | None],
        options: WorkerOptions,
        outage: Outage,
        *,
        slot: int,
        types: Collection[str] | None = None,
    ) -> None:
        self._store = store
        self._rules = rules
        self._types = types
        self._options = options
        self._outage = outage
        self._slot = slot
        self._interval = options.heartbeat
        self._clock: tuple[datetime, float] | None = None
        self._not_before = 0.0
        self.chore = Chore("rescue", self._interval, self.round, outage)

    def round(self) -> None:
        """One round, if it is time to judge."""
        began = time.monotonic()
        stepped = self._step()
        if stepped:
            log.warning("clock-stepped", seconds=round(stepped, 3))
        if stepped or time.monotonic() - began > self._interval:
            self._wait()
        if self._outage.calm() >= GRACE * self._interval and time.monotonic() >= self._not_before:
            self._rescue()

    def _wait(self) -> None:
        self._not_before = time.monotonic() + GRACE * self._interval

    def _step(self) -> float:
        """Seconds by which the database's clock left ours since the last round; 0.0 for less than half an interval."""
        asked = time.monotonic()
        now = self._store.now()
        here = time.monotonic()
        before, self._clock = self._clock, (now, here)
        if before is None:
            return 0.0
        step = (now - before[0]).total_seconds() - (here - before[1])
        return step if abs(step) > self._interval / 2 + (here - asked) else 0.0

    def _now(self) -> datetime | None:
        """What the database's clock should say, by our time since the round's look at it."""
        if self._clock is None:
            return None
        then, here = self._clock
        return then + timedelta(seconds=time.monotonic() - here)

    def _rescue(self) -> None:
        options = self._options
        while True:
            began = time.monotonic()
            rescued = self._store.rescue(
                zombie_timeout=options.zombie_timeout,
                fetched_timeout=options.fetched_timeout,
                rules=self._rules,
                slot=self._slot,
                as_of=self._now(),
                within=self._interval,
                types=self._types,
                orphaned=options.unserved_timeout,
            )
            if (seconds := time.monotonic() - began) > self._interval:
                log.warning("rescue-slow", seconds=round(seconds, 1), rescued=len(rescued))
                self._wait()
            for job in rescued:
                log.warning("job-rescued", job_id=str(job.id), type=job.type, spot=job.spot, worker=job.worker_id)
            if len(rescued) < BATCH:
                return
