"""The scheduler of a worker: what it declares, what it enqueues, and what it leaves to others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete, select

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.errors import Unavailable
from redrive.domain.job import NewJob
from redrive.domain.schedule import ALL_LIMIT, Schedule, digest
from redrive.store.port import ScheduleRow, WorkerInfo
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import jobs_hot, metadata
from redrive.worker import crontab
from redrive.worker.outages import Outage
from redrive.worker.schedules import Scheduler
from tests.app.shared import shared_url
from tests.faults.waiting import until

from .make import TYPE
from .shop import Tampered

__all__ = ["shared_url"]

SECOND, MINUTE, HOUR, WEEK = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=7)
NOON = datetime(2025, 5, 1, 12, tzinfo=UTC)
"""Time stands here at first. All of it is in the past, so that the database's own clock agrees that it is due."""
JOB = NewJob(UUID(int=7), TYPE, "default", b"{}")


class Clocked(Tampered):
    """A store whose clock, as a worker is told it, stands where the test has put it."""

    now = NOON

    def schedule_rows(self, names: list[str]) -> tuple[datetime, dict[str, ScheduleRow]]:
        if "schedule_rows" in self.before:
            self.before["schedule_rows"](names)
        return self.now, self._store.schedule_rows(names)[1]


@pytest.fixture
def store(shared_url: str) -> Iterator[SqlStore]:
    """One database for this module, emptied for each test."""
    store = open_store(shared_url)
    store._db.write(lambda connection: [connection.execute(delete(table)) for table in metadata.sorted_tables])
    yield store
    assert not [result for result in store.promises() if result.number]
    store.close()


@pytest.fixture
def clocked(store: SqlStore) -> Clocked:
    return Clocked(store)


def schedule(name: str = "tick", every: int = 60, **but: Any) -> Schedule:
    rhythm, when = crontab.every(every)
    known: dict[str, Any] = {"name": name, "rhythm": rhythm, "when": when, "catch_up": "latest", "template": JOB}
    return Schedule(**(known | but))


class Hand:
    """A worker's scheduler, without the thread that calls it."""

    def __init__(self, store: Any, *declared: Schedule, worker: str = "w1") -> None:
        self.woken = 0
        info = {one.name: digest(one.spec) for one in declared}
        store.register(WorkerInfo(worker, "h", 1, "b", ("default",), (), 1, info))
        self.scheduler = Scheduler(store, declared, interval=10.0, alive_within=60.0, wake=self._wake, outage=Outage())

    def _wake(self) -> None:
        self.woken += 1

    def tick(self) -> float:
        """One round; how long it wants to rest then."""
        self.scheduler.tick()
        return self.scheduler._pause


def row(store: SqlStore, name: str = "tick") -> ScheduleRow:
    return store.schedule_rows([name])[1][name]


def keys(store: SqlStore) -> list[str]:
    statement = select(jobs_hot.c.idempotency_key).order_by(jobs_hot.c.idempotency_key)
    return [found[0] for found in store._db.read(lambda connection: connection.execute(statement).all())]


def said(slot: datetime) -> str:
    return slot.strftime("tick@%Y-%m-%dT%H:%M:%SZ")


def draft(action: str) -> AuditDraft:
    return AuditDraft(Actor("ann"), action)


@pytest.mark.slow
def test_a_new_schedule_waits_for_its_first_slot(clocked: Clocked, store: SqlStore):
    hand = Hand(clocked, schedule(every=3600), schedule("other", every=6))
    assert 5 < hand.tick() <= 6
    assert row(store) == ScheduleRow("tick", schedule(every=3600).spec, False, None, NOON + HOUR, 1)
    assert row(store, "other").next_slot == NOON + 6 * SECOND
    clocked.now += 5 * SECOND
    assert 0.5 < hand.tick() <= 1
    assert (keys(store), hand.woken, row(store).version) == ([], 0, 1)


def test_what_is_due_is_enqueued_once_and_the_worker_is_woken(clocked: Clocked, store: SqlStore):
    hand, other = Hand(clocked, schedule()), Hand(clocked, schedule(), worker="w2")
    hand.tick()
    clocked.now += MINUTE
    hand.tick()
    other.tick()
    assert keys(store) == [said(NOON + MINUTE)]
    assert (hand.woken, other.woken) == (1, 0)
    assert row(store) == ScheduleRow("tick", schedule().spec, False, NOON + MINUTE, NOON + 2 * MINUTE, 1)


