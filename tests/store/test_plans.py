"""Query plans: the hot statements use their index whatever the statistics say, lists theirs."""

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Engine, event

from redrive.domain.circuit import Breaker, Said, Seen
from redrive.domain.failures import Reason
from redrive.domain.filters import JobFilter, PageRequest, Sort
from redrive.domain.moves import Bury, Release, Retry, Succeed
from redrive.domain.states import HotState, Place
from redrive.store.port import ClaimRequest
from redrive.store.sql.postgres_sql import Texts
from redrive.store.sql.store import SqlStore, open_store

from .make import OTHER, QUEUE, TYPE, Floor, error, job, kind, worker

pytestmark = pytest.mark.slow

LEASE = 77
FILL = """
INSERT INTO redrive.jobs_hot (id, due_at, created_at, updated_at, life_started_at, queue, type, content_type, payload,
  state, lease, worker_id, heartbeat_at, started_at, priority)
SELECT gen_random_uuid(), now() + make_interval(secs => n % 1000 - 10), now(), now(), now(),
  CASE WHEN n % 3 = 0 THEN 'other' ELSE 'default' END, 'email.send.v1', 'application/json', '\\x7b7d', state,
  CASE state WHEN 'taken' THEN 77 END, CASE state WHEN 'taken' THEN 'w1' END,
  CASE state WHEN 'taken' THEN now() END, CASE WHEN state = 'taken' AND n % 2 = 0 THEN now() END, n % 100
FROM (SELECT n, CASE WHEN n <= 15000 THEN 'scheduled' WHEN n <= 19500 THEN 'pending' ELSE 'taken' END AS state
      FROM generate_series(1, 20000) n) s
"""

HOT = {
    # statement: (index it has to use on jobs_hot, parameters as SQL)
    "claim": ("ix_jobs_hot_claim", {"queues": "ARRAY['default','other']", "types": "ARRAY['email.send.v1']",
                                    "lease": "5", "worker": "'w'", "limit": "400"}),
    "start": ("pk_jobs_hot", {"queues": "ARRAY['default','other']", "ids": "{ids}", "leases": "{leases}"}),
    "claim_guarded": ("ix_jobs_hot_claim", {"queues": "ARRAY['default','other']", "types": "ARRAY['email.send.v1']",
                                            "lease": "5", "worker": "'w'", "limit": "400",
                                            "guarded": "ARRAY['pay.v1']", "circuits": "ARRAY['payments']"}),
    "start_guarded": ("pk_jobs_hot", {"queues": "ARRAY['default','other']", "ids": "{ids}", "leases": "{leases}",
                                      "guarded": "ARRAY['pay.v1']", "circuits": "ARRAY['payments']"}),
    "heartbeat": ("pk_jobs_hot", {"ids": "{ids}", "leases": "{leases}"}),
    "holding": ("pk_jobs_hot", {"ids": "{ids}", "leases": "{leases}"}),
    "progress": ("pk_jobs_hot", {"text": "'x'", "id": "{id}", "lease": "77"}),
    "succeed": ("pk_jobs_hot", {"ids": "{ids}", "leases": "{leases}", "ms": "{leases}", "results": "{results}",
                                "slot": "3"}),
    "promote": ("ix_jobs_hot_scheduled", {"limit": "1000"}),
    "next_due": ("ix_jobs_hot_scheduled", {}),
}  # fmt: skip
PLANNED_EACH_TIME = {"claim_only": HOT["claim"]}
"""Statements that are not prepared: they are sent on the connection of another transaction."""


