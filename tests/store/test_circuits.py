"""Circuits in the database: what claims pass by, permits over all workers, burials, resets; on both databases."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from redrive.domain.circuit import Breaker, CircuitState, Said, Seen
from redrive.domain.errors import InvalidField, NotFound
from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Release
from redrive.domain.states import Spot
from redrive.store.port import ClaimRequest, Pair, Probing, QueueChange
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import jobs_hot
from redrive.store.sql.tables_later import circuits

from .make import OTHER, QUEUE, TYPE, Floor, bury, draft, job, kind, pair, retry, succeed, worker
from .rows import Rows

NAME, FREE = "payments", "free.v1"
BREAKER = Breaker(NAME, failures=2, open_for=3600, probes=2)
GUARDED = ((TYPE, NAME),)
CLOCKS = ("opened_at", "changed_at", "probe_at", "swept_at")


@pytest.fixture
def floor(store: SqlStore) -> Floor:
    store.register(worker("w1", queues=(QUEUE, OTHER), types=(kind(breaker=BREAKER.spec), kind(FREE))))
    return Floor(store)


class Circuits:
    """The steps of a test in a word each."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.rows = Rows(store)

    def tell(self, *ends: Seen, breaker: Breaker = BREAKER) -> CircuitState:
        return self.store.observe(NAME, breaker, ends)[1].state

    def open(self, why: str = "") -> None:
        assert self.tell(*[Seen((b"x" * 16, 1), Said.FAILED, 0.0, why)] * 2) is CircuitState.OPEN

    def later(self, seconds: float) -> None:
        """As if so much time had passed for the circuit."""
        (row,) = self.rows.all(select(circuits).where(circuits.c.name == NAME))
        moved = {name: at - timedelta(seconds=seconds) for name in CLOCKS if (at := getattr(row, name)) is not None}
        self.rows.run(update(circuits).where(circuits.c.name == NAME).values(**moved))

    def due(self) -> None:
        """Open, and its time is over."""
        self.open()
        self.later(3600)

    def probe(
        self, limit: int = 10, *, queues: tuple[str, ...] = (QUEUE,), who: str = "w1", breaker: Breaker = BREAKER
    ) -> Probing:
        return self.store.probe(NAME, breaker, ClaimRequest(who, queues, limit, (TYPE,)))

    def permits(self) -> set[Pair]:
        """Those in force."""
        return set(self.store.circuit_states([NAME])[1][NAME].permits)

    def claim(self, limit: int = 10, types: Sequence[str] = (TYPE, FREE), queues: tuple[str, ...] = (QUEUE,)) -> Any:
        return self.store.claim(ClaimRequest("w1", queues, limit, tuple(types), GUARDED))


@pytest.fixture
def circuit(store: SqlStore, floor: Floor) -> Circuits:
    return Circuits(store)


def said(run: ClaimedJob, word: Said) -> Seen:
    return Seen(pair(run), word, 0.0)


# -- what is passed by -------------------------------------------------------------------------------------------------


def test_a_claim_passes_by_what_an_open_circuit_blocks_and_changes_no_row(circuit: Circuits, floor: Floor, rows: Rows):
    blocked, free = [floor.one(priority=50) for _ in range(5)], floor.one(type=FREE)
    circuit.open()
    before = rows.all(select(jobs_hot).where(jobs_hot.c.id.in_(blocked)).order_by(jobs_hot.c.id))
    (got,) = circuit.claim()
    assert (got.uuid, got.started) == (free, True), "what stands behind is reached"
    for _ in range(20):
        assert circuit.claim() == []
    assert circuit.probe().jobs == []
    assert rows.all(select(jobs_hot).where(jobs_hot.c.id.in_(blocked)).order_by(jobs_hot.c.id)) == before
    assert {floor.spot(one) for one in blocked} == {Spot.PENDING}


@pytest.mark.parametrize("half_open", [False, True])
def test_a_start_leaves_out_what_an_open_circuit_blocks(circuit: Circuits, floor: Floor, half_open: bool):
    """The job was fetched while it was closed, and waited in its worker for a slot."""
    held, free = floor.fetched(), floor.fetched(type=FREE)
    if half_open:
        circuit.due()
        floor.one()
        assert len(circuit.probe(1).jobs) == 1
    else:
        circuit.open()
    pairs = [pair(held), pair(free)]
    assert circuit.store.start((QUEUE,), pairs, GUARDED) == {pair(free)}
    assert (floor.spot(held.uuid), floor.head(held.uuid).attempt) == (Spot.FETCHED, 0)
    circuit.store.give_back([Release(*pair(held))])
    circuit.store.reset_circuit(NAME, draft("reset-circuit"))
    assert [job.uuid for job in circuit.claim()] == [held.uuid]


