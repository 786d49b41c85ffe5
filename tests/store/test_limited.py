"""Limits of queues: what claims and starts take under them, when they change, and what operators see."""

import math
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import func, select

from redrive.domain.circuit import Breaker, Said, Seen
from redrive.domain.errors import InvalidField, Unavailable
from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Release
from redrive.domain.states import Spot, Verb
from redrive.store.port import ClaimRequest, QueueChange, QueueInfo
from redrive.store.sql import limited
from redrive.store.sql.limited import SOON
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import jobs_hot, queues

from .faults import faulty
from .make import ACTOR, OTHER, QUEUE, TYPE, Floor, bury, draft, job, pair, succeed, worker
from .rows import Rows

BOTH_QUEUES = (QUEUE, OTHER)
STRANGE = "nobody.knows.v1"


def limit(store: SqlStore, name: str = QUEUE, **change) -> QueueInfo:
    return store.set_queue(name, QueueChange(**change), draft("set-queue"), version=None)


def info(store: SqlStore, name: str = QUEUE) -> QueueInfo:
    return next(queue for queue in store.queues() if queue.name == name)


def later(rows: Rows, seconds: float, name: str = QUEUE) -> None:
    """As if so much time had passed for the queue's rate."""
    (tat,) = rows.all(queues.select().with_only_columns(queues.c.rate_tat).where(queues.c.name == name))[0]
    rows.run(queues.update().where(queues.c.name == name).values(rate_tat=tat - timedelta(seconds=seconds)))


def back(store: SqlStore, **but) -> float | None:
    return store.held_back(ClaimRequest("w1", BOTH_QUEUES, 9, (TYPE,), **but))


# -- max_running -------------------------------------------------------------------------------------------------------


def test_no_more_are_taken_than_may_run(store, floor: Floor):
    floor.accept(*(job() for _ in range(10)))
    limit(store, max_running=3)
    first = floor.take(2)
    second = floor.take(9, who="w2")
    assert (len(first), len(second), floor.take(9)) == (2, 1, [])
    assert all(held.started and held.attempt == 1 for held in first + second)
    floor.settle(succeed(first[0]), bury(first[1]))
    assert len(floor.take(9)) == 2
    assert floor.take(9) == []
    floor.kept()


def test_fetched_jobs_count_and_make_room_when_they_are_given_back(store, floor: Floor):
    floor.accept(*(job(type=STRANGE) for _ in range(5)))
    limit(store, max_running=2)
    held = floor.take(9)
    assert [one.started for one in held] == [False, False]
    assert floor.take(9) == []
    store.give_back([Release(held[0].id, held[0].lease)])
    assert len(floor.take(9)) == 1


@pytest.mark.parametrize("way", ["rescue", "cancel", "isolate", "succeed"])
def test_every_way_out_makes_room(store, floor: Floor, rows: Rows, way: str):
    floor.accept(*(job() for _ in range(4)))
    limit(store, max_running=1)
    (held,) = floor.fetch() if way == "cancel" else floor.take()
    assert floor.take() == []
    match way:
        case "rescue":
            rows.silent(held.uuid)
            store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)
        case "cancel":
            floor.ask(Verb.CANCEL, held.uuid)
        case "isolate":  # not of what runs
            assert not floor.ask(Verb.ISOLATE, held.uuid)[0].ok
            return
        case _:
            floor.settle(succeed(held))
    assert len(floor.take(9)) == 1
    assert floor.take(9) == []


def test_what_is_resurrected_waits_for_room(store, floor: Floor):
    dead = [floor.dead() for _ in range(5)]
    running = floor.running()
    limit(store, max_running=2)
    floor.resurrect(*dead)
    assert len(floor.take(9)) == 1
    assert floor.take(9) == []
    floor.settle(succeed(running))
    assert len(floor.take(9)) == 1


def test_a_lower_limit_ends_nothing_and_a_higher_one_acts_on_the_next_claim(store, floor: Floor):
    floor.accept(*(job() for _ in range(20)))
    held = floor.take(5)
    assert limit(store, max_running=2).max_running == 2
    assert [floor.spot(one.uuid) for one in held] == [Spot.PROCESSING] * 5
    assert floor.take(9) == []
    floor.settle(*(succeed(one) for one in held[:4]))
    assert len(floor.take(9)) == 1
    limit(store, max_running=4)
    assert len(floor.take(9)) == 2
    limit(store, clear=("max_running",))
    assert len(floor.take(9)) == 9


