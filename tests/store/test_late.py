"""A late end is noted with its job held: what operators do beside it comes before the note, or after it."""

import threading
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import event

from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Answer
from redrive.domain.states import Spot, Verb
from redrive.store.sql.store import SqlStore
from tests.faults.waiting import until

from .make import Floor, succeed
from .rows import Rows

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(postgres_store: SqlStore) -> SqlStore:
    """SQLite has one writer: nothing happens beside it."""
    return postgres_store


@pytest.fixture
def held(store: SqlStore, floor: Floor, rows: Rows) -> ClaimedJob:
    """A job that died as a zombie while its worker still believes that it runs it."""
    held = floor.running()
    rows.silent(held.uuid)
    assert len(store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)) == 1
    return held


def settle_late(store: SqlStore, held: ClaimedJob, after: str, then: Callable[[], object]) -> None:
    """Say that the job succeeded, and do ``then`` once, when a statement with ``after`` in it has been executed."""
    waiting = [then]

    def executed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if after in statement and waiting:
            waiting.pop()()

    engine = store._db._writer  # type: ignore[attr-defined]
    event.listen(engine, "after_cursor_execute", executed)
    try:
        (settled,) = Floor(store).settle(succeed(held))
    finally:
        event.remove(engine, "after_cursor_execute", executed)
    assert settled.answer is Answer.STALE
    assert not waiting, f"no statement had {after} in it"


def test_a_job_that_dies_while_it_is_looked_for(store, floor: Floor, rows: Rows, held: ClaimedJob):
    """The look among the dead is over, that among the living is still to come."""
    floor.resurrect(held.uuid)
    settle_late(store, held, "FOR UPDATE OF jobs_dlq", lambda: floor.ask(Verb.ISOLATE, held.uuid))
    assert floor.spot(held.uuid) is Spot.DLQ
    assert [line.kind for line in rows.ledger(held.uuid)].count("late_success") == 1
    floor.kept()


def beside_the_note(store: SqlStore, held: ClaimedJob, url: str, action: Callable[[], object]) -> None:
    """Begin ``action`` when the note is written and not committed; go on when it waits for a lock, or is over."""
    beside = threading.Thread(target=action)
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    def begin() -> None:
        beside.start()
        with psycopg.connect(url, autocommit=True) as admin:
            until(lambda: not beside.is_alive() or admin.execute(waits).fetchone())

    settle_late(store, held, "INSERT INTO redrive.job_ledger", begin)
    beside.join()


def test_a_purge_waits_for_the_note_and_removes_it(store, floor: Floor, rows: Rows, held: ClaimedJob, shared_postgres):
    beside_the_note(store, held, shared_postgres, lambda: floor.ask(Verb.PURGE, held.uuid))
    assert floor.spot(held.uuid) is Spot.NOWHERE
    assert rows.ledger(held.uuid) == []
    floor.kept()


def test_what_is_said_twice_at_once_is_noted_once(store, floor: Floor, rows: Rows, held: ClaimedJob, shared_postgres):
    """The answer was lost, and the worker says it again while the first is still under way."""
    beside_the_note(store, held, shared_postgres, lambda: floor.settle(succeed(held)))
    assert [line.kind for line in rows.ledger(held.uuid)] == ["zombie", "late_success"]
    floor.kept()
