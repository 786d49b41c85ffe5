"""Periodic work: when it is due, and what becomes of times that were missed.

A **slot** is one moment, in UTC, for which a schedule's job is enqueued. Slots follow from the declaration alone, so
that every worker computes the same ones: what is a slot needs no memory, what was done is kept in the database.

**Clocks that change.** A cron expression speaks of a clock on a wall. As Debian's cron does it:

- An expression with stated minutes and hours names times of day, and each is one slot. A time that the clock leaves out
  (02:30 when it goes from 02:00 to 03:00) is due at the first moment after the gap; several of them are one slot. A
  time that the clock shows twice is due the first time.
- Where minute or hour begin with a star, the expression follows the clock: it is due whenever the clock shows such a
  time, twice in an hour that comes twice, never in one that is left out.

**Missed slots.** A slot is on time up to a minute after it. As long as the oldest slot that nobody has seen to is on
time, all that have come are enqueued. Else slots were missed, since no worker was there or the schedule was paused, and
``catch_up`` says what becomes of them.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, Protocol, assert_never, get_args
from uuid import UUID

from .edits import MARKS_LIMIT, check_name
from .errors import InvalidField
from .job import NewJob

CatchUp = Literal["latest", "none", "all"]
"""Of missed slots the newest is enqueued, or none (but for one that is on time), or all (the newest ``ALL_LIMIT``)."""

ON_TIME = timedelta(seconds=60)
ALL_LIMIT = 100
ARGUMENTS_LIMIT = 10_000
"""Bytes; a schedule's row, which every round reads, carries them."""
LABEL, SLOT_LABEL = "schedule", "slot"
"""Labels of a schedule's jobs: its name, and the slot in UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_MOMENT = timedelta(microseconds=1)


# -- slots -------------------------------------------------------------------------------------------------------------


class Rhythm(Protocol):
    """The slots of a schedule."""

    def after(self, moment: datetime) -> datetime | None:
        """The first slot later than ``moment``, in UTC; None when there is none any more."""
        ...


class Walls(Protocol):
    """What a cron expression says of a wall clock, whatever time zone it hangs in."""

    def after(self, wall: datetime) -> datetime | None:
        """The first time it names that is later than ``wall``; both without a zone, the answer in whole minutes."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at whole multiples of an interval, counted from 1970-01-01 00:00 UTC."""

    interval: timedelta

    def after(self, moment: datetime) -> datetime:
        """The first slot later than ``moment``."""
        return _EPOCH + ((moment - _EPOCH) // self.interval + 1) * self.interval


@dataclass(frozen=True, slots=True)
class Cron:
    """Slots by a wall clock. ``follows``: whenever the clock shows such a time, rather than each time of day once."""

    walls: Walls
    zone: tzinfo
    follows: bool

    def after(self, moment: datetime) -> datetime | None:
        """The first slot later than ``moment``."""
        moment = moment.astimezone(UTC)  # within one zone Python adds by the wall clock, which is not what is meant
        return self._shown(moment) if self.follows else self._named(moment)

    def _named(self, moment: datetime) -> datetime | None:
        wall = _wall(moment, self.zone)
        while (named := self.walls.after(wall)) is not None:
            # In an hour that comes again, or at the end of a gap, the clock is behind slots that have been.
            if (slot := self._first(named)) > moment:
                return slot
            wall = named
        return None

    def _first(self, wall: datetime) -> datetime:
        """When the clock first shows ``wall``, or goes past it."""
        slot = wall.replace(tzinfo=self.zone).astimezone(UTC)
        if _wall(slot, self.zone) == wall:
            return slot
        # In a gap the two folds are the two offsets: one moment before the change, one after it.
        other = wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC)
        return _change(self.zone, min(slot, other), max(slot, other)) or slot

    def _shown(self, moment: datetime) -> datetime | None:
        """Between two changes the clock runs like any other: look there, else behind the next change."""
        begin, wall = moment, _wall(moment, self.zone)
        while (shown := self.walls.after(wall)) is not None:
            slot = (shown - _offset(begin, self.zone)).replace(tzinfo=UTC)
            changed = _change(self.zone, begin, slot)
            if changed is None:
                return slot
            begin, wall = changed, _wall(changed, self.zone) - _MOMENT  # the change itself may be such a time
        return None


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _change(zone: tzinfo, begin: datetime, end: datetime) -> datetime | None:
    """The first moment after ``begin``, up to ``end``, at which the clock has been changed, to the second."""
    offset = _offset(begin, zone)
    while begin < end:
        step = min(begin + _DAY, end)
        if _offset(step, zone) != offset:
            return _halve(zone, offset, begin, step)
        begin = step
    return None