def test_what_was_fetched_before_the_limit_starts_within_it(store, floor: Floor):
    floor.accept(*(job() for _ in range(6)))
    held = floor.fetch(6)
    limit(store, max_running=2)
    assert store.start((QUEUE,), [pair(one) for one in reversed(held)]) == {pair(held[0]), pair(held[1])}
    assert store.start((QUEUE,), [pair(one) for one in held]) == {pair(held[0]), pair(held[1])}, "asked again"
    assert [floor.spot(one.uuid) for one in held[2:]] == [Spot.FETCHED] * 4
    assert floor.take(9) == []


def test_a_start_under_a_limit_needs_the_lease_and_counts_once(store, floor: Floor, rows: Rows):
    floor.accept(job())
    (held,) = floor.fetch(1)
    limit(store, max_running=3)
    job_id, lease = pair(held)
    assert store.start((QUEUE,), [(job_id, lease + 1)]) == frozenset()
    assert floor.spot(held.uuid) is Spot.FETCHED
    assert store.start((QUEUE,), [pair(held)]) == {pair(held)}
    db = store._db
    again = db.write(lambda connection: limited.start(db, connection, {pair(held)}, ()))
    assert (again, rows.row(held.uuid).attempt) == (frozenset(), 1), "another call has been quicker"


def test_order_and_pause_hold_under_a_limit_as_well(store, floor: Floor, rows: Rows):
    limit(store, max_running=50)
    usual, least, most = floor.one(), floor.one(priority=0), floor.one(priority=100)
    early = floor.later()
    rows.earlier(early, "due_at", 7200)
    store.promote()
    store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
    assert floor.take(9) == []
    store.set_queue(QUEUE, QueueChange(paused=False), draft("resume"), version=None)
    held = floor.fetch(3)
    assert [one.uuid for one in held] == [most, early, usual]
    store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
    assert store.start((QUEUE,), [pair(held[0])]) == frozenset()
    store.set_queue(QUEUE, QueueChange(paused=False), draft("resume"), version=None)
    assert store.start((QUEUE,), [pair(held[0])]) == {pair(held[0])}
    assert [one.uuid for one in floor.take(9)] == [least]


@pytest.mark.parametrize("limited", [QUEUE, OTHER])
def test_limited_and_other_queues_come_in_the_order_given(store, floor: Floor, limited: str):
    third = "third"
    store.register(worker(queues=(*BOTH_QUEUES, third)))
    floor.accept(*(job(queue=queue) for queue in (third, OTHER, QUEUE) for _ in range(3)))
    limit(store, limited, max_running=2)
    every = (QUEUE, OTHER, third)
    wanted = [queue for queue in every for _ in range(2 if queue == limited else 3)]
    assert floor.take(1, queues=("empty",)) == []  # who finds nothing looks for limits: now this one is known
    floor.settle(*(succeed(one) for one in floor.take(1, queues=every)))
    floor.one(queue=QUEUE)
    assert [one.queue for one in floor.take(7, queues=every)] == wanted[:7]
    assert [one.queue for one in floor.take(7, queues=every)] == wanted[7:]


def test_a_limit_of_one_queue_is_none_of_another(store, floor: Floor):
    floor.accept(*(job(queue=queue) for queue in BOTH_QUEUES for _ in range(5)))
    limit(store, max_running=1)
    assert [one.queue for one in floor.take(9, queues=BOTH_QUEUES)] == [QUEUE, *[OTHER] * 5]


def test_a_claim_under_a_limit_answers_with_the_whole_job(store, floor: Floor, rows: Rows):
    given = job(b"\x00\x01", content_type="x/y", priority=42, tags=("t",), max_attempts=9, trace_context="tc")
    floor.accept(given)
    rows.earlier(given.id, "life_started_at", 1000)
    limit(store, max_running=1)
    before = store.now()
    (held,) = floor.take()
    assert (held.uuid, held.type, held.queue, held.payload) == (given.id, TYPE, QUEUE, given.payload)
    assert (held.content_type, held.priority, held.max_attempts, held.trace_context) == ("x/y", 42, 9, "tc")
    assert (held.life, held.revision, held.spent, held.attempt, held.unserved) == (1, 1, 0, 1, None)
    assert held.marks == '{"tags":["t"],"labels":{}}'
    assert 1000 <= held.age < 1005
    row = rows.row(given.id)
    assert (row.lease, row.worker_id, row.version, row.attempt) == (held.lease, "w1", 2, 1)
    assert before <= row.heartbeat_at == row.started_at


