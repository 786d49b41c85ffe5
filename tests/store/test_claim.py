"""Claim, start, release, put off: what a worker takes, in which order, and gives back."""

from contextlib import closing, suppress
from datetime import timedelta

from redrive.domain.errors import Unavailable
from redrive.domain.failures import Reason
from redrive.domain.moves import PutOff, Release
from redrive.domain.states import Spot
from redrive.store.port import ClaimRequest, QueueChange
from redrive.store.sql.store import open_store

from .faults import faulty
from .make import OTHER, QUEUE, TYPE, Floor, draft, job, kind, pair, retry, succeed, worker
from .rows import Rows

STRANGE = "nobody.knows.v1"


def pause(store, name: str = QUEUE, paused: bool = True) -> None:
    store.set_queue(name, QueueChange(paused=paused), draft("pause"), version=None)


# -- order -------------------------------------------------------------------------------------------------------------


def test_higher_priority_first_then_due_then_first_in(store, floor: Floor, rows: Rows):
    late_important = floor.one(priority=50)
    first, second = floor.one(), floor.one()
    least, most = floor.one(priority=0), floor.one(priority=100)
    early = floor.later()
    rows.earlier(early, "due_at", 7200)
    store.promote()
    wanted = [most, late_important, early, first, second, least]
    assert [held.uuid for held in floor.take(4)] == wanted[:4], "the first of a claim, in order"
    assert [held.uuid for held in floor.take(4)] == wanted[4:]


def test_within_one_moment_the_order_is_that_of_ids(floor: Floor):
    jobs = [job() for _ in range(20)]
    floor.accept(*reversed(jobs))
    assert [held.uuid for held in floor.take(20)] == [one.id for one in jobs]


def test_queues_come_in_the_order_given_whatever_the_priority(floor: Floor):
    urgent, calm = floor.one(priority=90), floor.one(queue=OTHER, priority=1)
    assert [held.uuid for held in floor.fetch(1, queues=(OTHER, QUEUE))] == [calm]
    calm2 = floor.one(queue=OTHER, priority=1)
    assert [held.uuid for held in floor.fetch(5, queues=(OTHER, QUEUE))] == [calm2, urgent]


def test_the_limit_is_over_all_queues(floor: Floor):
    floor.accept(*(job(queue=queue) for queue in (QUEUE, OTHER) for _ in range(3)))
    held = floor.fetch(4, queues=(QUEUE, OTHER))
    assert [one.queue for one in held] == [QUEUE] * 3 + [OTHER]
    assert len(floor.fetch(4, queues=(QUEUE, OTHER))) == 2


def test_only_the_queues_named(floor: Floor):
    floor.one(queue=OTHER)
    assert floor.take(5) == []


def test_a_queue_nobody_announced_gives_nothing(floor: Floor, store):
    """Its row could not be locked, so a pause could be overtaken; a worker announces its queues when it starts."""
    floor.one(queue="unannounced")
    assert floor.fetch(5, queues=("unannounced",)) == []
    store.register(worker("w2", queues=("unannounced",)))
    assert len(floor.fetch(5, queues=("unannounced",))) == 1


def test_scheduled_taken_and_dead_jobs_are_not_claimed(floor: Floor):
    floor.later()
    floor.dead()
    floor.archived()
    floor.fetched()
    floor.running()
    assert floor.take(9) == []


# -- claim -------------------------------------------------------------------------------------------------------------


def test_a_claim_starts_the_types_it_names_and_fetches_the_others(store, floor: Floor, rows: Rows):
    known, unknown = floor.one(), floor.one(type=STRANGE)
    before = store.now()
    started, fetched = sorted(floor.fetch(5, types=(TYPE, "sms.v1")), key=lambda held: not held.started)
    after = store.now()
    assert (started.uuid, fetched.uuid) == (known, unknown)
    assert (started.started, fetched.started) == (True, False)
    assert (started.attempt, fetched.attempt) == (1, 0)
    for held, spot in ((started, Spot.PROCESSING), (fetched, Spot.FETCHED)):
        row = rows.row(held.uuid)
        assert floor.spot(held.uuid) is spot
        assert (row.lease, row.worker_id, row.version, row.attempt) == (held.lease, "w1", 2, held.attempt)
        assert before <= row.heartbeat_at <= after
        assert (row.started_at is not None) is held.started
    assert rows.ledger(known) == []


