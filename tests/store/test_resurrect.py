"""From the dead letter queue back to life, and back again."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy import event

from redrive.domain.edits import JobEdit
from redrive.domain.failures import FAILURES, Reason
from redrive.domain.moves import Did, Skipped
from redrive.domain.states import Spot, Verb

from .make import ACTOR, OTHER, QUEUE, TYPE, Floor, bury, error, job, retry, snooze, worker
from .rows import Rows


def test_a_resurrected_job_begins_a_fresh_life(store, floor: Floor, rows: Rows):
    one = floor.dead(
        tags=("t",), labels={"c": "1"}, priority=33, idempotency_key="k", created_by="shop", max_attempts=4
    )
    old = rows.row(one)
    before = store.now()
    (answer,) = floor.resurrect((one, old.version), note="try again")
    assert (answer.did, answer.version) == (Did.DONE, 4)
    row, head = rows.row(one), floor.head(one)
    assert head.spot is Spot.PENDING
    assert (row.version, row.life, row.attempt, row.spent, row.revision) == (4, 2, 0, 0, 1)
    assert before <= row.due_at == row.life_started_at <= store.now()
    assert (row.lease, row.worker_id, row.started_at, row.progress, row.cancel_requested) == (None,) * 5
    assert (row.created_at, row.created_by, row.modified_by) == (old.created_at, "shop", ACTOR)
    assert (head.priority, head.tags, head.labels, head.idempotency_key) == (33, ("t",), {"c": "1"}, "k")
    assert (head.queue, head.type, row.payload, row.unserved_since) == (QUEUE, TYPE, old.payload, None)
    assert rows.totals(QUEUE) == {}
    assert rows.buckets() == {(QUEUE, TYPE, "failed", "fatal"): (1, 7)}, "a failure that happened stays counted"
    assert [line.life for line in rows.ledger(one)] == [1], "and on record"
    (entry,) = store.audit_entries()
    assert (entry.result, entry.note) == ("resurrected", "try again")
    assert (entry.details["life"], entry.details["was"]) == (2, "fatal")
    floor.kept()


@pytest.mark.parametrize("reason", Reason)
def test_only_failures_are_taken_off_the_failed_total(floor: Floor, rows: Rows, reason: Reason):
    floor.dead(reason)
    other = floor.dead(reason)
    floor.resurrect(other)
    assert rows.totals(QUEUE) == ({"failed": 1} if reason in FAILURES else {})
    floor.kept()


def test_marks_of_a_job_that_lives_again_are_gone(floor: Floor, rows: Rows):
    from redrive.store.sql.tables import dead_marks

    one = floor.dead(tags=("t",), labels={"c": "1"})
    assert rows.count(dead_marks) == 2
    floor.resurrect(one)
    assert rows.count(dead_marks) == 0


def test_repaired_on_the_way(store, floor: Floor, rows: Rows):
    """The seed's story: edit and resurrection are one action."""
    one = floor.dead(tags=("a",), priority=20)
    edit = JobEdit(payload=b'{"to": "b@example.com"}', tags=("fixed",), priority=5, content_type="application/json")
    (answer,) = floor.resurrect((one, 3), edit=edit)
    assert answer.did is Did.DONE
    record = store.find(one)
    assert record is not None
    assert (record.payload, record.head.tags, record.head.priority) == (edit.payload, ("fixed",), 5)
    assert (record.head.revision, record.head.version) == (2, 4)
    (old,) = record.revisions
    assert (old.payload, old.tags, old.priority, old.life, old.actor) == (
        b'{"to": "a@example.com"}',
        ("a",),
        20,
        1,
        ACTOR,
    )
    (entry,) = store.audit_entries()
    assert entry.details["changed"] == ["payload", "priority", "tags"]
    assert floor.take()[0].payload == edit.payload
    floor.kept()


def test_to_another_queue_and_type(floor: Floor, rows: Rows, store):
    one = floor.dead()
    floor.resurrect(one, edit=JobEdit(queue=OTHER, type="sms.v1"))
    head = floor.head(one)
    assert (head.queue, head.type, head.revision) == (OTHER, "sms.v1", 1)
    assert rows.totals(QUEUE) == {}
    assert rows.totals(OTHER) == {}
    assert store.audit_entries()[0].details["changed"] == ["queue", "type"]
    (held,) = floor.fetch(queues=(OTHER,), types=("sms.v1",))
    floor.settle(bury(held))
    assert rows.totals(OTHER) == {"failed": 1}
    floor.kept()


