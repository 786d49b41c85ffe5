"""The ends of runs: what each does, to which row, and the three answers."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select

from redrive.domain.failures import FAILURES, Reason
from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Answer, SettleMove, Succeed
from redrive.domain.states import Spot, Verb
from redrive.store.sql.tables import metric_buckets

from .make import OTHER, QUEUE, TYPE, Floor, bury, error, job, pair, retry, snooze, succeed
from .rows import Rows

ENDS: dict[str, Callable[[ClaimedJob], SettleMove]] = {"succeed": succeed, "retry": retry, "bury": bury}


def rescue(store, rows: Rows, held: ClaimedJob) -> None:
    rows.silent(held.uuid)
    assert len(store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)) == 1


def test_ends_that_share_a_bucket_add_up(store, floor: Floor, rows: Rows):
    """Several settles, one second after all or not: none takes another's place."""
    for _ in range(8):
        floor.dead()
    assert sum(row.n for row in rows.all(select(metric_buckets))) == 8


# -- what each does ----------------------------------------------------------------------------------------------------


def test_a_success_rests_in_the_archive(store, floor: Floor, rows: Rows):
    held = floor.running(b"\x00\xff", tags=("a",), idempotency_key="k")
    before = store.now()
    assert [one.answer for one in floor.settle(succeed(held, b'{"sent": 1}', ms=42), slot=5)] == [Answer.APPLIED]
    record = store.find(held.uuid)
    assert record is not None
    head = record.head
    assert (head.spot, head.outcome, head.duration_ms, head.version) == (Spot.ARCHIVE, "succeeded", 42, 3)
    assert (record.result, record.payload, record.ledger) == (b'{"sent": 1}', b"\x00\xff", ())
    assert head.finished_at is not None
    assert before <= head.finished_at <= store.now()
    assert (head.attempt, head.spent, head.life, head.tags, head.idempotency_key) == (1, 0, 1, ("a",), "k")
    assert rows.row(held.uuid).lease == held.lease, "the archive keeps the lease, for a lost answer"
    assert rows.totals(QUEUE) == {"succeeded": 1}
    assert rows.buckets() == {(QUEUE, TYPE, "succeeded", ""): (1, 42)}
    assert store.incidents() == []


def test_a_result_may_be_any_bytes(store, floor: Floor):
    for result in (None, b"", b"null", b'"a\\u0000b"', b"\x00", b"x" * 65_536):
        held = floor.running()
        floor.settle(succeed(held, result))
        record = store.find(held.uuid)
        assert record is not None
        assert record.result == result


def test_a_retry_is_scheduled_charged_and_on_record(store, floor: Floor, rows: Rows):
    held = floor.running()
    report = error("refused", "builtins.ConnectionError")
    before = store.now()
    assert [one.answer for one in floor.settle(retry(held, 60, report, budget=4))] == [Answer.APPLIED]
    row, head = rows.row(held.uuid), floor.head(held.uuid)
    assert head.spot is Spot.SCHEDULED
    assert (row.attempt, row.spent, row.version, row.max_attempts) == (1, 1, 3, 4)
    assert (row.lease, row.worker_id, row.heartbeat_at, row.started_at) == (None, None, None, None)
    assert before <= row.due_at - timedelta(seconds=60) <= store.now()
    assert row.life_started_at < before
    (line,) = rows.ledger(held.uuid)
    assert (line.kind, line.reason, line.life, line.attempt, line.revision) == ("failed", None, 1, 1, 1)
    assert (line.lease, line.worker_id, line.build) == (held.lease, "w1", "b1")
    assert (line.error_type, line.error_message, line.traceback) == (
        report.error_type,
        report.message,
        report.traceback,
    )
    assert (line.fingerprint, line.fingerprint_version) == (report.fingerprint, 1)
    assert line.started_at <= line.ended_at
    assert (line.queue, line.type, line.spent) == (QUEUE, TYPE, 1)
    assert rows.totals(QUEUE) == {"retried": 1}
    assert rows.buckets() == {}
    assert store.incidents() == []