class Database:
    """One PostgreSQL database whose statistics the test decides."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.run("ALTER TABLE redrive.jobs_hot SET (autovacuum_enabled = off)")
        self.run("INSERT INTO redrive.queues (name) VALUES ('default'), ('other')")

    def run(self, statement: str) -> None:
        self.connection.execute(statement)

    def rows(self, statement: str) -> list[Any]:
        return self.connection.execute(statement).fetchall()

    def state(self, name: str) -> None:
        """Fill the table, with statistics of the kind named."""
        match name:
            case "never analysed":
                self.run(FILL)
            case "full":
                self.run(FILL)
                self.run("ANALYZE redrive.jobs_hot")
            case "analysed empty":
                self.run("VACUUM ANALYZE redrive.jobs_hot")
                self.run(FILL)
            case "emptied":  # it was full of finished work when it was looked at, and of other work now
                self.run(FILL.replace("n <= 15000", "n <= 0").replace("n <= 19500", "n <= 20000"))
                self.run("DELETE FROM redrive.jobs_hot")
                self.run("VACUUM ANALYZE redrive.jobs_hot")
                self.run(FILL)

    def taken(self, number: int) -> list[UUID]:
        return [row[0] for row in self.rows(f"SELECT id FROM redrive.jobs_hot WHERE state = 'taken' LIMIT {number}")]


GUARDED = (("pay.v1", "payments"),)
STATES = ["never analysed", "full", "analysed empty", "emptied"]


@pytest.fixture
def database(new_postgres_url: str) -> Iterator[Database]:
    database = Database(new_postgres_url)
    yield database
    database.connection.close()


@pytest.fixture
def store(new_postgres_url: str) -> Iterator[SqlStore]:
    store = open_store(new_postgres_url)
    yield store
    store.close()


def steady(plan: str, index: str) -> None:
    """The plan reads the hot table through that index, and never as a whole."""
    assert "Seq Scan on jobs_hot" not in plan, plan
    assert index in plan, plan


def numbered(text: str) -> str:
    """The statement as the server gets it: parameters by number, in the order they are named first."""
    for number, name in enumerate(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)), 1):
        text = text.replace(f"%({name})s", f"${number}")
    return text


def arguments(database: Database, wanted: dict[str, str], text: str) -> str:
    """The statement's parameters in the order it names them first."""
    ids = database.taken(400)
    known = {
        "{ids}": "ARRAY[" + ",".join(f"'{one}'" for one in ids) + "]::uuid[]",
        "{leases}": f"array_fill({LEASE}::int8, ARRAY[{len(ids)}])",
        "{results}": f"array_fill(NULL::bytea, ARRAY[{len(ids)}])",
        "{id}": f"'{ids[0]}'::uuid",
    }
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    assert set(names) == set(wanted)
    return ", ".join(known.get(wanted[name], wanted[name]) for name in names)


@pytest.mark.parametrize("state", STATES)
def test_a_hot_statement_uses_its_index_whatever_the_statistics(database: Database, store: SqlStore, state: str):
    database.state(state)
    texts = Texts('"redrive"')
    with store._db.pool.connection() as hot:  # type: ignore[attr-defined]
        for name, (index, wanted) in (HOT | PLANNED_EACH_TIME).items():
            text = getattr(texts, name)
            hot.execute(f"PREPARE {name} AS {numbered(text)}")
            given = arguments(database, wanted, text)
            for mode in ("force_generic_plan", "force_custom_plan"):
                hot.execute(f"SET plan_cache_mode = {mode}")
                shown = hot.execute(f"EXPLAIN EXECUTE {name}" + (f"({given})" if given else "")).fetchall()
                steady("\n".join(row[0] for row in shown), index)


def exercise(store: SqlStore, ids: list[UUID]) -> None:
    """Every hot call of a worker, with these ids."""
    pairs = [(one.bytes, LEASE) for one in ids]
    store.claim(ClaimRequest("w1", (QUEUE, OTHER), 400, (TYPE,)))
    store.start((QUEUE, OTHER), pairs)
    store.claim(ClaimRequest("w1", (QUEUE, OTHER), 400, (TYPE,), GUARDED))
    store.start((QUEUE, OTHER), pairs, GUARDED)
    store.heartbeat(pairs, progress={pairs[0]: "x"})
    store.enqueue([job(due=timedelta(microseconds=1))])
    store.promote()
    store.settle([Succeed(id_, lease, 5) for id_, lease in pairs], worker_id="w1", build="b1", slot=1)


def test_a_worker_that_started_on_an_empty_table_keeps_no_plan_for_an_empty_table(database: Database, store: SqlStore):
    """PostgreSQL plans a prepared statement for good after five runs."""
    nobody = [UUID(int=n) for n in range(400)]
    store.register(worker(queues=(QUEUE, OTHER)))
    database.run("VACUUM ANALYZE redrive.jobs_hot")
    for _ in range(8):
        exercise(store, nobody)
    database.run(FILL)
    known = {getattr(Texts('"redrive"'), name).strip(): name for name in HOT}
    seen, kept = set(), 0
    with store._db.pool.connection() as hot:  # type: ignore[attr-defined]
        prepared = hot.execute("SELECT name, statement, generic_plans FROM pg_prepared_statements").fetchall()
        for named, text, generic in prepared:
            for original, name in known.items():
                if text.strip() != numbered(original):
                    continue
                given = arguments(database, HOT[name][1], original)
                shown = hot.execute(f'EXPLAIN EXECUTE "{named}"' + (f"({given})" if given else "")).fetchall()
                steady("\n".join(row[0] for row in shown), HOT[name][0])
                seen.add(name)
                kept += generic
    assert seen == set(HOT)
    assert kept > 0, "none of them had a plan that was kept: this test shows nothing"