@pytest.mark.slow
def test_it_comes_back_when_the_next_slot_is_due(store: SqlStore):
    hand = Hand(store, schedule(every=2))
    assert hand.tick() <= 2.0
    slot = row(store).next_slot
    assert slot is not None
    hand.scheduler.start()
    until(lambda: keys(store))
    hand.scheduler.stop()
    hand.scheduler.join(10)
    assert keys(store)[0] == said(slot)
    (created,) = store._db.read(lambda connection: connection.execute(select(jobs_hot.c.created_at).limit(1)).one())
    assert slot <= created, "never before it is due by the database's clock"


@pytest.mark.parametrize("catch_up", ["latest", "none", "all"])
def test_hours_without_workers_are_caught_up_by_the_rule(clocked: Clocked, store: SqlStore, catch_up: Any):
    hand = Hand(clocked, schedule(every=3600, catch_up=catch_up))
    hand.tick()
    clocked.now = NOON + 3 * HOUR + 10 * MINUTE
    hand.tick()
    slots = [NOON + n * HOUR for n in (1, 2, 3)]
    wanted = {"latest": slots[2:], "none": [], "all": slots}[catch_up]
    assert keys(store) == [said(slot) for slot in wanted]
    hand.tick()
    assert (len(keys(store)), row(store).next_slot) == (len(wanted), NOON + 4 * HOUR)
    clocked.now = NOON + 4 * HOUR
    hand.tick()
    assert len(keys(store)) == len(wanted) + 1


@pytest.mark.parametrize(("catch_up", "number"), [("latest", 1), ("none", 0), ("all", ALL_LIMIT)])
def test_a_week_of_pause_does_not_flood(clocked: Clocked, store: SqlStore, catch_up: Any, number: int):
    hand = Hand(clocked, schedule(every=300, catch_up=catch_up))
    hand.tick()
    store.pause_schedule("tick", True, draft("pause-schedule"), version=None)
    clocked.now += WEEK + 2 * MINUTE
    hand.tick()
    assert (keys(store), row(store).next_slot) == ([], NOON + 5 * MINUTE)
    store.pause_schedule("tick", False, draft("resume-schedule"), version=None)
    for _ in range(2):
        hand.tick()
        assert len(keys(store)) == number
    assert keys(store)[-1:] == [said(NOON + WEEK)][:number]
    assert row(store).next_slot == NOON + WEEK + 5 * MINUTE


@pytest.mark.slow
def test_many_schedulers_at_once_enqueue_each_slot_once(shared_url: str, store: SqlStore):
    ready, start = threading.Barrier(4), datetime.now(UTC)
    Hand(store, schedule(catch_up="all", every=1)).tick()

    def race(number: int) -> None:
        own = open_store(shared_url)
        hand = Hand(own, schedule(catch_up="all", every=1), worker=f"w{number}")
        ready.wait(30)
        while datetime.now(UTC) < start + 3 * SECOND:
            hand.tick()
        own.close()

    threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    moments = [datetime.fromisoformat(key.removeprefix("tick@")) for key in keys(store)]
    assert len(moments) >= 2
    assert {later - one for one, later in pairwise(moments)} == {SECOND}, "none is left out, and none comes twice"


# -- which declaration is in force -------------------------------------------------------------------------------------


def test_a_changed_declaration_is_in_force_from_the_next_start(clocked: Clocked, store: SqlStore):
    old, new = schedule(every=60), schedule(every=3600, catch_up="none")
    first = Hand(clocked, old)
    first.tick()
    clocked.now += 30 * SECOND
    second = Hand(clocked, new, worker="w2")
    second.tick()
    assert row(store) == ScheduleRow("tick", new.spec, False, None, NOON + HOUR, 2)
    clocked.now = NOON + HOUR
    first.tick()  # lives on with the old one, and leaves the schedule to the other
    assert (row(store).version, keys(store)) == (2, [])
    second.tick()
    assert keys(store) == [said(NOON + HOUR)]


def test_a_declaration_that_no_live_worker_has_gives_way(clocked: Clocked, store: SqlStore):
    """A worker of the old release was started again while the new one was rolled out, and ended."""
    old, new = schedule(every=60), schedule(every=3600)
    hand, late = Hand(clocked, new), Hand(clocked, old, worker="w2")
    hand.tick()
    late.tick()
    hand.tick()
    assert row(store).spec == old.spec, "the worker that started last lives"
    store.unregister("w2")
    hand.tick()
    assert (row(store).spec, row(store).version) == (new.spec, 3)


def test_a_change_that_leaves_the_rhythm_loses_no_slot(clocked: Clocked, store: SqlStore):
    Hand(clocked, schedule(every=3600)).tick()
    clocked.now += HOUR + MINUTE  # the slot came while the release was changed
    hand = Hand(clocked, schedule(every=3600, template=NewJob(UUID(int=8), TYPE, "other", b"{}")), worker="w2")
    hand.tick()
    assert row(store).next_slot == NOON + HOUR
    hand.tick()
    queues = store._db.read(lambda connection: connection.execute(select(jobs_hot.c.queue)).all())
    assert [found.queue for found in queues] == ["other"]