@pytest.mark.parametrize("due", [timedelta(hours=2), datetime(2100, 1, 1, 12, 30, 0, 7, tzinfo=UTC)])
def test_later(store, floor: Floor, rows: Rows, due):
    one = floor.dead()
    before = store.now()
    floor.resurrect(one, due=due)
    row = rows.row(one)
    assert floor.spot(one) is Spot.SCHEDULED
    assert row.life_started_at == row.due_at, "its life begins when it is due"
    if isinstance(due, datetime):
        assert row.due_at == due
    else:
        assert before <= row.due_at - due <= store.now()


@pytest.mark.slow
@pytest.mark.parametrize("due", [timedelta(0), timedelta(hours=-3), datetime(2001, 1, 1, tzinfo=UTC)])
def test_a_time_that_has_passed_is_now(store, floor: Floor, rows: Rows, due):
    one = floor.dead()
    before = store.now()
    floor.resurrect(one, due=due)
    row = rows.row(one)
    assert floor.spot(one) is Spot.PENDING
    assert before <= row.due_at == row.life_started_at


def test_three_full_attempts_in_each_of_five_rounds(store, floor: Floor, rows: Rows):
    one = floor.one(max_attempts=3)
    for life in range(1, 6):
        for attempt in (1, 2, 3):
            store.promote()
            (held,) = floor.take()
            assert (held.life, held.attempt, held.spent) == (life, attempt, attempt - 1)
            floor.settle(retry(held) if attempt < 3 else bury(held, Reason.RETRIES_EXHAUSTED))
        assert floor.spot(one) is Spot.DLQ
        assert (floor.head(one).attempt, floor.head(one).spent) == (3, 3)
        floor.resurrect(one)
    assert [(line.life, line.attempt) for line in rows.ledger(one)] == [(n, m) for n in range(1, 6) for m in (1, 2, 3)]
    assert rows.row(one).life == 6
    floor.kept()


def test_an_attempt_lost_with_its_worker_counts_once(store, floor: Floor, rows: Rows):
    one = floor.one()
    (held,) = floor.take()
    rows.silent(one)
    store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=0)
    floor.resurrect(one)
    assert [floor.take()[0].attempt for _ in range(1)] == [1]
    assert len(rows.ledger(one)) == 1
    floor.settle(retry(held))
    assert rows.row(one).spent == 0


def test_dead_for_thirty_days_has_a_whole_life_before_it(store, floor: Floor, rows: Rows):
    from redrive.store.sql.tables import jobs_dlq

    one = floor.dead()
    month = timedelta(days=30)
    row = rows.row(one)
    rows.set(jobs_dlq, one, created_at=row.created_at - month, life_started_at=row.life_started_at - month,
             due_at=row.due_at - month, failed_at=row.failed_at - month)  # fmt: skip
    floor.resurrect(one)
    (held,) = floor.take()
    assert held.age < 5
    assert floor.head(one).created_at < store.now() - timedelta(days=29)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_key_that_is_held_is_refused_by_name(store, floor: Floor, rows: Rows):
    one = floor.dead(idempotency_key="k")
    holder = floor.one(idempotency_key="k")
    (answer,) = floor.resurrect(one)
    assert (answer.did, answer.skipped, answer.holder) == (None, Skipped.KEY_HELD, holder)
    assert str(holder) in answer.why
    assert floor.spot(one) is Spot.DLQ
    assert store.audit_entries() == []
    floor.kept()


def test_a_held_key_may_be_dropped(store, floor: Floor):
    one = floor.dead(idempotency_key="k")
    floor.one(idempotency_key="k")
    (answer,) = floor.resurrect(one, drop_key=True)
    assert answer.did is Did.DONE
    head = floor.head(one)
    assert (head.idempotency_key, head.revision) == (None, 2)
    record = store.find(one)
    assert record is not None
    assert record.revisions[0].idempotency_key == "k"
    floor.kept()


def test_a_free_key_is_kept_even_when_it_might_be_dropped(floor: Floor):
    one = floor.dead(idempotency_key="k")
    floor.resurrect(one, drop_key=True)
    assert floor.head(one).idempotency_key == "k"
    assert floor.accept(job(idempotency_key="k")) == [one]