def test_a_claim_without_types_starts_nothing(floor: Floor):
    assert floor.fetched().started is False


def test_what_a_claim_brings_is_what_the_row_has(floor: Floor, store):
    given = job(b"\x00\x01", content_type="x/y", priority=42, tags=("t",), max_attempts=9, trace_context="tc")
    floor.accept(given)
    (held,) = floor.take()
    assert (held.uuid, held.type, held.queue, held.payload) == (given.id, TYPE, QUEUE, given.payload)
    assert (held.content_type, held.priority, held.max_attempts, held.trace_context) == ("x/y", 42, 9, "tc")
    assert (held.life, held.revision, held.spent) == (1, 1, 0)
    assert held.marks == '{"tags":["t"],"labels":{}}'
    assert 0 <= held.age < 5
    assert held.unserved is None


def test_age_counts_from_when_the_life_became_due(store, floor: Floor, rows: Rows):
    one = floor.one()
    rows.earlier(one, "life_started_at", 1000)
    (held,) = floor.take()
    assert 1000 <= held.age < 1005


def test_leases_are_unique_to_a_claim(floor: Floor):
    floor.accept(*(job() for _ in range(10)))
    leases = {floor.take(1)[0].lease for _ in range(10)}
    assert len(leases) == 10


def test_nothing_is_claimed_twice(floor: Floor):
    floor.accept(*(job() for _ in range(20)))
    seen = [held.uuid for _ in range(6) for held in floor.take(4, who="w1") + floor.fetch(3, who="w2")]
    assert len(seen) == len(set(seen)) == 20


def test_a_claim_for_nothing(store, floor: Floor):
    floor.one()
    assert store.claim(ClaimRequest("w1", (), 5, (TYPE,))) == []
    assert floor.take(0) == []


# -- pause -------------------------------------------------------------------------------------------------------------


def test_a_paused_queue_is_not_claimed_and_goes_on_when_resumed(store, floor: Floor):
    one, other = floor.one(), floor.one(queue=OTHER)
    pause(store)
    assert [held.uuid for held in floor.take(5, queues=(QUEUE, OTHER))] == [other]
    pause(store, paused=False)
    assert [held.uuid for held in floor.take(5)] == [one]


def test_a_paused_queue_starts_no_fetched_job(store, floor: Floor, rows: Rows):
    held, other = floor.fetched(), floor.fetched(queue=OTHER)
    pause(store)
    assert store.start((QUEUE, OTHER), [pair(held), pair(other)]) == {pair(other)}
    assert floor.spot(held.uuid) is Spot.FETCHED
    assert rows.row(held.uuid).attempt == 0
    pause(store, paused=False)
    assert store.start((QUEUE,), [pair(held)]) == {pair(held)}


def test_what_runs_when_a_queue_is_paused_settles(store, floor: Floor):
    held = floor.running()
    pause(store)
    floor.settle(succeed(held))
    assert floor.spot(held.uuid) is Spot.ARCHIVE


# -- start -------------------------------------------------------------------------------------------------------------


def test_a_start_counts_the_attempt_and_the_version(store, floor: Floor, rows: Rows):
    held = floor.fetched()
    rows.silent(held.uuid)
    before = store.now()
    assert store.start((QUEUE,), [pair(held)]) == {pair(held)}
    row = rows.row(held.uuid)
    assert floor.spot(held.uuid) is Spot.PROCESSING
    assert (row.attempt, row.spent, row.version, row.lease, row.worker_id) == (1, 0, 3, held.lease, "w1")
    assert before <= row.started_at == row.heartbeat_at


def test_a_start_sent_twice_counts_once(store, floor: Floor, rows: Rows):
    held = floor.fetched()
    for _ in range(3):
        assert store.start((QUEUE,), [pair(held)]) == {pair(held)}
    row = rows.row(held.uuid)
    assert (row.attempt, row.version) == (1, 3)