# -- rate --------------------------------------------------------------------------------------------------------------


def test_starts_use_a_rate_up_and_time_gives_it_back(store, floor: Floor, rows: Rows):
    floor.accept(*(job() for _ in range(30)))
    assert limit(store, rate="240/minute").rate == "240/min"
    assert len(floor.take(9)) == 4, "what is due in a second"
    assert floor.take(9, who="w2") == [], "over all workers"
    later(rows, 0.25)
    assert len(floor.take(9)) == 1
    later(rows, 3600)
    assert len(floor.take(9)) == 4, "a time without work is worth no more"
    limit(store, clear=("rate",))
    assert len(floor.take(9)) == 9


def test_only_starts_use_a_rate_up(store, floor: Floor):
    floor.accept(*(job() for _ in range(9)))
    limit(store, rate="3/s")
    fetched = floor.fetch(2)
    assert len(floor.take(9)) == 1, "fetched jobs have a claim on it"
    store.give_back([Release(*pair(fetched[0]))])
    assert len(floor.fetch(9)) == 1
    assert store.start((QUEUE,), [pair(fetched[1])]) == {pair(fetched[1])}


def test_what_was_fetched_before_the_rate_starts_within_it(store, floor: Floor, rows: Rows):
    floor.accept(*(job() for _ in range(6)))
    held = floor.fetch(6)
    limit(store, rate="2/min")
    assert store.start((QUEUE,), [pair(one) for one in held]) == {pair(held[0])}
    assert store.start((QUEUE,), [pair(one) for one in held[1:]]) == frozenset()
    later(rows, 30)
    assert store.start((QUEUE,), [pair(one) for one in held[1:]]) == {pair(held[1])}


def test_both_limits_hold(store, floor: Floor, rows: Rows):
    floor.accept(*(job() for _ in range(20)))
    limit(store, rate="5/s", max_running=2)
    held = floor.take(9)
    assert len(held) == 2
    floor.settle(*(succeed(one) for one in held))
    held = floor.take(9)
    floor.settle(*(succeed(one) for one in held))
    assert (len(held), len(floor.take(9))) == (2, 1)
    later(rows, 3600)
    assert len(floor.take(9)) == 1


# -- why nothing comes -------------------------------------------------------------------------------------------------


def test_a_worker_is_told_for_how_long_a_limit_holds_jobs_back(store, floor: Floor, rows: Rows):
    floor.accept(*(job() for _ in range(3)))
    assert back(store) is None
    limit(store, rate="1/min")
    (held,) = floor.take(9, queues=BOTH_QUEUES)
    wait = back(store)
    assert wait is not None
    assert 59 < wait <= 60
    limit(store, max_running=1)
    assert back(store) == math.inf, "until one ends"
    floor.settle(succeed(held))
    later(rows, 61)
    wait = back(store)
    assert wait is not None
    assert 0 < wait < 0.1, "nothing but a moment"
    floor.take()
    floor.ask(Verb.CANCEL, *(head for head in rows.places() if floor.spot(head) is Spot.PENDING))
    assert back(store) is None, "there is nothing to hold back"


def test_what_others_have_fetched_holds_back_what_the_rate_would_let_start(store, floor: Floor, rows: Rows):
    """Else a worker with free slots would look for it again and again, while another has no slot for it."""
    floor.accept(*(job() for _ in range(4)))
    limit(store, rate="1/min")
    (held,) = floor.fetch(9)
    assert floor.take(9, who="w2") == []
    assert back(store) == math.inf, "until it starts or is given back"
    store.give_back([Release(*pair(held))])
    assert back(store) == SOON
    limit(store, rate="2/s")
    (held,) = floor.fetch(1)
    assert back(store) == SOON, "there is room for one beside it"
    assert floor.take(1, who="w2")
    wait = back(store)
    assert wait is not None
    assert SOON < wait <= 0.5, "for the next but one"
    assert store.start((QUEUE,), [pair(held)])


def test_what_a_circuit_keeps_off_is_not_held_back_by_a_limit(store, floor: Floor):
    floor.accept(*(job() for _ in range(3)))
    limit(store, max_running=2)
    held = floor.take(1)
    breaker = Breaker("post", failures=1)
    store.observe("post", breaker, [Seen(pair(held[0]), Said.FAILED, 0.1, "away")])
    guarded = ((TYPE, "post"),)
    assert store.claim(ClaimRequest("w1", (QUEUE,), 9, (TYPE,), guarded)) == []
    assert back(store, guarded=guarded) is None
    assert store.start((QUEUE,), [pair(one) for one in floor.fetch(1)], guarded) == frozenset()