@pytest.mark.parametrize("reason", Reason)
def test_a_burial_rests_in_the_dlq_with_its_evidence(store, floor: Floor, rows: Rows, reason: Reason):
    held = floor.running(tags=("a", "b"), labels={"customer": "42"})
    before = store.now()
    (settled,) = floor.settle(bury(held, reason))
    assert (settled.answer, settled.reason) == (Answer.APPLIED, reason)
    record = store.find(held.uuid)
    assert record is not None
    head = record.head
    failure = reason in FAILURES
    assert (head.spot, head.reason, head.version, head.attempt, head.spent) == (Spot.DLQ, reason, 3, 1, 1)
    assert (head.error_type, head.error_message) == ("builtins.ValueError", "no such customer")
    assert (head.incident_id, head.build, head.max_attempts) == ("c" * 16 if failure else None, "b1", 3)
    assert head.failed_at is not None
    assert before <= head.failed_at <= store.now()
    assert rows.row(held.uuid).lease is None
    (line,) = rows.ledger(held.uuid)
    wanted = "cancelled" if reason is Reason.CANCELLED else "failed"
    assert (line.kind, line.reason, line.lease, line.attempt, line.spent) == (wanted, reason, held.lease, 1, 1)
    assert rows.totals(QUEUE) == ({"failed": 1} if failure else {})
    assert rows.buckets() == {(QUEUE, TYPE, "failed" if failure else reason, reason): (1, 7)}
    assert [(one.id, one.deaths, one.type, one.number) for one in store.incidents()] == (
        [("c" * 16, 1, TYPE, 1)] if failure else []
    )
    assert marks(rows, held) == {("tag", "a", ""), ("tag", "b", ""), ("label", "customer", "42")}
    floor.kept()


def marks(rows: Rows, held: ClaimedJob) -> set[tuple[str, str, str]]:
    from sqlalchemy import select

    from redrive.store.sql.tables import dead_marks

    found = rows.all(select(dead_marks).where(dead_marks.c.job_id == held.uuid))
    return {(row.kind, row.name, row.value) for row in found}


def test_a_burial_that_is_not_charged(floor: Floor, rows: Rows):
    held = floor.running()
    floor.settle(bury(held, Reason.CANCELLED, charged=False))
    assert (floor.head(held.uuid).attempt, floor.head(held.uuid).spent) == (1, 0)
    assert rows.ledger(held.uuid)[0].spent == 0
    floor.kept()


def test_a_snooze_is_scheduled_and_charges_nothing(store, floor: Floor, rows: Rows):
    held = floor.running()
    before = store.now()
    assert [one.answer for one in floor.settle(snooze(held, 30))] == [Answer.APPLIED]
    row = rows.row(held.uuid)
    assert floor.spot(held.uuid) is Spot.SCHEDULED
    assert (row.attempt, row.spent, row.version) == (1, 0, 3)
    assert (row.lease, row.worker_id, row.heartbeat_at, row.started_at) == (None, None, None, None)
    assert before <= row.due_at - timedelta(seconds=30) <= store.now()
    assert rows.ledger(held.uuid) == []
    assert rows.totals(QUEUE) == {}
    rows.earlier(held.uuid, "due_at", 31)
    store.promote()
    assert floor.take()[0].attempt == 2


def test_a_batch_of_every_kind_is_answered_in_the_order_given(store, floor: Floor, rows: Rows):
    floor.accept(*(job(queue=(QUEUE, OTHER)[n % 2]) for n in range(12)))
    held = floor.take(12, queues=(QUEUE, OTHER))
    ends: list[Callable[[ClaimedJob], SettleMove]] = [succeed, retry, bury, snooze]
    moves = [ends[n % 4](one) for n, one in enumerate(held)]
    moves.insert(5, Succeed(b"\x01" * 16, 5, 0))
    answers = floor.settle(*moves)
    assert [(one.id, one.lease) for one in answers] == [(move.id, move.lease) for move in moves]
    assert [one.answer for one in answers].count(Answer.APPLIED) == 12
    assert answers[5].answer is Answer.STALE
    spots = [Spot.ARCHIVE, Spot.SCHEDULED, Spot.DLQ, Spot.SCHEDULED]
    assert [floor.spot(one.uuid) for one in held] == [spots[n % 4] for n in range(12)]
    floor.kept()


def test_counters_add_up_by_slot_and_incidents_fold_by_cause(store, floor: Floor, rows: Rows):
    for slot in (0, 7, 7):
        floor.accept(job(), job(), job(queue=OTHER))
        held = floor.take(3, queues=(QUEUE, OTHER))
        floor.settle(bury(held[0]), bury(held[1], report=error("another", cause="d" * 16)), succeed(held[2]), slot=slot)
    assert rows.totals(QUEUE) == {"failed": 6}
    assert rows.totals(OTHER) == {"succeeded": 3}
    assert {(one.id, one.deaths) for one in store.incidents()} == {("c" * 16, 3), ("d" * 16, 3)}
    assert {one.number for one in store.incidents()} == {1, 2}
    assert store.incidents()[0].first_seen <= store.incidents()[0].last_seen
    floor.kept()


