"""The scheduler of a worker: enqueues the slots of its application's schedules, as every other worker does.

Nobody is chosen to do it. Each worker wakes when the next slot is due by the database's clock, and all of them try: the
store lets each slot through once. The row in the database says which declaration is in force:

- A worker puts its own in force when it starts, so that a change takes effect then.
- While another declaration is in force, it leaves the schedule to the workers that have that one; when none of them
  lives any more, it puts its own in force.
- What no worker declares any more, none enqueues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import structlog
from uuid_utils.compat import uuid7

from redrive.domain.errors import ConfigError, Retryable, Unavailable
from redrive.domain.schedule import Schedule, digest
from redrive.store.port import BATCH, SchedulePort, ScheduleRow

from .chores import Chore
from .outages import Outage

log = structlog.get_logger("redrive.worker")

SOONEST = 0.005
AGAIN = timedelta(seconds=0.1)


class Scheduler(Chore):
    """A chore that comes back when the next slot is due, and at least every ``interval`` seconds."""

    def __init__(
        self,
        store: SchedulePort,
        schedules: Sequence[Schedule],
        *,
        interval: float,
        alive_within: float,
        wake: Callable[[], object],
        outage: Outage,
    ) -> None:
        super().__init__("schedules", interval, self._round, outage)
        if len(schedules) > BATCH:
            raise ConfigError(f"{len(schedules)} schedules in one application: at most {BATCH} are allowed")
        self._store = store
        self._schedules = {schedule.name: schedule for schedule in schedules}
        self._longest = interval
        self._alive_within = alive_within
        self._wake = wake
        self._undeclared = set(self._schedules)
        self._pause = interval

    def _run(self) -> None:
        while not self._wait(self._pause):
            sooner = self.tick()
            if sooner is not None:
                self._pause = sooner

    def _round(self) -> None:
        self._pause = self._longest
        began = time.monotonic()
        now, rows = self._store.schedule_rows(list(self._schedules))
        coming: list[datetime] = []
        for schedule in self._schedules.values():
            try:
                following = self._see_to(schedule, rows.get(schedule.name), now)
            except Unavailable:
                raise
            except Retryable as error:
                log.warning("schedule-waits", schedule=schedule.name, error=str(error))
                following = now + AGAIN
            except Exception:  # one broken schedule must not keep the others from their slots
                log.exception("schedule-failed", schedule=schedule.name)
                continue
            if following is not None:
                coming.append(following)
        if coming:
            left = (min(coming) - now).total_seconds() - (time.monotonic() - began)
            self._pause = min(self._longest, max(SOONEST, left))

    def _see_to(self, schedule: Schedule, row: ScheduleRow | None, now: datetime) -> datetime | None:
        """Do what is due; the answer is when to look again, if that is known."""
        if row is None or row.spec != schedule.spec:
            return self._declare(schedule, row, now)
        self._undeclared.discard(schedule.name)
        if row.paused or row.next_slot is None or row.next_slot > now:
            return None if row.paused else row.next_slot
        return self._enqueue(schedule, row, row.next_slot, now)

    def _declare(self, schedule: Schedule, row: ScheduleRow | None, now: datetime) -> datetime | None:
        name = schedule.name
        if row is not None and name not in self._undeclared:
            others = self._store.announced_schedules(alive_within=self._alive_within)
            if (name, digest(row.spec)) in others:
                return None
        if row is not None and schedule.same_rhythm(row.spec):
            first = row.next_slot  # what was missed while no worker ran is still to be seen to
        else:
            first = schedule.begin(now, None if row is None else row.last_slot)
        version = None if row is None else row.version
        if not self._store.declare_schedule(name, schedule.spec, first, version=version):
            return now  # somebody was first: look again
        self._undeclared.discard(name)
        log.info("schedule-declared", schedule=name, next_slot=first and first.isoformat(), changed=row is not None)
        return first

    def _enqueue(self, schedule: Schedule, row: ScheduleRow, slot: datetime, now: datetime) -> datetime | None:
        plan = schedule.plan(slot, now)
        jobs = [schedule.job(one, uuid7()) for one in plan.slots]
        last = plan.slots[-1] if plan.slots else None
        accepted = self._store.enqueue_slots(
            schedule.name, jobs, slot=slot, last=last, next=plan.next, version=row.version
        )
        if accepted is None:
            return plan.next  # another worker did it, or it was paused meanwhile
        if plan.missed_since is not None:
            log.warning(
                "schedule-missed", schedule=schedule.name, since=plan.missed_since.isoformat(),
                catch_up=schedule.catch_up, enqueued=len(jobs),
            )  # fmt: skip
        for one, job in zip(plan.slots, accepted, strict=True):
            log.info(
                "slot-enqueued", schedule=schedule.name, slot=one.isoformat(), job_id=str(job.id),
                duplicate=job.duplicate,
            )  # fmt: skip
        if jobs:
            self._wake()
        return plan.next