def test_a_queue_says_what_holds_it_back(store, floor: Floor, rows: Rows):
    assert info(store).held_back == ()
    floor.accept(*(job() for _ in range(5)))
    limit(store, max_running=2, rate="2/min")
    assert info(store).held_back == ()
    assert len(floor.take(9)) == 1
    (said,) = info(store).held_back
    assert said.startswith("rate 2/min: next in ")
    assert 29 < info(store).next_start <= 30
    later(rows, 60)
    floor.take(9)
    both = info(store).held_back
    assert both[0] == "2 of 2 running"
    assert both[1].startswith("rate 2/min: next in ")
    store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
    assert info(store).held_back[0] == "paused"
    floor.ask(Verb.CANCEL, *(one for one in rows.places() if floor.spot(one) is Spot.PENDING))
    assert info(store).held_back == (), "nothing waits"


# -- settings ----------------------------------------------------------------------------------------------------------


def test_limits_are_audited_and_stored_in_one_spelling(store, floor: Floor):
    changed = limit(store, max_running=5, rate=" 10 / Second")
    assert (changed.max_running, changed.rate, changed.version) == (5, "10/s", 1)
    limit(store, rate="10/sec")
    limit(store, clear=("max_running", "rate"))
    after, before = store.audit_entries()
    assert before.details["after"] == {"max_running": 5, "rate": "10/s"}
    assert after.details == {
        "before": {"max_running": 5, "rate": "10/s"}, "after": {"max_running": None, "rate": None}
    }  # fmt: skip
    assert after.actor == ACTOR


@pytest.mark.parametrize("wrong", [{"max_running": 0}, {"rate": "fast"}])
def test_a_limit_that_is_none_is_refused_and_changes_nothing(store, floor: Floor, wrong):
    with pytest.raises(InvalidField, match=next(iter(wrong))):
        limit(store, **wrong)
    assert store.audit_entries() == []


# -- circuits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"max_running": 5}, {}])
@pytest.mark.parametrize("key", [None, "k"])
def test_probes_get_through_a_limit_and_a_lock_key(store, floor: Floor, rows: Rows, how, key):
    breaker = Breaker("post", failures=1, open_for=0.1)
    running = floor.running()
    store.observe("post", breaker, [Seen(pair(running), Said.FAILED, 0.1, "away")])
    floor.accept(*(job(lock_key=key) for _ in range(3)))
    if how:
        limit(store, **how)
    request = ClaimRequest("w1", (QUEUE,), 9, (TYPE,))
    answer = store.probe("post", breaker, request)
    while not answer.jobs:
        answer = store.probe("post", breaker, request)
    (probe,) = answer.jobs
    assert (probe.started, probe.attempt, floor.spot(probe.uuid)) == (True, 1, Spot.PROCESSING)
    assert answer.circuit.permits == ((probe.id, probe.lease),)
    floor.settle(succeed(probe))
    floor.kept()


@pytest.mark.parametrize("limited_queue", [None, QUEUE, OTHER])
def test_a_claim_that_fails_between_its_transactions_answers_with_what_it_has(store, url: str, limited_queue):
    """Those jobs are taken: unsaid, they would wait for their lease to expire."""
    if limited_queue:
        limit(store, limited_queue, max_running=5)
    own = open_store(url)
    faults, floor = faulty(own), Floor(own)
    own.register(worker(queues=BOTH_QUEUES))
    floor.accept(*(job(queue=queue) for queue in BOTH_QUEUES for _ in range(2)))
    taken = select(func.count()).where(jobs_hot.c.state == "taken")
    statement, said = 0, set[int]()
    while faults.struck or not statement:
        statement, faults.struck = statement + 1, False
        found: list[ClaimedJob] = []
        with suppress(Unavailable), faults.at(statement):
            found = own.claim(ClaimRequest("w1", BOTH_QUEUES, 9, (TYPE,)))
        assert Rows(store).all(taken)[0][0] == len(found)
        said.add(len(found))
        own.settle([succeed(held) for held in found], worker_id="w1", build="b1", slot=1)
        floor.accept(*(job(queue=held.queue) for held in found))
    floor.kept()
    own.close()
    assert {0, 4} <= said
