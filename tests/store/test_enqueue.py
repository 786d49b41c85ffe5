"""Accepting work: single, many, keyed, scheduled; whole and exact."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from redrive.domain.errors import Conflict, RedriveError
from redrive.domain.job import Enqueued, NewJob
from redrive.domain.states import Spot
from redrive.store.sql.tables import jobs_hot

from .make import OTHER, QUEUE, TYPE, Floor, job, succeed
from .rows import Rows

EXACT = {
    "duplicate keys": b'{"b":1,"a":2,"a":3}',
    "order and spaces": b'{ "z" : 1,\n "a":\t2 }',
    "an escaped NUL": b'{"s": "a\\u0000b"}',
    "a real NUL": b'{"s": "a\x00b"}',
    "binary": bytes(range(256)),
    "no UTF-8": b"\xff\xfe\x00\x80",
    "zero bytes": b"",
    "null": b"null",
    "an empty object": b"{}",
    "an empty list": b"[]",
    "an empty string": b'""',
    "2^63": b'{"n": 9223372036854775808}',
    "10^40": b'{"n": ' + str(10**40).encode() + b"}",
    "5,000 digits": b"9" * 5000,
    "floats as spelled": b"[1.0, 1e0, -0.0, 5e-324, 0.1000]",
    "NaN": b"[NaN, Infinity, 1e400]",
    "nested 5,000 deep": b"[" * 5000 + b"]" * 5000,
    "broken": b'{"to": "a@example.com" "subject": "Hi"}',
    "a lone surrogate": b'"\\ud800"',
    "quotes and percent": b"'; DROP TABLE jobs_hot; -- %s %(x)s :x ?",
    "7,999 bytes": b"x" * 7999,
    "8,001 bytes": b"x" * 8001,
}
BIG = bytes(range(256)) * 4 * 1024 * 5  # 5 MB that do not compress


def test_a_new_job_is_pending_with_what_it_was_given(store, floor: Floor, rows: Rows):
    given = job(
        b"\x00\xff",
        content_type="application/octet-stream",
        priority=77,
        tags=("b", "a"),
        labels={"customer": "42", "é": "ü"},
        idempotency_key="welcome-42",
        lock_key="customer-42",
        max_attempts=9,
        created_by="shop",
        trace_context="00-aa-bb-01",
        origin="rabbit",
    )
    before = store.now()
    assert store.enqueue([given]) == [Enqueued(given.id)]
    after = store.now()

    record = store.find(given.id)
    assert record is not None
    head = record.head
    assert record.payload == given.payload
    assert record.ledger == ()
    assert record.revisions == ()
    assert record.result is None
    assert head.spot is Spot.PENDING
    for name in ("content_type", "priority", "idempotency_key", "lock_key", "max_attempts", "created_by", "origin"):
        assert getattr(head, name) == getattr(given, name), name
    assert head.type == TYPE
    assert head.queue == QUEUE
    assert head.tags == ("b", "a")
    assert head.labels == {"customer": "42", "é": "ü"}
    assert (head.version, head.revision, head.life, head.attempt, head.spent) == (1, 1, 1, 0, 0)
    assert before <= head.created_at == head.due_at == head.updated_at == head.life_started_at <= after
    assert head.payload_size == 2
    assert head.modified_by is None
    row = rows.row(given.id)
    assert (row.lease, row.worker_id, row.started_at, row.heartbeat_at) == (None, None, None, None)
    (held,) = floor.take()
    assert held.trace_context == "00-aa-bb-01"


def test_a_job_without_wishes_leaves_budget_and_marks_open(floor: Floor, rows: Rows):
    row = rows.row(floor.one())
    assert (row.max_attempts, row.marks, row.idempotency_key, row.lock_key) == (None, None, None, None)
    assert row.priority == 10


def test_enqueue_writes_no_counter_and_no_queue_row(store, rows: Rows):
    store.enqueue([job(queue="never-seen"), job(queue="never-seen")])
    assert rows.totals("never-seen") == {}
    assert rows.buckets() == {}
    assert [queue.version for queue in store.queues() if queue.name == "never-seen"] == [0]


def test_nothing_to_accept_is_nothing(store, rows: Rows):
    assert store.enqueue([]) == []
    assert rows.places() == {}


def test_a_payload_comes_back_as_its_bytes_everywhere(store, floor: Floor):
    given = {}
    for payload in EXACT.values():
        one = job(payload)
        store.enqueue([one])
        given[one.id] = payload
    for key in (None, "k"):
        jobs = [job(payload, idempotency_key=key and f"{key}{n}") for n, payload in enumerate(EXACT.values())]
        store.enqueue(jobs)
        given |= {one.id: one.payload for one in jobs}
    held = floor.take(1000)
    assert {one.uuid: one.payload for one in held} == given
    floor.settle(*(succeed(one) for one in held))
    for one_id, payload in given.items():
        record = store.find(one_id)
        assert record is not None
        assert (record.payload, record.head.payload_size) == (payload, len(payload))


@pytest.mark.slow
def test_five_megabytes_are_stored_and_claimed(store, floor: Floor):
    store.enqueue([job(BIG)])
    store.enqueue([job(BIG), job(BIG, idempotency_key="big")])
    assert [held.payload == BIG for held in floor.take(3)] == [True] * 3


def test_answers_are_in_the_order_given(store):
    jobs = [job(idempotency_key=None if n % 3 else f"key-{n % 2}", due=timedelta(hours=n % 4)) for n in range(12)]
    answers = store.enqueue(jobs)
    firsts = {0: jobs[0].id, 1: jobs[3].id}
    for n, (given, answer) in enumerate(zip(jobs, answers, strict=True)):
        wanted = firsts[n % 2] if n % 3 == 0 else given.id
        assert answer == Enqueued(wanted, duplicate=wanted != given.id)


def test_many_are_all_or_nothing(store, rows: Rows):
    there = job()
    store.enqueue([there])
    bad = job(id=there.id)
    for batch in (
        [job(), bad],
        [job(), job(idempotency_key="k"), bad],
        [bad],
        [job(idempotency_key="k"), job(priority=200)],
    ):
        with pytest.raises(RedriveError, match="jobs_hot") as refused:
            store.enqueue(batch)
        assert isinstance(refused.value, Conflict) is (bad in batch)
        assert rows.places() == {there.id: ["jobs_hot"]}


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_held_by_a_hot_job_answers_with_its_id(floor: Floor, store, rows: Rows):
    first = job(idempotency_key="k")
    assert store.enqueue([first]) == [Enqueued(first.id)]
    for again in ([job(idempotency_key="k")], [job(idempotency_key="k"), job(idempotency_key="other")]):
        assert store.enqueue(again)[0] == Enqueued(first.id, duplicate=True)
    assert len(rows.places()) == 2


def test_the_scope_of_a_key_is_the_type(store):
    a, b = job(idempotency_key="k"), job(idempotency_key="k", type="sms.send.v1", queue=OTHER)
    assert [answer.duplicate for answer in store.enqueue([a, b])] == [False, False]


def test_the_first_of_one_key_in_a_batch_wins(store, rows: Rows):
    # More than a sort keeps in order by chance, ids not in the order given, and one type between two others.
    jobs = sorted(
        (job(idempotency_key="k", type=f"t{n % 3}") for n in range(60)), key=lambda one: one.id.int, reverse=True
    )
    answers = store.enqueue(jobs)
    for n, answer in enumerate(answers):
        assert answer == Enqueued(jobs[n % 3].id, duplicate=n > 2)
    assert set(rows.places()) == {one.id for one in jobs[:3]}


@pytest.mark.parametrize("state", ["scheduled", "pending", "fetched", "processing"])
def test_every_hot_state_holds_its_key(floor: Floor, store, state: str):
    holder = {
        "scheduled": lambda: floor.later(idempotency_key="k"),
        "pending": lambda: floor.one(idempotency_key="k"),
        "fetched": lambda: floor.fetched(idempotency_key="k").uuid,
        "processing": lambda: floor.running(idempotency_key="k").uuid,
    }[state]()
    assert floor.spot(holder) == state
    assert store.enqueue([job(idempotency_key="k")]) == [Enqueued(holder, duplicate=True)]


@pytest.mark.parametrize("end", ["archived", "dead"])
def test_a_job_that_left_hot_holds_no_key(floor: Floor, store, end: str):
    getattr(floor, end)(idempotency_key="k")
    fresh = job(idempotency_key="k")
    assert store.enqueue([fresh]) == [Enqueued(fresh.id)]


# -- times -------------------------------------------------------------------------------------------------------------


def ways(given) -> list[list[NewJob]]:
    """One job alone, with others, and with a key: three ways into the table."""
    return [[job(due=given)], [job(due=given), job()], [job(due=given, idempotency_key="k")]]


@pytest.mark.parametrize("way", range(3))
def test_a_delay_schedules_by_the_databases_clock(store, floor: Floor, way: int):
    jobs = ways(timedelta(seconds=90, microseconds=250))[way]
    before = store.now()
    store.enqueue(jobs)
    after = store.now()
    head = floor.head(jobs[0].id)
    assert head.spot is Spot.SCHEDULED
    assert before <= head.due_at - timedelta(seconds=90, microseconds=250) <= after
    assert head.life_started_at == head.due_at
    assert before <= head.created_at <= after


@pytest.mark.parametrize("way", range(3))
def test_a_time_schedules_to_the_microsecond(store, floor: Floor, way: int):
    due = (datetime.now(UTC) + timedelta(days=400)).replace(microsecond=123457).astimezone()
    jobs = ways(due)[way]
    store.enqueue(jobs)
    head = floor.head(jobs[0].id)
    assert head.spot is Spot.SCHEDULED
    assert head.due_at == head.life_started_at == due


@pytest.mark.parametrize("past", [timedelta(0), timedelta(hours=-5), datetime(2020, 1, 1, tzinfo=UTC)])
@pytest.mark.parametrize("way", range(3))
def test_a_time_that_has_passed_is_now(store, floor: Floor, past, way: int):
    """It neither overtakes what waits nor uses up the life of the job."""
    jobs = ways(past)[way]
    before = store.now()
    store.enqueue(jobs)
    head = floor.head(jobs[0].id)
    assert head.spot is Spot.PENDING
    assert head.due_at == head.life_started_at >= before
    assert head.due_at - head.created_at < timedelta(milliseconds=5)


def test_ids_are_stored_as_they_are(store, floor: Floor):
    strange = UUID(int=0xFF), UUID("ffffffff-ffff-ffff-ffff-ffffffffffff")
    store.enqueue([job(id=strange[0])])
    store.enqueue([job(id=strange[1]), job()])
    assert {floor.head(one).id for one in strange} == set(strange)


@pytest.mark.slow
def test_ten_thousand_in_one_call(store, rows: Rows):
    jobs = [
        job(b"x" * (8001 if n % 1000 == 0 else 7), idempotency_key=f"k{n}" if n % 2 else None) for n in range(10_000)
    ]
    answers = store.enqueue([*jobs, job(idempotency_key="k1")])
    assert answers == [*(Enqueued(one.id) for one in jobs), Enqueued(jobs[1].id, duplicate=True)]
    assert rows.count(jobs_hot) == 10_000
