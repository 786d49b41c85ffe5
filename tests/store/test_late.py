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

from .make import Floor, succeed, worker
from .rows import Rows

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(postgres_store: SqlStore) -> SqlStore:
    postgres_store.register(worker())
    return postgres_store


@pytest.fixture
def floor(store: SqlStore) -> Floor:
    return Floor(store)


@pytest.fixture
def rows(store: SqlStore) -> Rows:
    return Rows(store)


def rescued(store: SqlStore) -> ClaimedJob:
    """A job that died as a zombie while its worker still believes that it runs it."""
    held = Floor(store).running()
    Rows(store).silent(held.uuid)
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


def test_a_job_that_dies_while_it_is_looked_for(store: SqlStore, floor: Floor, rows: Rows):
    """The look among the dead is over, that among the living is still to come."""
    held = rescued(store)
    floor.resurrect(held.uuid)
    settle_late(store, held, "FOR UPDATE OF jobs_dlq", lambda: floor.ask(Verb.ISOLATE, held.uuid))
    assert floor.spot(held.uuid) is Spot.DLQ
    assert [line.kind for line in rows.ledger(held.uuid)].count("late_success") == 1
    floor.kept()


def test_a_purge_waits_for_the_note_and_removes_it(store: SqlStore, floor: Floor, rows: Rows, shared_postgres: str):
    held = rescued(store)
    purge = threading.Thread(target=floor.ask, args=(Verb.PURGE, held.uuid))
    waits = (
        "SELECT 1 FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%jobs_dlq%'"
    )

    def begin() -> None:
        purge.start()
        with psycopg.connect(shared_postgres, autocommit=True) as admin:
            until(lambda: not purge.is_alive() or admin.execute(waits).fetchone())

    settle_late(store, held, "INSERT INTO redrive.job_ledger", begin)
    purge.join()
    assert floor.spot(held.uuid) is Spot.NOWHERE
    assert rows.ledger(held.uuid) == []
    floor.kept()


def test_one_that_says_it_twice_at_once_is_noted_once(store: SqlStore, floor: Floor, rows: Rows, shared_postgres: str):
    """Its answer was lost, and it says it again while the first is still under way."""
    held = rescued(store)
    again = threading.Thread(target=floor.settle, args=(succeed(held),))
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    def begin() -> None:
        again.start()
        with psycopg.connect(shared_postgres, autocommit=True) as admin:
            until(lambda: not again.is_alive() or admin.execute(waits).fetchone())

    settle_late(store, held, "INSERT INTO redrive.job_ledger", begin)
    again.join()
    assert [line.kind for line in rows.ledger(held.uuid)] == ["zombie", "late_success"]
    floor.kept()