def test_a_thousand_ends_in_one_call(store, floor: Floor):
    floor.accept(*(job(tags=("t",)) for _ in range(1000)))
    held = floor.take(1000)
    moves = [bury(one) if n < 100 else succeed(one) for n, one in enumerate(held)]
    assert {one.answer for one in floor.settle(*moves)} == {Answer.APPLIED}
    # The same moves: every one is looked for, and found.
    assert {one.answer for one in floor.settle(*moves)} == {Answer.ALREADY}


# -- who may -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [*ENDS.values(), snooze])
def test_a_settle_needs_the_lease_and_a_start(floor: Floor, rows: Rows, end):
    held, fetched, mine = floor.running(), floor.fetched(), floor.running()
    stranger = floor.running()
    stranger.lease += 1
    swapped = floor.running()
    swapped.lease = mine.lease
    for one in (stranger, fetched, swapped):
        assert [settled.answer for settled in floor.settle(end(one))] == [Answer.STALE]
    assert floor.spot(held.uuid) is floor.spot(stranger.uuid) is floor.spot(swapped.uuid) is Spot.PROCESSING
    assert floor.spot(fetched.uuid) is Spot.FETCHED
    assert rows.totals(QUEUE) == {}


# -- already applied ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENDS)
def test_a_lost_answer_is_already_applied(floor: Floor, rows: Rows, name: str):
    held = floor.running()
    move = ENDS[name](held)
    assert [one.answer for one in floor.settle(move)] == [Answer.APPLIED]
    before = rows.row(held.uuid), rows.ledger(held.uuid), rows.totals(QUEUE), rows.buckets()
    for _ in range(3):
        (settled,) = floor.settle(move)
        assert settled.answer is Answer.ALREADY
        assert settled.reason is (Reason.FATAL if name == "bury" else None)
    assert (rows.row(held.uuid), rows.ledger(held.uuid), rows.totals(QUEUE), rows.buckets()) == before


def test_a_lost_answer_to_a_retry_is_found_when_the_job_was_claimed_again(store, floor: Floor, rows: Rows):
    held = floor.running()
    floor.settle(retry(held))
    store.promote()
    (again,) = floor.take(who="w2")
    assert again.attempt == 2
    assert [one.answer for one in floor.settle(retry(held))] == [Answer.ALREADY]
    floor.settle(succeed(again), who="w2")
    assert [one.answer for one in floor.settle(retry(held))] == [Answer.ALREADY]
    assert [one.kind for one in rows.ledger(held.uuid)] == ["failed"]


def test_a_lost_answer_to_a_burial_is_found_when_the_job_was_resurrected(floor: Floor, rows: Rows):
    held = floor.running()
    floor.settle(bury(held))
    floor.resurrect(held.uuid)
    floor.take()
    (settled,) = floor.settle(bury(held))
    assert (settled.answer, settled.reason) == (Answer.ALREADY, Reason.FATAL)
    assert len(rows.ledger(held.uuid)) == 1


def test_a_batch_half_of_which_was_applied(floor: Floor):
    floor.accept(job(), job(), job(), job())
    held = floor.take(4)
    floor.settle(succeed(held[0]), retry(held[1]))
    answers = [one.answer for one in floor.settle(succeed(held[0]), retry(held[1]), bury(held[2]), succeed(held[3]))]
    assert answers == [Answer.ALREADY, Answer.ALREADY, Answer.APPLIED, Answer.APPLIED]


def test_the_same_end_twice_in_one_batch_counts_once(floor: Floor, rows: Rows):
    a, b = floor.running(), floor.running()
    floor.settle(succeed(a), succeed(a), bury(b), bury(b))
    assert rows.totals(QUEUE) == {"succeeded": 1, "failed": 1}
    assert len(rows.ledger(b.uuid)) == 1
    floor.kept()


# -- stale -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENDS)
def test_a_late_end_after_a_rescue_changes_nothing_and_is_noted_once(store, floor: Floor, rows: Rows, name: str):
    held = floor.running()
    floor.settle(retry(held))
    store.promote()
    (held,) = floor.take()
    rescue(store, rows, held)
    before = rows.row(held.uuid), rows.totals(QUEUE), rows.buckets()
    for _ in range(3):
        assert [one.answer for one in floor.settle(ENDS[name](held), who="w1")] == [Answer.STALE]
    kind = "late_success" if name == "succeed" else "late_failure"
    assert (rows.row(held.uuid), rows.totals(QUEUE)) == before[:2]
    assert rows.buckets() == before[2] | {(QUEUE, TYPE, kind, ""): (1, 7)}
    *_, zombie, note = rows.ledger(held.uuid)
    assert zombie.kind == "zombie"
    assert (note.kind, note.queue, note.type) == (kind, QUEUE, TYPE)
    assert (note.life, note.attempt, note.lease, note.reason) == (1, 2, held.lease, None)
    assert (note.worker_id, note.build) == ("w1", "b1")
    assert note.error_message == (None if name == "succeed" else "no such customer")
    floor.kept()