@pytest.mark.parametrize("drop_key", [False, True])
def test_two_dead_with_one_key_in_one_call(floor: Floor, rows: Rows, drop_key: bool):
    first, second = floor.dead(idempotency_key="k"), floor.dead(idempotency_key="k")
    other = floor.dead(idempotency_key="l")
    answers = floor.resurrect(first, second, other, drop_key=drop_key)
    assert answers[0].did is answers[2].did is Did.DONE
    assert floor.head(first).idempotency_key == "k"
    if drop_key:
        assert answers[1].did is Did.DONE
        assert floor.head(second).idempotency_key is None
    else:
        assert (answers[1].skipped, answers[1].holder) == (Skipped.KEY_HELD, first)
        assert floor.spot(second) is Spot.DLQ
    floor.kept()


def test_the_key_counts_under_the_type_it_goes_to(floor: Floor):
    one = floor.dead(idempotency_key="k")
    holder = floor.one(idempotency_key="k", type="sms.v1", queue=OTHER)
    (answer,) = floor.resurrect(one, edit=JobEdit(type="sms.v1"))
    assert (answer.skipped, answer.holder) == (Skipped.KEY_HELD, holder)
    assert floor.resurrect(one)[0].did is Did.DONE


def test_a_thousand_in_one_call(floor: Floor, rows: Rows):
    floor.accept(*(job(idempotency_key=f"k{n}") for n in range(500)))
    held = floor.take(500)
    floor.settle(*(bury(one) for one in held))
    answers = floor.resurrect(*(one.uuid for one in held))
    assert {answer.did for answer in answers} == {Did.DONE}
    assert rows.totals(QUEUE) == {}
    floor.kept()


# -- take back ---------------------------------------------------------------------------------------------------------


def without(row, *names: str) -> dict[str, object]:
    return {name: getattr(row, name) for name in row._fields if name not in names}


MOVED = ("version", "updated_at", "modified_by", "due_at", "life_started_at", "progress")
"""What a resurrection and its take-back may leave changed in a dead row."""


@pytest.mark.parametrize("due", [None, timedelta(hours=1)])
def test_a_job_taken_back_is_dead_as_it_was(store, floor: Floor, rows: Rows, due):
    jobs = [
        floor.dead(reason, error("x" * 50), tags=("t",), labels={"c": "1"}, idempotency_key=reason.value)
        for reason in Reason
    ]
    before, totals = [rows.row(one) for one in jobs], rows.totals(QUEUE)
    floor.resurrect(*jobs, due=due)
    answers = floor.ask(Verb.TAKE_BACK, *((one, 4) for one in jobs))
    for one, answer, was in zip(jobs, answers, before, strict=True):
        assert (answer.did, answer.version) == (Did.DONE, 5)
        after = rows.row(one)
        assert without(after, *MOVED) == without(was, *MOVED)
        assert (after.version, after.modified_by) == (5, ACTOR)
        assert len(rows.ledger(one)) == 1
    assert rows.totals(QUEUE) == totals
    assert {entry.result for entry in store.audit_entries()} == {"taken back", "resurrected"}
    floor.kept()


def test_what_was_changed_on_the_way_is_restored(store, floor: Floor, rows: Rows):
    one = floor.dead(payload=b"old", tags=("t",), labels={"c": "1"}, priority=20, idempotency_key="k")
    floor.one(idempotency_key="k")
    before = rows.row(one)
    edit = JobEdit(payload=b"new", tags=("u",), labels={}, priority=1, queue=OTHER, type="sms.v1")
    floor.resurrect(one, edit=edit, drop_key=True)
    floor.ask(Verb.TAKE_BACK, one)
    after = rows.row(one)
    assert without(after, *MOVED, "revision") == without(before, *MOVED, "revision")
    assert (after.revision, after.version) == (3, 5)
    assert [old.payload for old in rows.revisions(one)] == [b"old", b"new"]
    assert rows.totals(QUEUE) == {"failed": 1}
    assert rows.totals(OTHER) == {}
    floor.kept()


def test_charged_attempts_come_back_and_snoozes_do_not(store, floor: Floor, rows: Rows):
    one = floor.one()
    for end in (snooze, retry, snooze, bury):
        store.promote()
        (held,) = floor.take()
        floor.settle(end(held))
    assert (rows.row(one).attempt, rows.row(one).spent) == (4, 2)
    floor.resurrect(one)
    floor.ask(Verb.TAKE_BACK, one)
    assert (rows.row(one).attempt, rows.row(one).spent) == (4, 2)
    floor.kept()