def test_while_half_open_only_probes_start(circuit: Circuits, floor: Floor):
    floor.accept(*(job() for _ in range(5)))
    circuit.due()
    assert len(circuit.probe(1).jobs) == 1
    assert circuit.claim() == []


def test_a_closed_circuit_is_in_nobodys_way(circuit: Circuits, floor: Floor):
    one = floor.one()
    assert circuit.tell(Seen((b"x" * 16, 1), Said.FAILED, 0.0)) is CircuitState.CLOSED
    assert circuit.probe().jobs == [], "there are no probes of a closed circuit"
    (got,) = circuit.claim()
    assert (got.uuid, got.started) == (one, True)


# -- permits -----------------------------------------------------------------------------------------------------------


def test_probes_are_claimed_and_started_up_to_the_permits(circuit: Circuits, floor: Floor):
    floor.accept(*(job() for _ in range(5)), job(type=FREE, priority=90))
    circuit.due()
    answer = circuit.probe()
    assert [(job.type, job.started, job.attempt) for job in answer.jobs] == [(TYPE, True, 1)] * 2
    assert answer.circuit.state is CircuitState.HALF_OPEN
    assert circuit.permits() == {pair(job) for job in answer.jobs}
    assert circuit.probe(who="w2").jobs == []
    assert circuit.probe(breaker=Breaker(NAME, probes=3)).jobs != [], "another build may allow more"


def test_nothing_waiting_leaves_it_open_and_takes_no_lock(circuit: Circuits, monkeypatch: pytest.MonkeyPatch):
    circuit.due()
    monkeypatch.setattr(circuit.store._db, "write", None)
    answer = circuit.probe()
    assert (answer.circuit.state, answer.jobs) == (CircuitState.OPEN, [])


def test_a_paused_queue_gives_no_probes_and_uses_no_permit(circuit: Circuits, floor: Floor):
    floor.one()
    circuit.due()
    circuit.store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
    assert circuit.probe().jobs == []
    assert circuit.permits() == set()
    circuit.store.set_queue(QUEUE, QueueChange(paused=False), draft("resume"), version=None)
    assert len(circuit.probe().jobs) == 1


def test_a_clock_that_was_set_back_keeps_nothing_open(circuit: Circuits, floor: Floor):
    """By two hours: what was stamped before lies in the future now."""
    floor.accept(*(job() for _ in range(3)))
    circuit.open()
    circuit.later(-7200)
    first, second = circuit.probe().jobs
    assert circuit.tell(said(first, Said.WELL), said(second, Said.WELL)) is CircuitState.CLOSED
    assert len(circuit.claim()) == 1


def ways() -> dict[str, Callable[[Floor, ClaimedJob], object]]:
    def vanished(floor: Floor, job: ClaimedJob) -> None:
        Rows(floor.store).silent(job.uuid)  # type: ignore[arg-type]
        rescued = floor.store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)
        assert [one.id for one in rescued] == [job.uuid]

    return {
        "success": lambda floor, job: floor.settle(succeed(job)),
        "retry": lambda floor, job: floor.settle(retry(job, delay=3600)),
        "burial": lambda floor, job: floor.settle(bury(job)),
        "an expired lease": vanished,
    }


@pytest.mark.parametrize("way", ways())
def test_a_permit_is_given_back_however_its_lease_ends(circuit: Circuits, floor: Floor, way: str):
    """Also when nobody says so: user code never ran, or its worker is gone."""
    floor.accept(*(job() for _ in range(4)))
    circuit.due()
    first, second = circuit.probe().jobs
    ways()[way](floor, first)
    assert circuit.permits() == {pair(second)}
    (third,) = circuit.probe().jobs
    assert circuit.permits() == {pair(second), pair(third)}


def test_a_probe_that_says_nothing_gives_its_permit_back(circuit: Circuits, floor: Floor):
    """Its payload did not bind, say: the handler was never entered."""
    floor.accept(*(job() for _ in range(3)))
    circuit.due()
    first, _ = circuit.probe().jobs
    assert circuit.tell(said(first, Said.NOTHING)) is CircuitState.HALF_OPEN
    assert len(circuit.probe().jobs) == 1