def test_a_declaration_that_is_gone_is_kept_and_not_run(clocked: Clocked, store: SqlStore):
    Hand(clocked, schedule(), schedule("kept")).tick()
    store.unregister("w1")
    rest = Hand(clocked, schedule("kept"), worker="w2")
    clocked.now += MINUTE
    rest.tick()
    assert keys(store) == [said(NOON + MINUTE).replace("tick", "kept")]
    assert {view.name: view.declared for view in store.schedules()} == {"tick": False, "kept": True}
    assert row(store).next_slot == NOON + MINUTE


def test_a_paused_schedule_stays_paused_when_its_declaration_changes(clocked: Clocked, store: SqlStore):
    Hand(clocked, schedule()).tick()
    store.pause_schedule("tick", True, draft("pause-schedule"), version=None)
    hand = Hand(clocked, schedule(every=30), worker="w2")
    hand.tick()
    clocked.now += MINUTE
    hand.tick()
    assert (row(store).paused, row(store).spec["every"], keys(store)) == (True, 30, [])


# -- clocks and trouble ------------------------------------------------------------------------------------------------


def test_a_clock_set_back_and_forward(clocked: Clocked, store: SqlStore):
    hand = Hand(clocked, schedule())
    hand.tick()
    for minutes in (1, 0, 1, 2, -60, 1, 2, 0, 3, 1, 3):
        clocked.now = NOON + minutes * MINUTE
        hand.tick()
    assert keys(store) == [said(NOON + minutes * MINUTE) for minutes in (1, 2, 3)], "each slot once"
    clocked.now = NOON + 10 * HOUR
    hand.tick()
    clocked.now = NOON + 5 * MINUTE
    other = Hand(clocked, schedule(every=120), worker="w2")  # a new rhythm begins after the last slot, too
    other.tick()
    assert keys(store)[3:] == [said(NOON + 10 * HOUR)], "of what was jumped over the latest"
    assert row(store).next_slot == NOON + 10 * HOUR + 2 * MINUTE


def test_the_hosts_clock_is_the_databases_on_sqlite(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    store, shift, real = open_store(sqlite_url), 0.0, time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(shift * 1e9))
    hand = Hand(store, schedule())
    hand.tick()
    first = row(store).next_slot
    assert first is not None
    for shift in (60.0, -3600.0, 0.0, 60.0, 120.0, 60.0, 120.0):  # noqa: B007 - the clock reads it
        hand.tick()
    assert keys(store) == [said(first), said(first + MINUTE)]
    shift = 100_000.0
    hand.tick()
    shift = 180.0
    hand.tick()
    assert len(keys(store)) == 3
    assert store.schedules()[0].ahead > 90_000
    store.close()


def test_one_at_a_time_by_a_key_of_ones_own(clocked: Clocked, store: SqlStore):
    hand = Hand(clocked, schedule(template=NewJob(UUID(int=7), TYPE, "default", b"{}", idempotency_key="poll")))
    for _ in range(4):
        hand.tick()
        clocked.now += MINUTE
    assert keys(store) == ["poll"], "a slot while the job of an earlier one is live adds nothing"
    assert row(store).last_slot == NOON + 3 * MINUTE


class Broken:
    def after(self, moment: datetime) -> datetime | None:
        raise ZeroDivisionError("no rhythm")


@pytest.mark.slow
def test_a_broken_schedule_keeps_no_other_from_its_slots(clocked: Clocked, store: SqlStore):
    hand = Hand(clocked, schedule("bad", rhythm=Broken()), schedule())
    hand.tick()
    clocked.now += MINUTE
    hand.tick()
    assert keys(store) == [said(NOON + MINUTE)]


def test_while_the_database_is_away_nothing_is_lost_or_doubled(clocked: Clocked, store: SqlStore):
    hand = Hand(clocked, schedule())

    def away(*_: object, **__: object) -> None:
        raise Unavailable("away")

    clocked.before["schedule_rows"] = away
    assert hand.tick() == 10.0
    clocked.before.clear()
    hand.tick()
    clocked.now += MINUTE
    clocked.before["enqueue_slots"] = away
    hand.tick()
    assert (keys(store), row(store).next_slot) == ([], NOON + MINUTE)
    clocked.before.clear()
    clocked.after["enqueue_slots"] = away  # it was done, and the answer lost
    hand.tick()
    clocked.after.clear()
    hand.tick()
    assert keys(store) == [said(NOON + MINUTE)]