def _halve(zone: tzinfo, offset: timedelta, before: datetime, after: datetime) -> datetime:
    before, after = before.replace(microsecond=0), after.replace(microsecond=0) + _SECOND
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        if _offset(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after


# -- what is to be done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about a slot that has come. ``missed_since``: the first slot that is left out, if any is."""

    slots: tuple[datetime, ...]
    next: datetime | None
    missed_since: datetime | None


def plan(rhythm: Rhythm, first: datetime, now: datetime, catch_up: CatchUp) -> Plan:
    """Which slots to enqueue, oldest first, when ``first`` is the oldest nobody has seen to, and it is due."""
    first, now = first.astimezone(UTC), now.astimezone(UTC)
    on_time = now - ON_TIME
    if first >= on_time:
        slots = tuple(_between(rhythm, first, first, now))
    else:
        match catch_up:
            case "none":
                slots = tuple(slot for slot in _newest(rhythm, first, now, 1) if slot >= on_time)
            case "latest":
                slots = _newest(rhythm, first, now, 1)
            case "all":
                slots = _newest(rhythm, first, now, ALL_LIMIT)
            case _:
                assert_never(catch_up)
    return Plan(slots, rhythm.after(now), None if first in slots else first)


def _newest(rhythm: Rhythm, first: datetime, until: datetime, number: int) -> tuple[datetime, ...]:
    """The last slots up to ``until``: looked for backwards in growing steps, for there may be millions since first."""
    window = ON_TIME
    while True:
        found = deque(_between(rhythm, first, until - window, until), maxlen=number)
        if len(found) == number or until - window <= first:
            return tuple(found)
        window *= 4


def _between(rhythm: Rhythm, first: datetime, begin: datetime, until: datetime) -> Iterator[datetime]:
    """Slots from ``begin`` to ``until``, both included, none before ``first``, which counts as one."""
    slot = first if begin <= first else rhythm.after(begin - _MOMENT)
    while slot is not None and slot <= until:
        yield slot
        slot = rhythm.after(slot)


# -- a declaration -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A declared schedule. ``when`` is its rhythm as it is stored, ``template`` the job of each slot."""

    name: str
    rhythm: Rhythm
    when: Mapping[str, Any]
    catch_up: CatchUp
    template: NewJob

    @property
    def spec(self) -> dict[str, Any]:
        """The declaration as it is stored: whatever differs here differs in what is done."""
        job = self.template
        said: dict[str, Any] = {
            "type": job.type,
            **self.when,
            "catch_up": self.catch_up,
            "queue": job.queue,
            "priority": job.priority,
            "arguments": job.payload.decode(),
            "tags": list(job.tags),
            "labels": dict(job.labels),
            "key": job.idempotency_key,
            "lock_key": job.lock_key,
            "max_attempts": job.max_attempts,
            "created_by": job.created_by,
        }
        return {name: value for name, value in said.items() if value not in (None, [], {})}

    def begin(self, now: datetime, last: datetime | None) -> datetime | None:
        """The first slot of a rhythm that is new; later than ``last``, which an earlier one enqueued."""
        return self.rhythm.after(now if last is None else max(now, last))

    def same_rhythm(self, spec: Mapping[str, Any]) -> bool:
        """Whether a stored declaration has the same slots."""
        return {name: spec.get(name) for name in RHYTHM} == {name: self.when.get(name) for name in RHYTHM}

    def plan(self, first: datetime, now: datetime) -> Plan:
        """What to do about ``first``, which is due."""
        return plan(self.rhythm, first, now, self.catch_up)

    def job(self, slot: datetime, identity: UUID) -> NewJob:
        """The job of one slot. Its key says so too, unless the application gave one."""
        said = slot.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return replace(
            self.template,
            id=identity,
            labels={**self.template.labels, LABEL: self.name, SLOT_LABEL: said},
            idempotency_key=self.template.idempotency_key or f"{self.name}@{said}",
            created_by=self.template.created_by or LABEL,
        )


RHYTHM = ("cron", "tz", "every")
"""What of a stored declaration says when its slots are."""


def digest(spec: Mapping[str, Any]) -> str:
    """A short name of a declaration, by which workers say which one they have."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def check_schedule(schedule: Schedule) -> Schedule:
    """The schedule, with everything checked that no job of it could carry."""
    check_name("name", schedule.name)
    if schedule.catch_up not in get_args(CatchUp):
        raise InvalidField("catch_up", f"{schedule.catch_up!r}", expected='"latest", "none" or "all"')
    job = schedule.template
    if job.due is not None:
        raise InvalidField("run_after", "a schedule says when", expected="nothing")
    if len(job.payload) > ARGUMENTS_LIMIT:
        raise InvalidField("arguments", f"{len(job.payload)} bytes", expected=f"at most {ARGUMENTS_LIMIT} bytes")
    taken = {LABEL, SLOT_LABEL} & job.labels.keys()
    if taken or len(job.labels) > MARKS_LIMIT - 2:
        expected = f"at most {MARKS_LIMIT - 2}, none of them named {LABEL} or {SLOT_LABEL}"
        raise InvalidField("labels", ", ".join(sorted(taken)) or f"{len(job.labels)} labels", expected=expected)
    return schedule