def test_successes_of_probes_close_it_and_a_failure_opens_it(circuit: Circuits, floor: Floor):
    floor.accept(*(job() for _ in range(9)))
    circuit.due()
    one, two = circuit.probe().jobs
    assert circuit.tell(said(one, Said.WELL)) is CircuitState.HALF_OPEN
    assert circuit.tell(said(two, Said.FAILED)) is CircuitState.OPEN
    assert circuit.probe().jobs == []
    circuit.later(3600)
    one, two = circuit.probe().jobs
    assert circuit.tell(said(one, Said.WELL)) is CircuitState.HALF_OPEN
    assert circuit.tell(said(one, Said.WELL)) is CircuitState.HALF_OPEN, "told twice it counts once"
    assert circuit.tell(said(two, Said.WELL)) is CircuitState.CLOSED
    assert len(circuit.claim()) == 5


def test_workers_that_race_get_no_more_permits_than_allowed(circuit: Circuits, floor: Floor, url: str):
    """Each holds what it got: over all of them there are two at any moment, and nobody is left out."""
    floor.accept(*(job() for _ in range(40)))
    circuit.due()
    lock, running, most, done = threading.Lock(), set[UUID](), [0], [0]

    def race(who: str) -> None:
        store = open_store(url)
        try:
            while done[0] < 30:
                for job in store.probe(NAME, BREAKER, ClaimRequest(who, (QUEUE,), 10, (TYPE,))).jobs:
                    with lock:
                        running.add(job.uuid)
                        most[0] = max(most[0], len(running))
                    with lock:
                        running.discard(job.uuid)
                        done[0] += 1
                    store.observe(NAME, BREAKER, [said(job, Said.NOTHING)])
                    store.settle([succeed(job)], worker_id=who, build="b1", slot=1)
        finally:
            store.close()

    with ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(race, f"w{number}") for number in range(4)]:
            ended.result(60)
    assert 1 <= most[0] <= 2
    floor.kept()


@pytest.mark.slow
def test_two_probes_at_once_are_judged_one_after_the_other(
    circuit: Circuits, floor: Floor, monkeypatch: pytest.MonkeyPatch
):
    """The second reads the circuit when the first has given its permits, not before."""
    floor.accept(*(job() for _ in range(9)))
    circuit.due()
    hot: Any = circuit.store._db.hot
    real, inside, claims = hot.claim_in, threading.Event(), list[int]()

    def claim_in(connection: object, request: ClaimRequest) -> list[ClaimedJob]:
        claims.append(request.limit)
        if len(claims) == 1:
            second = pool.submit(circuit.probe, who="w2")
            answers.append(second)
            inside.wait(0.5)  # not set where the second waits for its turn
        else:
            inside.set()
        got: list[ClaimedJob] = real(connection, request)
        return got

    monkeypatch.setattr(hot, "claim_in", claim_in)
    answers: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        assert len(circuit.probe().jobs) == 2
        assert answers[0].result(60).jobs == []
    assert claims == [2]


# -- lifetimes ---------------------------------------------------------------------------------------------------------


def kept_off(circuit: Circuits, *, every: float = 0.0, max_age: float = 100.0) -> int:
    return circuit.store.bury_kept_off(NAME, {TYPE: max_age}, every=every, worker_id="w1", build="b1", slot=1)


def test_a_lifetime_that_ended_behind_it_is_buried(circuit: Circuits, floor: Floor, rows: Rows):
    fresh, ended, before, other = floor.one(), floor.one(tags=("vip",)), floor.one(), floor.one(type=FREE)
    waits = floor.later(50)
    circuit.open("ConnectionError: refused")
    circuit.later(60)
    for one, seconds in ((ended, 150.0), (other, 150.0), (before, 170.0), (fresh, 40.0), (waits, 150.0)):
        rows.earlier(one, "life_started_at", seconds)
    assert kept_off(circuit) == 1
    record = circuit.store.find(ended)
    assert record is not None
    head, (line,) = record.head, record.ledger
    assert (head.spot, head.reason, head.attempt, head.spent) == (Spot.DLQ, "circuit_open", 0, 0)
    assert head.error_message is not None
    assert head.error_message.startswith("its lifetime ended while circuit payments kept it off, since 20")
    assert head.error_message.endswith(" UTC: 2 failures in a row, the last: ConnectionError: refused")
    assert (line.kind, line.reason, line.attempt) == ("failed", "circuit_open", 0)
    assert {floor.spot(one) for one in (fresh, before, other)} == {Spot.PENDING}, "it ended before, or not at all"
    assert floor.spot(waits) is Spot.SCHEDULED
    assert rows.totals(QUEUE) == {"failed": 1}
    rows.earlier(fresh, "life_started_at", 100.0)
    circuit.later(1)
    assert kept_off(circuit) == 1
    assert circuit.store.head(fresh).incident_id == head.incident_id, "one cause, whenever it opened"  # type: ignore[union-attr]
    floor.kept()
    assert [answer.ok for answer in floor.resurrect(ended)] == [True]
    assert kept_off(circuit) == 0