def test_a_start_needs_the_lease(store, floor: Floor):
    held, mine = floor.fetched(), floor.fetched()
    wrong = (held.id, held.lease + 1)
    swapped = (held.id, mine.lease)
    unknown = (b"\x00" * 16, held.lease)
    assert store.start((QUEUE,), [wrong, swapped, unknown, pair(mine)]) == {pair(mine)}
    assert floor.spot(held.uuid) is Spot.FETCHED


def test_no_start_after_a_rescue(store, floor: Floor, rows: Rows):
    held = floor.fetched()
    rows.silent(held.uuid)
    store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)
    assert store.start((QUEUE,), [pair(held)]) == frozenset()
    floor.take()
    assert store.start((QUEUE,), [pair(held)]) == frozenset()


def test_starting_nothing(store, floor: Floor):
    assert store.start((QUEUE,), []) == frozenset()


# -- give back ---------------------------------------------------------------------------------------------------------


def test_a_release_makes_pending_without_counting(store, floor: Floor, rows: Rows):
    held = floor.fetched()
    store.give_back([Release(held.id, held.lease)])
    row = rows.row(held.uuid)
    assert floor.spot(held.uuid) is Spot.PENDING
    assert (row.attempt, row.spent, row.version) == (0, 0, 3)
    assert (row.lease, row.worker_id, row.heartbeat_at, row.started_at) == (None, None, None, None)
    assert rows.ledger(held.uuid) == []
    assert floor.take()[0].attempt == 1


def test_putting_off_schedules_and_remembers_since_when(store, floor: Floor, rows: Rows):
    held = floor.fetched(type=STRANGE)
    before = store.now()
    store.give_back([PutOff(held.id, held.lease, 30.0)])
    after = store.now()
    row = rows.row(held.uuid)
    assert floor.spot(held.uuid) is Spot.SCHEDULED
    assert before <= row.due_at - timedelta(seconds=30) <= after
    assert before <= row.unserved_since <= after
    assert (row.attempt, row.version, row.lease, row.worker_id) == (0, 3, None, None)
    assert row.life_started_at < row.due_at, "its life goes on"

    rows.earlier(held.uuid, "due_at", 60)
    rows.earlier(held.uuid, "unserved_since", 500)
    since = rows.row(held.uuid).unserved_since
    store.promote()
    (again,) = floor.fetch()
    assert again.unserved is not None
    assert 500 <= again.unserved < 505
    store.give_back([PutOff(again.id, again.lease, 30.0)])
    assert rows.row(held.uuid).unserved_since == since, "since the first time"


def test_giving_back_needs_the_lease_and_a_handler_that_has_not_started(store, floor: Floor):
    held, running = floor.fetched(), floor.running()
    store.give_back([Release(held.id, held.lease + 1), PutOff(held.id, held.lease + 1, 5), Release(*pair(running))])
    store.give_back([PutOff(*pair(running), delay=5), Release(b"\x00" * 16, 7)])
    assert floor.spot(held.uuid) is Spot.FETCHED
    assert floor.spot(running.uuid) is Spot.PROCESSING


def test_giving_back_twice_is_giving_back_once(store, floor: Floor, rows: Rows):
    held = floor.fetched()
    store.give_back([Release(*pair(held)), Release(*pair(held))])
    store.give_back([PutOff(*pair(held), delay=50)])
    assert rows.row(held.uuid).version == 3
    assert floor.spot(held.uuid) is Spot.PENDING


# -- unserved ----------------------------------------------------------------------------------------------------------


def test_what_nobody_serves_is_buried_as_fatal(store, floor: Floor, rows: Rows):
    held = floor.fetched(type=STRANGE)
    store.bury_unserved([pair(held)], worker_id="w1", build="b1", slot=2)
    head = floor.head(held.uuid)
    assert (head.spot, head.reason, head.attempt, head.spent, head.version) == (Spot.DLQ, Reason.FATAL, 0, 0, 3)
    assert STRANGE in (head.error_message or "")
    (line,) = rows.ledger(held.uuid)
    assert (line.kind, line.reason, line.lease, line.attempt, line.worker_id) == (
        "failed",
        "fatal",
        held.lease,
        0,
        "w1",
    )
    assert rows.totals(QUEUE) == {"failed": 1}
    assert [incident.id for incident in store.incidents()] == [head.incident_id]
    floor.kept()