def test_the_note_is_under_the_life_and_attempt_it_tells_of(store, floor: Floor, rows: Rows):
    """The job has gone on since: dead, resurrected, at its second attempt, even succeeded."""
    held = floor.running()
    rescue(store, rows, held)
    floor.resurrect(held.uuid)
    (second,) = floor.take()
    floor.settle(retry(second))
    store.promote()
    (third,) = floor.take()
    assert [one.answer for one in floor.settle(succeed(held))] == [Answer.STALE]
    floor.settle(succeed(third))
    assert [one.answer for one in floor.settle(succeed(held))] == [Answer.STALE]
    notes = [line for line in rows.ledger(held.uuid) if line.kind == "late_success"]
    assert [(note.life, note.attempt) for note in notes] == [(1, 1)]
    floor.kept()


def test_a_late_end_wherever_the_job_is_now(store, floor: Floor, rows: Rows):
    dead, hot, done = floor.running(), floor.running(), floor.running()
    for held in (dead, hot, done):
        rescue(store, rows, held)
    floor.resurrect(hot.uuid, done.uuid)
    claimed = {held.uuid: held for held in floor.take(2)}
    floor.settle(succeed(claimed[done.uuid]))
    for held in (dead, hot, done):
        floor.settle(succeed(held))
        assert [line.kind for line in rows.ledger(held.uuid)] == ["zombie", "late_success"]


def test_a_late_end_of_a_purged_job_leaves_no_trail(store, floor: Floor, rows: Rows):
    held = floor.running()
    rescue(store, rows, held)
    floor.ask(Verb.PURGE, held.uuid)
    assert [one.answer for one in floor.settle(succeed(held))] == [Answer.STALE]
    assert rows.ledger(held.uuid) == []
    floor.kept()


def test_a_late_snooze_is_stale_and_not_worth_a_note(store, floor: Floor, rows: Rows):
    held = floor.running()
    rescue(store, rows, held)
    assert [one.answer for one in floor.settle(snooze(held))] == [Answer.STALE]
    assert [line.kind for line in rows.ledger(held.uuid)] == ["zombie"]


@pytest.mark.slow
def test_four_hundred_late_ends_in_one_call(store, floor: Floor, rows: Rows):
    floor.accept(*(job() for _ in range(400)))
    held = floor.take(400)
    wrong = [Succeed(one.id, one.lease + 1, 0) for one in held]
    assert {one.answer for one in floor.settle(*wrong)} == {Answer.STALE}


# -- a cancel that was requested ---------------------------------------------------------------------------------------


def test_success_wins_over_a_cancel_request(floor: Floor, rows: Rows):
    held = floor.running()
    floor.ask(Verb.CANCEL, held.uuid)
    (settled,) = floor.settle(succeed(held))
    assert settled.answer is Answer.APPLIED
    assert floor.spot(held.uuid) is Spot.ARCHIVE
    assert rows.ledger(held.uuid) == []
    floor.kept()


@pytest.mark.parametrize(("end", "spent"), [(retry, 1), (bury, 1), (snooze, 0)])
def test_a_failing_end_with_a_cancel_request_is_buried_as_cancelled(store, floor: Floor, rows: Rows, end, spent: int):
    held = floor.running()
    floor.ask(Verb.CANCEL, held.uuid)
    (settled,) = floor.settle(end(held))
    assert (settled.answer, settled.reason) == (Answer.APPLIED, Reason.CANCELLED)
    head = floor.head(held.uuid)
    assert (head.spot, head.reason, head.spent, head.incident_id) == (Spot.DLQ, Reason.CANCELLED, spent, None)
    (line,) = rows.ledger(held.uuid)
    assert (line.kind, line.reason, line.lease) == ("cancelled", "cancelled", held.lease)
    assert line.error_message == (None if end is snooze else "no such customer")
    assert rows.totals(QUEUE) == {}
    assert rows.buckets() == {(QUEUE, TYPE, "cancelled", "cancelled"): (1, 7)}
    assert store.incidents() == []
    # The answer was lost: it is told that it was buried.
    (settled,) = floor.settle(end(held))
    assert (settled.answer, settled.reason) == (Answer.ALREADY, Reason.CANCELLED)
    floor.kept()


def test_a_request_reaches_only_the_run_it_was_made_for(floor: Floor, rows: Rows, store):
    held = floor.running()
    floor.ask(Verb.CANCEL, held.uuid)
    floor.settle(bury(held))
    floor.resurrect(held.uuid)
    (again,) = floor.take()
    assert store.heartbeat([pair(again)]).cancel == frozenset()
    assert floor.settle(retry(again))[0].reason is None