def test_a_closed_circuit_buries_nothing(circuit: Circuits, floor: Floor, rows: Rows):
    one = floor.one()
    circuit.open()
    circuit.later(60)
    rows.earlier(one, "life_started_at", 150.0)
    circuit.store.reset_circuit(NAME, draft("reset-circuit"))
    assert kept_off(circuit) == 0
    assert floor.spot(one) is Spot.PENDING


def test_one_worker_looks_at_a_time(circuit: Circuits, floor: Floor, rows: Rows):
    one, two = floor.one(), floor.one()
    circuit.open()
    circuit.later(60)
    rows.earlier(one, "life_started_at", 150.0)
    assert kept_off(circuit, every=10) == 1
    rows.earlier(two, "life_started_at", 150.0)
    assert kept_off(circuit, every=10) == 0, "somebody has looked just now"
    circuit.later(10)
    assert kept_off(circuit, every=10) == 1
    rows.earlier(floor.one(), "life_started_at", 150.0)
    rows.run(update(circuits).values(swept_at=circuit.store.now() + timedelta(hours=1)))
    assert kept_off(circuit, every=10) == 1, "the clock was set back"


# -- people ------------------------------------------------------------------------------------------------------------


def test_a_worker_announces_its_circuits(circuit: Circuits, store: SqlStore):
    (shown,) = store.circuits()
    assert (shown.name, shown.state, shown.types) == (NAME, CircuitState.CLOSED, (TYPE,))
    assert shown.breaker == {"name": NAME, "failures": 2, "open_for": 3600.0, "probes": 2}
    assert (shown.opened_for, shown.probe_in, shown.probing, shown.reason) == (None, None, 0, None)
    assert {view.type: view.breaker for view in store.types()} == {TYPE: BREAKER.spec, FREE: None}
    circuit.open("ConnectionError: refused")
    store.register(worker("w2", types=(kind(breaker=BREAKER.spec),)))
    (shown,) = store.circuits()
    assert (shown.state, shown.failures, shown.version) == (CircuitState.OPEN, 2, 2), "another worker changes nothing"
    assert shown.opened_for is not None
    assert shown.probe_in is not None
    assert (shown.opened_for < 60, 3500 < shown.probe_in <= 3600) == (True, True)


def test_a_reset_is_audited_and_lets_everything_through(circuit: Circuits, floor: Floor):
    floor.accept(*(job() for _ in range(5)))
    circuit.due()
    first, _ = circuit.probe().jobs
    shown = circuit.store.reset_circuit(NAME, draft("reset-circuit", "the provider is back"))
    assert (shown.state, shown.failures, shown.probing) == (CircuitState.CLOSED, 0, 0)
    assert shown.reason == "reset by ann@example.com: the provider is back"
    (entry,) = circuit.store.audit_entries(target=f"circuit {NAME}")
    assert (entry.action, entry.result, entry.note) == ("reset-circuit", "reset", "the provider is back")
    assert entry.details["before"] == {"state": "half_open", "failures": 2, "reason": "2 failures in a row, the last"}
    assert len(circuit.claim()) == 3
    assert circuit.tell(said(first, Said.FAILED)) is CircuitState.CLOSED
    shown = circuit.store.reset_circuit(NAME, draft("reset-circuit"))
    assert (shown.failures, len(circuit.store.audit_entries())) == (0, 2), "failures in a row are something to forget"
    circuit.store.reset_circuit(NAME, draft("reset-circuit"))
    assert len(circuit.store.audit_entries()) == 2, "nothing to do is no action"


def test_a_reset_of_what_is_not_there(circuit: Circuits):
    with pytest.raises(NotFound, match="circuit"):
        circuit.store.reset_circuit("other", draft("reset-circuit"))
    with pytest.raises(InvalidField):
        circuit.store.reset_circuit("no spaces", draft("reset-circuit"))


def test_a_circuit_that_somebody_deleted_comes_back(circuit: Circuits, rows: Rows, floor: Floor):
    rows.remove(circuits)
    assert circuit.store.circuit_states([NAME])[1] == {}
    floor.one()
    assert len(circuit.claim()) == 1
    circuit.open()
    assert [one.name for one in circuit.store.circuits()] == [NAME]