def test_burying_unserved_needs_the_lease_and_no_start(store, floor: Floor):
    held, running = floor.fetched(), floor.running()
    store.bury_unserved([(held.id, 7), pair(running)], worker_id="w1", build="b1", slot=2)
    assert (floor.spot(held.uuid), floor.spot(running.uuid)) == (Spot.FETCHED, Spot.PROCESSING)


def test_announced_types_are_those_of_workers_that_live(store, floor: Floor, rows: Rows):
    from redrive.store.sql.tables import workers

    store.register(worker("w2", types=(kind("sms.v1"), kind("push.v1"))))
    asked = (TYPE, "sms.v1", STRANGE)
    assert store.announced(asked, alive_within=30) == {TYPE, "sms.v1"}
    rows.run(workers.update().where(workers.c.id == "w2").values(seen_at=store.now() - timedelta(seconds=60)))
    assert store.announced(asked, alive_within=30) == {TYPE}
    assert store.announced(asked, alive_within=90) == {TYPE, "sms.v1"}
    store.unregister("w1")
    assert store.announced(asked, alive_within=30) == frozenset()


# -- promote -----------------------------------------------------------------------------------------------------------


def test_due_jobs_become_pending_and_the_next_is_told(store, floor: Floor, rows: Rows):
    due, soon, later = floor.later(3600), floor.later(3600), floor.later(7200)
    rows.earlier(due, "due_at", 3601)
    promoted = store.promote()
    assert promoted.count == 1
    assert promoted.next_due is not None
    assert 3590 < promoted.next_due <= 3600
    assert [floor.spot(one) for one in (due, soon, later)] == [Spot.PENDING, Spot.SCHEDULED, Spot.SCHEDULED]
    row = rows.row(due)
    assert row.version == 2
    assert row.due_at < store.now(), "it keeps its place in the line"
    assert store.promote().count == 0


def test_promoting_is_bounded_and_takes_the_earliest(store, floor: Floor, rows: Rows):
    jobs = [floor.later() for _ in range(5)]
    for n, one in enumerate(jobs):
        rows.earlier(one, "due_at", 3600 + 10 * n + 1)
    promoted = store.promote(limit=2)
    assert (promoted.count, promoted.next_due) == (2, 0.0)
    assert [one for one in jobs if floor.spot(one) is Spot.PENDING] == jobs[3:]
    assert store.promote().count == 3


def test_promoting_that_fails_has_promoted_nothing(store, url: str, floor: Floor, rows: Rows):
    job_id = floor.later()
    rows.earlier(job_id, "due_at", 7200)
    with closing(open_store(url)) as own:
        faults, statement = faulty(own), 0
        while faults.struck or not statement:
            statement, faults.struck = statement + 1, False
            assert floor.spot(job_id) is Spot.SCHEDULED
            with suppress(Unavailable), faults.at(statement):
                assert own.promote().count == 1
    assert statement > 3
    assert floor.spot(job_id) is Spot.PENDING


def test_nothing_scheduled_is_nothing_due(store, floor: Floor):
    floor.one()
    promoted = store.promote()
    assert (promoted.count, promoted.next_due) == (0, None)


def test_a_retry_waits_its_time_by_the_databases_clock(store, floor: Floor, rows: Rows):
    held = floor.running()
    before = store.now()
    floor.settle(retry(held, delay=12.5))
    assert before <= rows.row(held.uuid).due_at - timedelta(seconds=12.5) <= store.now()
    assert floor.take() == []
    rows.earlier(held.uuid, "due_at", 13)
    assert floor.take() == [], "due is not pending before it was promoted"
    assert store.promote().count == 1
    assert floor.take()[0].attempt == 2


def test_the_same_pair_twice_is_buried_once(store, floor: Floor, rows: Rows):
    held = floor.fetched(type=STRANGE)
    store.bury_unserved([pair(held), pair(held)], worker_id="w1", build="b1", slot=2)
    assert len(rows.ledger(held.uuid)) == 1
    floor.kept()
