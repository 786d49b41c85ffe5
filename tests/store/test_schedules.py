"""Schedules below the port: each slot is let through once, on both databases."""

import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from redrive.domain.errors import NotFound, VersionChanged
from redrive.domain.job import Enqueued, NewJob
from redrive.domain.schedule import digest
from redrive.store.port import ScheduleRow
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import jobs_hot, workers
from redrive.store.sql.tables_later import schedules

from .make import TYPE, draft, job, worker
from .rows import Rows

NAME, SPEC = "nightly", {"type": TYPE, "cron": "0 3 * * *", "tz": "Europe/Berlin", "catch_up": "latest"}
MINUTE = timedelta(minutes=1)


class Book:
    """One schedule and the steps of those who use it."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store

    def declare(self, since: timedelta = MINUTE, name: str = NAME) -> datetime:
        """A schedule whose next slot was so long ago."""
        slot = self.store.now().replace(microsecond=0) - since
        assert self.store.declare_schedule(name, SPEC, slot, version=None)
        return slot

    def row(self, name: str = NAME) -> ScheduleRow:
        return self.store.schedule_rows([name])[1][name]

    def enqueue(self, due: datetime, *slots: datetime, version: int = 1, **but: Any) -> list[Enqueued] | None:
        jobs = [slot_job(one) for one in slots or (due,)]
        known: dict[str, Any] = {"slot": due, "last": (slots or (due,))[-1], "next": due + 10 * MINUTE}
        return self.store.enqueue_slots(NAME, jobs, version=version, **(known | but))


def slot_job(slot: datetime) -> NewJob:
    return job(idempotency_key=f"{NAME}@{slot.isoformat()}", labels={"slot": slot.isoformat()})


@pytest.fixture
def book(store: SqlStore) -> Book:
    return Book(store)


def enqueued(rows: Rows) -> Counter[str]:
    return Counter(row[0] for row in rows.all(select(jobs_hot.c.idempotency_key)))


def test_a_declaration_is_kept_as_it_was_made(book: Book, store: SqlStore):
    slot = store.now().replace(microsecond=0)
    assert store.declare_schedule(NAME, SPEC, slot, version=None)
    assert not store.declare_schedule(NAME, SPEC | {"catch_up": "none"}, slot + MINUTE, version=None), "it is there"
    now, rows = store.schedule_rows([NAME, "other"])
    assert rows == {NAME: ScheduleRow(NAME, SPEC, paused=False, last_slot=None, next_slot=slot, version=1)}
    assert (rows[NAME].next_slot or slot).utcoffset() == timedelta(0)
    assert abs(now - store.now()) < timedelta(seconds=10)
    assert now.tzinfo is store.now().tzinfo is UTC


def test_a_changed_declaration_replaces_the_version_it_saw_and_nothing_else(book: Book, store: SqlStore):
    slot = book.declare()
    assert book.enqueue(slot)
    store.pause_schedule(NAME, True, draft("pause-schedule"), version=None)
    changed = SPEC | {"cron": "0 4 * * *"}
    assert not store.declare_schedule(NAME, changed, slot + MINUTE, version=1), "it was paused meanwhile"
    assert store.declare_schedule(NAME, changed, slot + 5 * MINUTE, version=2)
    assert book.row() == ScheduleRow(NAME, changed, True, slot, slot + 5 * MINUTE, 3)
    assert not store.declare_schedule("unknown", changed, slot, version=1)


def test_a_slot_is_enqueued_and_the_schedule_goes_on(book: Book, store: SqlStore, rows: Rows):
    slot = book.declare(10 * MINUTE)
    first, second = slot, slot + 5 * MINUTE
    accepted = book.enqueue(first, first, second)
    assert accepted is not None
    assert [one.duplicate for one in accepted] == [False, False]
    row = book.row()
    assert (row.last_slot, row.next_slot, row.version) == (second, slot + 10 * MINUTE, 1)
    heads = [store.head(one.id) for one in accepted]
    assert [head.labels["slot"] for head in heads if head] == [first.isoformat(), second.isoformat()]
    assert all(head is not None and head.spot == "pending" for head in heads)


def test_slots_that_are_left_out_move_the_schedule_and_enqueue_nothing(book: Book, store: SqlStore, rows: Rows):
    slot = book.declare()
    assert store.enqueue_slots(NAME, [], slot=slot, last=None, next=slot + 10 * MINUTE, version=1) == []
    assert (book.row().last_slot, book.row().next_slot) == (None, slot + 10 * MINUTE)
    assert rows.count(jobs_hot) == 0


def test_the_end_of_a_schedule(book: Book, store: SqlStore):
    assert book.enqueue(book.declare(), next=None)
    assert book.row().next_slot is None
    (view,) = store.schedules()
    assert (view.late, view.overdue) == (0.0, False)


REFUSED: dict[str, dict[str, Any]] = {
    "it has moved on": {"slot": -MINUTE},
    "another declaration": {"version": 2},
    "not due": {"last": 30 * MINUTE},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_step_from_elsewhere_does_nothing(book: Book, rows: Rows, why: str):
    slot = book.declare()
    but: dict[str, Any] = {name: slot + by if isinstance(by, timedelta) else by for name, by in REFUSED[why].items()}
    before = book.row()
    assert book.enqueue(slot, **but) is None
    assert (book.row(), rows.count(jobs_hot)) == (before, 0)


def test_a_slot_is_not_due_before_the_databases_clock_says_so(book: Book, store: SqlStore, rows: Rows):
    slot = book.declare(-MINUTE)
    assert book.enqueue(slot) is None
    assert book.enqueue(slot, last=slot - 2 * MINUTE) is None
    assert rows.count(jobs_hot) == 0


def test_a_job_that_is_refused_leaves_the_slot_where_it_was(book: Book, store: SqlStore, rows: Rows):
    """The job and the step are one transaction."""
    slot = book.declare()
    bad = job(priority=1000)
    with pytest.raises(Exception, match=r"priority|smallint"):
        store.enqueue_slots(NAME, [slot_job(slot), bad], slot=slot, last=slot, next=slot + MINUTE, version=1)
    assert (book.row().next_slot, rows.count(jobs_hot)) == (slot, 0)


def test_a_key_that_is_held_answers_its_holder_and_the_schedule_goes_on(book: Book, store: SqlStore):
    slot = book.declare()
    (held,) = store.enqueue([job(idempotency_key="one at a time")])
    jobs = [job(idempotency_key="one at a time")]
    assert store.enqueue_slots(NAME, jobs, slot=slot, last=slot, next=slot + MINUTE, version=1) == [
        Enqueued(held.id, duplicate=True)
    ]
    assert book.row().next_slot == slot + MINUTE


def test_many_racing_on_one_schedule_enqueue_each_slot_once(url: str, book: Book, store: SqlStore, rows: Rows):
    """Each thread has connections of its own and goes on until no slot is left."""
    first = book.declare(40 * MINUTE)
    end = first + 15 * MINUTE
    took: list[datetime] = []
    ready = threading.Barrier(4)

    def race() -> None:
        own = open_store(url)
        ready.wait()
        while (slot := own.schedule_rows([NAME])[1][NAME].next_slot) is not None and slot < end:
            done = own.enqueue_slots(NAME, [slot_job(slot)], slot=slot, last=slot, next=slot + MINUTE, version=1)
            if done is not None:
                took.append(slot)
        own.close()

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    slots = [first + n * MINUTE for n in range(15)]
    assert sorted(took) == slots
    assert enqueued(rows) == dict.fromkeys((f"{NAME}@{slot.isoformat()}" for slot in slots), 1)


def test_a_pause_holds_until_it_is_taken_back_and_both_are_on_record(book: Book, store: SqlStore, rows: Rows):
    slot = book.declare()
    view = store.pause_schedule(NAME, True, draft("pause-schedule", "holidays"), version=1)
    assert (view.paused, view.state, view.version, view.overdue) == (True, "paused", 2, False)
    assert book.enqueue(slot, version=1) is None
    assert book.enqueue(slot, version=2) is None
    with pytest.raises(VersionChanged):
        store.pause_schedule(NAME, False, draft("resume-schedule"), version=1)
    store.pause_schedule(NAME, True, draft("pause-schedule"), version=None)  # it is: nothing to do, nothing to say
    store.pause_schedule(NAME, False, draft("resume-schedule"), version=2)
    assert (book.row().version, book.row().next_slot) == (3, slot)
    assert book.enqueue(slot, version=3)
    said = [(entry.action, entry.target, entry.note, entry.details) for entry in store.audit_entries()]
    off, on = {"paused": False}, {"paused": True}
    assert said == [
        ("resume-schedule", "schedule nightly", None, {"before": on, "after": off}),
        ("pause-schedule", "schedule nightly", "holidays", {"before": off, "after": on}),
    ]
    with pytest.raises(NotFound, match="no schedule other"):
        store.pause_schedule("other", True, draft("pause-schedule"), version=None)
    assert store.verify_audit().problems == ()


@pytest.mark.postgres
def test_a_step_that_is_under_way_is_not_waited_for(postgres_store: SqlStore):
    store, book = postgres_store, Book(postgres_store)
    slot = book.declare()

    def hold(connection: Any) -> object:
        connection.execute(update(schedules).values(spec=schedules.c.spec))
        return book.enqueue(slot)

    assert store._db.write(hold) is None
    assert book.row().next_slot == slot


@pytest.mark.postgres
def test_a_pause_waits_for_a_step_that_is_under_way(postgres_store: SqlStore):
    store, order = postgres_store, []
    slot = Book(store).declare()
    began, paused = threading.Event(), threading.Event()

    def pause() -> None:
        began.wait(30)
        store.pause_schedule(NAME, True, draft("pause-schedule"), version=None)
        order.append("paused")
        paused.set()

    thread = threading.Thread(target=pause)
    thread.start()

    def step(connection: Any) -> None:
        connection.execute(update(schedules).where(schedules.c.next_slot == slot).values(next_slot=slot + MINUTE))
        began.set()
        paused.wait(0.3)
        order.append("stepped")

    store._db.write(step)
    thread.join(30)
    assert order == ["stepped", "paused"]


def test_what_operators_see(book: Book, store: SqlStore, rows: Rows):
    slot = book.declare(5 * MINUTE)
    (view,) = store.schedules()
    assert (view.state, view.declared, view.overdue) == ("undeclared", False, True)
    assert 300 <= view.late < 400
    store.register(worker("w1", schedules={NAME: digest(SPEC), "other": "0" * 16}))
    store.register(worker("w2"))
    assert store.announced_schedules(alive_within=60) == {(NAME, digest(SPEC)), ("other", "0" * 16)}
    assert store.schedules()[0].state == "late"
    assert book.enqueue(slot, next=slot + 60 * MINUTE)
    (view,) = store.schedules()
    assert (view.state, view.late, view.ahead, view.last_slot) == ("waiting", 0.0, 0.0, slot)
    rows.run(update(schedules).values(last_slot=slot + 15 * MINUTE))
    assert 500 < store.schedules()[0].ahead <= 600
    rows.run(update(schedules).values(next_slot=None))
    assert store.schedules()[0].state == "ended"
    rows.run(update(schedules).values(spec=SPEC | {"catch_up": "all"}))
    assert store.schedules()[0].state == "undeclared", "a worker with another declaration does not have this one"
    rows.run(update(schedules).values(spec=SPEC))
    assert store.schedules()[0].state == "ended"
    rows.run(update(workers).where(workers.c.id == "w1").values(seen_at=store.now() - 2 * MINUTE))
    assert store.schedules()[0].state == "undeclared"
    assert store.schedules(alive_within=300)[0].state == "ended"
    assert [view.name for view in store.schedules()] == [NAME]
    store.register(worker("w1", schedules={}))
    assert [found.id for found in store.workers()] == ["w2", "w1"] or [found.id for found in store.workers()] == [
        "w1",
        "w2",
    ]


def test_a_clock_set_back_or_forward_doubles_nothing_on_sqlite(sqlite_store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    """The host's clock is the database's there."""
    store, book = sqlite_store, Book(sqlite_store)
    slot, rows, real = book.declare(), Rows(sqlite_store), time.time_ns
    assert book.enqueue(slot)

    def shift(by: timedelta) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: real() + by // timedelta(microseconds=1) * 1000)

    shift(timedelta(hours=-1))
    assert book.enqueue(slot) is None, "it has moved on"
    assert book.enqueue(slot + 10 * MINUTE) is None, "not due"
    shift(timedelta(minutes=10))
    assert book.enqueue(slot + 10 * MINUTE)
    shift(timedelta(hours=-1))
    assert book.enqueue(slot + 10 * MINUTE) is None
    assert book.enqueue(slot + 20 * MINUTE) is None
    assert sum(enqueued(rows).values()) == 2
    assert store.schedules()[0].ahead > 3000


@pytest.mark.postgres
def test_a_workers_clock_counts_for_nothing_on_postgresql(postgres_store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    book, real = Book(postgres_store), time.time_ns
    slot = book.declare(-MINUTE)
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3600 * 10**9)
    monkeypatch.setattr(time, "time", lambda: real() / 1e9 + 3600)
    assert book.enqueue(slot) is None
    Rows(postgres_store).run(update(schedules).values(next_slot=slot - 2 * MINUTE))  # as if the server's had gone on
    assert book.enqueue(slot - 2 * MINUTE)