def test_back_and_forth_as_often_as_wanted(floor: Floor, rows: Rows):
    one = floor.dead(payload=b"0")
    for n in range(1, 6):
        floor.resurrect(one, edit=JobEdit(payload=b"%d" % n) if n % 2 else JobEdit())
        assert rows.row(one).life == 2
        assert floor.ask(Verb.TAKE_BACK, one)[0].did is Did.DONE
        assert (rows.row(one).payload, rows.row(one).life) == (b"0", 1)
        floor.kept()
    floor.resurrect(one)
    assert floor.take()[0].payload == b"0"


def test_only_the_newest_life_is_taken_back(floor: Floor, rows: Rows):
    one = floor.dead(payload=b"1")
    floor.resurrect(one, edit=JobEdit(payload=b"2"))
    (held,) = floor.take()
    floor.settle(bury(held, Reason.TIMEOUT))
    floor.resurrect(one)
    floor.ask(Verb.TAKE_BACK, one)
    row = rows.row(one)
    assert (row.life, row.reason, row.payload, row.revision) == (2, "timeout", b"2", 2)
    floor.kept()


def test_an_edit_of_the_dead_job_is_not_undone(floor: Floor, rows: Rows):
    one = floor.dead(payload=b"1")
    floor.edit(one, payload=b"2")
    floor.resurrect(one)
    floor.ask(Verb.TAKE_BACK, one)
    assert (rows.row(one).payload, rows.row(one).revision) == (b"2", 2)
    floor.kept()


def test_a_job_that_ran_is_not_taken_back(store, floor: Floor):
    one = floor.dead()
    floor.resurrect(one)
    (held,) = floor.take()
    assert floor.ask(Verb.TAKE_BACK, one)[0].skipped is Skipped.NOT_ALLOWED
    floor.settle(retry(held, 60))
    answer = floor.ask(Verb.TAKE_BACK, one)[0]
    assert answer.skipped is Skipped.NOT_ALLOWED
    assert "has run" in answer.why


def test_a_job_edited_since_is_not_taken_back(floor: Floor, store):
    one = floor.dead()
    floor.resurrect(one)
    floor.edit(one, payload=b"2")
    before = floor.head(one)
    answer = floor.ask(Verb.TAKE_BACK, one)[0]
    assert (answer.skipped, answer.version) == (Skipped.NOT_ALLOWED, before.version)
    assert "edited" in answer.why
    assert floor.head(one) == before


def test_a_job_that_was_never_dead_is_not_taken_back(floor: Floor):
    assert floor.ask(Verb.TAKE_BACK, floor.one())[0].skipped is Skipped.NOT_ALLOWED


def test_reserved_and_given_back_can_still_be_taken_back(store, floor: Floor):
    from redrive.domain.moves import Release

    one = floor.dead()
    floor.resurrect(one)
    (held,) = floor.fetch()
    store.give_back([Release(held.id, held.lease)])
    assert floor.ask(Verb.TAKE_BACK, one)[0].did is Did.DONE
    floor.kept()


@pytest.mark.postgres
def test_a_key_that_is_always_taken_just_then(postgres_store, shared_postgres):
    """Free whenever it is looked at and taken whenever it is wanted: that job is skipped, the others come back."""
    store = postgres_store
    store.register(worker())
    floor = Floor(store)
    busy, other = floor.dead(idempotency_key="k"), floor.dead()
    with psycopg.connect(shared_postgres, autocommit=True) as elsewhere:

        def interfere(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO redrive.jobs_hot"):
                store.enqueue([job(idempotency_key="k")])
            elif "FOR UPDATE OF jobs_dlq" in statement:
                elsewhere.execute("DELETE FROM redrive.jobs_hot WHERE idempotency_key = 'k'")

        event.listen(store._db._writer, "before_cursor_execute", interfere)
        try:
            answers = floor.resurrect(busy, other)
        finally:
            event.remove(store._db._writer, "before_cursor_execute", interfere)
        ((holder,),) = elsewhere.execute("SELECT id FROM redrive.jobs_hot WHERE idempotency_key = 'k'").fetchall()
    assert [(one.skipped, one.holder) for one in answers] == [(Skipped.KEY_HELD, holder), (None, None)]
    assert (floor.spot(busy), floor.spot(other)) == (Spot.DLQ, Spot.PENDING)
    floor.kept()