class Overheard:
    """Statements that SQLAlchemy sends, with the plan the same connection makes for each."""

    def __init__(self, *engines: Engine) -> None:
        self.plans: list[tuple[str, str]] = []
        self._busy = False
        for engine in engines:
            event.listen(engine, "before_cursor_execute", self._listen)

    def _listen(self, connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if self._busy or not statement.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")):
            return
        given = parameters[0] if isinstance(parameters, list) else parameters
        with closing(connection.connection.driver_connection.cursor()) as own:
            prefix = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
            own.execute(prefix + statement, given)
            self.plans.append((statement, "\n".join(str(row[-1]) for row in own.fetchall())))

    def of(self, word: str) -> list[str]:
        found = [plan for statement, plan in self.plans if word in statement]
        assert found, word
        return found


@pytest.mark.parametrize("state", STATES)
def test_moves_by_id_and_the_look_of_a_rescue_use_their_index(database: Database, store: SqlStore, state: str):
    database.state(state)
    ids = [one.bytes for one in database.taken(400)]
    overheard = Overheard(store._db.engine, store._db._writer)  # type: ignore[attr-defined]
    store.rescue(zombie_timeout=3600, fetched_timeout=3600, rules=lambda _: None, slot=1)
    (look,) = overheard.of("LEFT OUTER JOIN")
    steady(look, "ix_jobs_hot_taken")
    database.run("UPDATE redrive.jobs_hot SET heartbeat_at = now() - interval '2 hours' WHERE priority = 7")
    store.rescue(zombie_timeout=3600, fetched_timeout=3600, rules=lambda _: None, slot=1)
    for plan in overheard.of("LEFT OUTER JOIN")[1:]:
        steady(plan, "ix_jobs_hot_taken")

    overheard.plans.clear()
    moves: list[Any] = [
        Retry(one, LEASE, 5, 1.0, 3, error()) if n % 2 else Bury(one, LEASE, 5, Reason.FATAL, error(), 3)
        for n, one in enumerate(ids)
    ]
    store.settle(moves, worker_id="w1", build="b1", slot=1)
    store.give_back([Release(one, LEASE) for one in ids])
    for statement, plan in overheard.plans:
        if re.search(r"(FROM|UPDATE) redrive\.jobs_hot", statement):
            steady(plan, "pk_jobs_hot")


@pytest.mark.parametrize("state", STATES)
def test_what_an_open_circuit_keeps_off_is_looked_for_by_index(database: Database, store: SqlStore, state: str):
    breaker = Breaker("payments", failures=1)
    store.register(worker(types=(kind("pay.v1", breaker=breaker.spec),)))
    store.observe("payments", breaker, [Seen((bytes(16), 1), Said.FAILED, 0.0)])
    database.run("UPDATE redrive.circuits SET probe_at = changed_at")
    database.state(state)
    overheard = Overheard(store._db.engine, store._db._writer)  # type: ignore[attr-defined]
    assert store.probe("payments", breaker, ClaimRequest("w1", (QUEUE,), 5, ("pay.v1",))).jobs == []
    store.bury_kept_off("payments", {"pay.v1": 60.0}, every=0, worker_id="w1", build="b1", slot=1)
    looks = overheard.of("LIMIT")
    assert len(looks) == 2
    for plan in looks:
        steady(plan, "ix_jobs_hot_claim")


def test_a_settle_is_planned_by_its_ids_in_a_table_that_drains(database: Database, store: SqlStore):
    """Statistics of a table that was full of taken rows, and is nearly empty."""
    database.run(FILL)
    database.run("ANALYZE redrive.jobs_hot")
    database.run("DELETE FROM redrive.jobs_hot WHERE priority > 3")
    ids = [one.bytes for one in database.taken(20)]
    overheard = Overheard(store._db.engine, store._db._writer)  # type: ignore[attr-defined]
    store.settle([Bury(one, LEASE, 5, Reason.FATAL, error(), 3) for one in ids], worker_id="w1", build="b1", slot=1)
    for plan in overheard.of("FOR UPDATE OF jobs_hot"):
        steady(plan, "pk_jobs_hot")


# -- lists -------------------------------------------------------------------------------------------------------------

LISTS: dict[str, tuple[JobFilter, Sort | None, str]] = {
    "dead": (JobFilter(cancelled=True), None, "ix_jobs_dlq_failed"),
    "dead by queue": (JobFilter(queue=OTHER), None, "ix_jobs_dlq_queue"),
    "dead by type": (JobFilter(type="rare.v1"), None, "ix_jobs_dlq_type"),
    "dead by reason": (JobFilter(reason=Reason.ZOMBIE), None, "ix_jobs_dlq_reason"),
    "dead by incident": (JobFilter(incident="a" * 16), None, "ix_jobs_dlq_incident"),
    "dead by tag": (JobFilter(tag="rare"), None, "ix_dead_marks_name"),
    "dead by label": (JobFilter(label=("customer", "7")), None, "ix_dead_marks_name"),
    "dead by creation": (JobFilter(), Sort.CREATED_AT, "pk_jobs_dlq"),
    "archived": (JobFilter(place=Place.ARCHIVE), None, "ix_jobs_archive_finished"),
    "archived by type": (JobFilter(place=Place.ARCHIVE, type="rare.v1"), None, "ix_jobs_archive_type"),
    "hot": (JobFilter(place=Place.HOT), None, "pk_jobs_hot"),
    "scheduled": (JobFilter(place=Place.HOT, state=HotState.SCHEDULED), Sort.DUE_AT, "ix_jobs_hot_scheduled"),
    "by key": (JobFilter(place=Place.HOT, type=TYPE, key="k"), None, "uq_jobs_hot_key"),
}


@pytest.fixture(scope="module")
def crowded(
    request: pytest.FixtureRequest, databases: Any, postgres_template: str, sqlite_template: Any
) -> dict[str, str]:
    return {}


def crowd(store: SqlStore) -> None:
    """A few thousand jobs in each place, by hand."""
    store.register(worker(queues=(QUEUE, OTHER)))
    floor = Floor(store)
    some = [job(labels={"customer": str(n)}, tags=("usual",)) for n in range(3000)]
    some += [job(queue=OTHER, type="rare.v1", tags=("rare",)) for _ in range(40)]
    store.enqueue(some)
    while held := floor.fetch(1000, queues=(QUEUE, OTHER), types=(TYPE, "rare.v1")):
        moves: list[Any] = []
        for n, one in enumerate(held):
            if n % 2:
                moves.append(Succeed(one.id, one.lease, 5))
            else:
                cause = ("a" if one.queue == OTHER else "b") * 16
                reason = Reason.ZOMBIE if one.queue == OTHER else (Reason.FATAL, Reason.CANCELLED)[n % 4 // 2]
                moves.append(Bury(one.id, one.lease, 5, reason, error(cause=cause), 3))
        floor.settle(*moves)
    store.enqueue([job(due=timedelta(seconds=60 + n), idempotency_key=f"k{n}") for n in range(1000)])


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_list_reads_its_index_and_sorts_nothing(request: pytest.FixtureRequest, kind: str):
    store = open_store(request.getfixturevalue(f"{kind}_url"))
    crowd(store)
    if kind == "postgres":
        with psycopg.connect(request.getfixturevalue("new_postgres_url"), autocommit=True) as connection:
            connection.execute("ANALYZE")
    else:
        store._db.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
    overheard = Overheard(store._db.engine)
    for name, (job_filter, sort, index) in LISTS.items():
        overheard.plans.clear()
        first = store.list_jobs(job_filter, PageRequest(10, None, sort))
        if first.next_cursor is not None:
            store.list_jobs(job_filter, PageRequest(10, first.next_cursor, sort))
        for _, plan in overheard.plans:
            if kind == "sqlite" and index.startswith("pk_"):
                index = "sqlite_autoindex_" + index.removeprefix("pk_")
            assert index in plan, f"{name}: {plan}"
            assert not re.search(r"Seq Scan on jobs_|SCAN jobs_\w+$", plan), f"{name}: {plan}"
            if name in ("dead", "archived", "hot", "dead by creation") or (kind, name) == ("sqlite", "dead by queue"):
                # Where few rows match, sorting them is as good.
                assert not re.search(r"Sort|TEMP B-TREE", plan), f"{name}: {plan}"
    store.close()
