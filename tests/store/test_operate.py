"""What operators do to jobs that wait, run or are dead: edit, cancel, isolate, run now; each with its audit entry."""

from datetime import timedelta
from uuid import UUID

import pytest

from redrive.domain.edits import JobEdit
from redrive.domain.errors import InvalidField
from redrive.domain.failures import Reason
from redrive.domain.job import NO_LABELS
from redrive.domain.lifecycle import Wish
from redrive.domain.moves import Answered, Did, Skipped
from redrive.domain.states import ARROWS, Spot, Verb, sources

from .make import ACTOR, OTHER, QUEUE, TYPE, Floor, bury, draft, job, pair, succeed
from .rows import Rows
from .test_enqueue import BIG, EXACT

SPOTS = [Spot.SCHEDULED, Spot.FETCHED, Spot.PROCESSING, Spot.ARCHIVE, Spot.DLQ, Spot.PENDING]
"""Pending last: a claim for one of the others would find it."""
OPERATORS = [Verb.EDIT, Verb.CANCEL, Verb.ISOLATE, Verb.RUN_NOW, Verb.RESURRECT, Verb.TAKE_BACK, Verb.PURGE]


def at(floor: Floor, spot: Spot, **but):
    """The id of a job that is there."""
    match spot:
        case Spot.SCHEDULED:
            return floor.later(**but)
        case Spot.PENDING:
            return floor.one(**but)
        case Spot.FETCHED:
            return floor.fetched(**but).uuid
        case Spot.PROCESSING:
            return floor.running(**but).uuid
        case Spot.ARCHIVE:
            return floor.archived(**but)
        case _:
            return floor.dead(**but)


# -- for every verb ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("verb", OPERATORS)
def test_a_verb_moves_along_its_arrows_and_nowhere_else(store, floor: Floor, rows: Rows, verb: Verb):
    for spot in SPOTS:
        if verb is Verb.TAKE_BACK and spot in sources(verb):
            one = floor.dead()
            floor.resurrect(one, due=None if spot is Spot.PENDING else timedelta(hours=1))
        else:
            one = at(floor, spot)
        along_its_arrows(floor, rows, verb, spot, one)
        floor.fetch(9)  # what may be pending now is out of the way of the next claim
    floor.kept()


def along_its_arrows(floor: Floor, rows: Rows, verb: Verb, spot: Spot, one: UUID) -> None:
    before = rows.row(one)
    audits = len(floor.store.audit_entries())
    edit = JobEdit(payload=b"other") if verb is Verb.EDIT else JobEdit()
    (answer,) = floor.ask(verb, one, edit=edit, note="why")
    after = floor.spot(one)
    if spot in sources(verb):
        assert answer.ok
        assert answer.did is Did.DONE
        assert (spot, after) in ARROWS[verb]
        if verb is not Verb.PURGE:
            row = rows.row(one)
            assert row.version == before.version + 1 == answer.version
            assert row.modified_by == ACTOR
        (entry, *_) = floor.store.audit_entries()
        assert (entry.actor, entry.action, entry.target, entry.note) == (ACTOR, verb.value, str(one), "why")
        assert (entry.channel, entry.role) == ("code", "admin")
    elif (verb, spot) == (Verb.CANCEL, Spot.PROCESSING):
        assert answer.did is Did.REQUESTED
        assert rows.row(one).version == before.version == answer.version
    else:
        assert (answer.did, answer.skipped) == (None, Skipped.NOT_ALLOWED)
        assert answer.why
        assert answer.version == before.version
        assert rows.row(one) == before
        assert len(floor.store.audit_entries()) == audits


@pytest.mark.parametrize("verb", OPERATORS)
def test_a_version_that_was_not_read_is_refused(store, floor: Floor, rows: Rows, verb: Verb):
    for spot in sorted(sources(verb), key=SPOTS.index):
        one = at(floor, spot)
        before = rows.row(one)
        edit = JobEdit(payload=b"other") if verb is Verb.EDIT else JobEdit()
        for wrong in (before.version - 1, before.version + 1, 0):
            (answer,) = floor.ask(verb, (one, wrong), edit=edit)
            assert (answer.did, answer.skipped, answer.version) == (None, Skipped.CHANGED, before.version)
        assert rows.row(one) == before
    assert store.audit_entries() == []


@pytest.mark.parametrize("verb", OPERATORS)
def test_what_does_not_exist_is_told(store, floor: Floor, verb: Verb):
    (answer,) = floor.ask(verb, job().id, edit=JobEdit(priority=3) if verb is Verb.EDIT else JobEdit())
    assert (answer.did, answer.skipped) == (None, Skipped.NOT_FOUND)
    assert store.audit_entries() == []


def test_answers_are_in_the_order_given_each_with_its_own(floor: Floor, store):
    dead, done, unknown, wrong, second = floor.dead(), floor.archived(), job().id, floor.dead(), floor.dead()
    answers = floor.resurrect(second, done, unknown, (wrong, 77), (dead, 3))
    assert [one.id for one in answers] == [second, done, unknown, wrong, dead]
    assert [one.skipped for one in answers] == [None, Skipped.NOT_ALLOWED, Skipped.NOT_FOUND, Skipped.CHANGED, None]
    assert [entry.target for entry in store.audit_entries()] == sorted((str(dead), str(second)), reverse=True)


def test_one_id_twice_is_answered_twice_and_moved_once(floor: Floor, rows: Rows, store):
    one = floor.dead()
    answers = floor.resurrect(one, one)
    assert [answer.did for answer in answers] == [Did.DONE, Did.DONE]
    assert rows.row(one).version == 4
    assert len(store.audit_entries()) == 1


def test_more_than_a_batch_and_one_payload_for_many_are_refused(store, floor: Floor):
    with pytest.raises(InvalidField, match="1000"):
        floor.ask(Verb.PURGE, *(job().id for _ in range(1001)))
    with pytest.raises(InvalidField, match="payload"):
        floor.resurrect(floor.dead(), floor.dead(), edit=JobEdit(payload=b"1"))
    assert store.operate(Wish(Verb.PURGE), [], draft("purge")) == []


def test_a_stale_page_can_start_no_second_run(floor: Floor, store):
    """The job runs by now; whoever still sees it dead resurrects, edits and purges nothing."""
    one = floor.dead()
    seen = floor.head(one).version
    floor.resurrect(one)
    (held,) = floor.take()
    for verb in (Verb.RESURRECT, Verb.EDIT, Verb.PURGE):
        (answer,) = floor.ask(verb, (one, seen), edit=JobEdit(priority=1) if verb is Verb.EDIT else JobEdit())
        assert answer.skipped is Skipped.CHANGED
        (answer,) = floor.ask(verb, one, edit=JobEdit(priority=1) if verb is Verb.EDIT else JobEdit())
        assert answer.skipped is Skipped.NOT_ALLOWED
    assert floor.take() == []
    floor.settle(succeed(held))
    floor.kept()


@pytest.mark.postgres
def test_a_job_that_moves_while_it_is_looked_for_is_found(postgres_store, shared_postgres):
    """It leaves hot for the dlq after the dlq was looked at: it is not "not found"."""
    import threading

    import psycopg

    from .make import worker

    postgres_store.register(worker())
    floor = Floor(postgres_store)
    held = floor.running()
    answers: list[Answered] = []
    thread = threading.Thread(target=lambda: answers.extend(floor.ask(Verb.PURGE, held.uuid)))
    with psycopg.connect(shared_postgres) as moving:
        moving.execute("SELECT 1 FROM redrive.jobs_hot WHERE id = %s FOR UPDATE", [held.uuid])
        thread.start()
        thread.join(0.2)
        assert answers == [], "it waits for the row"
        columns = "id, due_at, created_at, updated_at, life_started_at, queue, type, content_type, payload"
        moving.execute(
            f"INSERT INTO redrive.jobs_dlq ({columns}, failed_at, reason)"
            f" SELECT {columns}, now(), 'isolated' FROM redrive.jobs_hot"
        )
        moving.execute("DELETE FROM redrive.jobs_hot")
    thread.join()
    assert [answer.did for answer in answers] == [Did.DONE]


# -- edit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spot", [Spot.SCHEDULED, Spot.PENDING, Spot.DLQ])
def test_an_edit_changes_what_it_says_and_keeps_what_was(store, floor: Floor, rows: Rows, spot: Spot):
    one = at(floor, spot, tags=("a",), labels={"x": "1"}, priority=20, idempotency_key="k")
    before = rows.row(one)
    answer = floor.edit((one, before.version), payload=b"new")
    assert (answer.did, answer.version) == (Did.DONE, before.version + 1)
    after = rows.row(one)
    changed = {name for name in before._fields if getattr(before, name) != getattr(after, name)}
    assert changed == {"payload", "revision", "version", "updated_at", "modified_by"}
    assert (after.payload, after.revision, after.modified_by) == (b"new", 2, ACTOR)
    record = store.find(one)
    assert record is not None
    (old,) = record.revisions
    assert (old.revision, old.life, old.payload, old.content_type) == (1, 1, before.payload, "application/json")
    assert (old.tags, old.labels, old.priority, old.idempotency_key) == (("a",), {"x": "1"}, 20, "k")
    assert (old.actor, old.at) == (ACTOR, record.head.updated_at)
    (entry,) = store.audit_entries()
    assert entry.details["changed"] == ["payload"]
    assert entry.details["revision"] == {"before": 1, "after": 2}
    assert set(entry.details["payload_sha256"]) == {"before", "after"}
    assert "new" not in str(entry.details)
    floor.kept()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("payload", b"new"),
        ("content_type", "text/plain"),
        ("tags", ("z",)),
        ("labels", {"y": "2"}),
        ("priority", 99),
        ("idempotency_key", "other"),
        ("idempotency_key", None),
    ],
)
def test_each_field_alone(store, floor: Floor, rows: Rows, name: str, value):
    one = floor.dead(tags=("a",), labels={"x": "1"}, priority=20, idempotency_key="k")
    before = store.find(one)
    floor.edit(one, **{name: value})
    after = store.find(one)
    assert before is not None
    assert after is not None
    fields = ("content_type", "tags", "labels", "priority", "idempotency_key")
    told = {field: getattr(after.head, field) for field in fields} | {"payload": after.payload}
    wanted = {field: getattr(before.head, field) for field in fields} | {"payload": before.payload, name: value}
    assert told == wanted
    assert after.head.revision == 2
    assert store.audit_entries()[0].details["changed"] == [name]
    floor.kept()


def test_an_edit_that_changes_nothing_writes_nothing(store, floor: Floor, rows: Rows):
    one = floor.dead(tags=("a",), labels={"x": "1"}, priority=20, idempotency_key="k")
    before = rows.row(one)
    same = {"payload": before.payload, "tags": ("a",), "labels": {"x": "1"}, "priority": 20, "idempotency_key": "k"}
    for changes in (same, {}, {"content_type": "application/json"}):
        answer = floor.edit(one, **changes)
        assert (answer.did, answer.skipped, answer.version) == (None, Skipped.UNCHANGED, before.version)
    assert rows.row(one) == before
    assert rows.revisions(one) == []
    assert store.audit_entries() == []


def test_an_edited_payload_is_what_was_saved_and_the_old_one_is_kept(store, floor: Floor, rows: Rows):
    one = floor.dead(payload=b"at first")
    payloads = list(EXACT.values())
    for payload in payloads:
        floor.edit(one, payload=payload)
        record = store.find(one)
        assert record is not None
        assert (record.payload, record.head.payload_size) == (payload, len(payload))
    assert [old.payload for old in rows.revisions(one)] == [b"at first", *payloads[:-1]]
    floor.kept()


@pytest.mark.slow
def test_five_megabytes_edited_and_resurrected(store, floor: Floor):
    one = floor.dead(payload=BIG)
    floor.edit(one, payload=BIG[::-1])
    floor.resurrect(one, edit=JobEdit(payload=BIG))
    (held,) = floor.take()
    assert held.payload == BIG
    floor.kept()


def test_tags_of_a_dead_job_stay_searchable(store, floor: Floor, rows: Rows):
    from redrive.domain.filters import JobFilter, PageRequest

    one = floor.dead(tags=("old",), labels={"customer": "1"})
    floor.edit(one, tags=("new",), labels={"customer": "2"})

    def found(**by) -> list[UUID]:
        return [head.id for head in store.list_jobs(JobFilter(**by), PageRequest()).jobs]

    assert (found(tag="old"), found(tag="new")) == ([], [one])
    assert (found(label=("customer", "1")), found(label=("customer", "2"))) == ([], [one])
    floor.edit(one, tags=(), labels=NO_LABELS)
    assert (found(tag="new"), found(label=("customer", "2"))) == ([], [])


def test_a_key_that_is_held_cannot_be_given(floor: Floor):
    holder, other = floor.one(idempotency_key="k"), floor.one(idempotency_key="l")
    answer = floor.edit(other, idempotency_key="k")
    assert (answer.skipped, answer.holder) == (Skipped.KEY_HELD, holder)
    assert "'k'" in answer.why
    assert floor.edit(floor.dead(queue=OTHER), idempotency_key="k").ok, "a dead job holds nothing"
    assert floor.edit(holder, idempotency_key="k").skipped is Skipped.UNCHANGED


def test_one_key_for_two_jobs_in_one_call_goes_to_the_first(floor: Floor):
    a, b = floor.one(), floor.one()
    answers = floor.ask(Verb.EDIT, a, b, edit=JobEdit(idempotency_key="k"))
    assert [(one.skipped, one.holder) for one in answers] == [(None, None), (Skipped.KEY_HELD, a)]


def test_queue_and_type_change_with_a_resurrection_only(floor: Floor, rows: Rows):
    one = floor.dead()
    before = rows.row(one)
    for edit in (JobEdit(queue=OTHER), JobEdit(type="sms.v1")):
        assert floor.ask(Verb.EDIT, one, edit=edit)[0].skipped is Skipped.NOT_ALLOWED
    assert rows.row(one) == before


def test_what_was_edited_while_waiting_is_what_runs(floor: Floor):
    one = floor.one()
    floor.edit(one, payload=b"repaired", priority=90)
    (held,) = floor.take()
    assert (held.payload, held.priority, held.revision) == (b"repaired", 90, 2)


# -- cancel and isolate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "spot"),
    [(verb, spot) for verb in (Verb.CANCEL, Verb.ISOLATE) for spot in SPOTS if spot in sources(verb)],
)
def test_work_taken_out_rests_in_the_dlq_and_counts_as_no_failure(
    store, floor: Floor, rows: Rows, verb: Verb, spot: Spot
):
    reason = Reason.CANCELLED if verb is Verb.CANCEL else Reason.ISOLATED
    one = at(floor, spot, tags=("t",))
    floor.ask(verb, one)
    head = floor.head(one)
    assert (head.spot, head.reason, head.attempt, head.spent, head.incident_id) == (Spot.DLQ, reason, 0, 0, None)
    assert ACTOR in (head.error_message or "")
    (line,) = rows.ledger(one)
    assert (line.kind, line.reason, line.lease, line.started_at) == ("cancelled", reason, None, None)
    assert rows.totals(QUEUE) == {}
    assert rows.buckets() == {(QUEUE, TYPE, reason, reason): (1, 0)}
    assert store.incidents() == []
    floor.kept()


def test_a_cancelled_reservation_cannot_be_started(store, floor: Floor):
    held = floor.fetched()
    floor.ask(Verb.CANCEL, held.uuid)
    assert store.start((QUEUE,), [pair(held)]) == frozenset()


def test_a_request_to_stop_is_kept_with_the_first_time(store, floor: Floor, rows: Rows):
    held = floor.running()
    floor.ask(Verb.CANCEL, held.uuid)
    first = rows.row(held.uuid).cancel_requested
    floor.ask(Verb.CANCEL, held.uuid)
    assert rows.row(held.uuid).cancel_requested == first
    assert [entry.result for entry in store.audit_entries()] == ["cancel requested"] * 2
    floor.kept()


def test_many_of_every_state_are_cancelled_in_one_call(store, floor: Floor):
    jobs = [at(floor, spot) for spot in SPOTS]
    assert [answer.did for answer in floor.ask(Verb.CANCEL, *jobs)] == [
        Did.DONE, Did.DONE, Did.REQUESTED, None, None, Did.DONE
    ]  # fmt: skip
    floor.kept()


# -- run now -----------------------------------------------------------------------------------------------------------


def test_run_now_makes_pending_and_begins_the_life(store, floor: Floor, rows: Rows):
    one = floor.later(7200)
    before = store.now()
    floor.ask(Verb.RUN_NOW, one)
    row = rows.row(one)
    assert floor.spot(one) is Spot.PENDING
    assert before <= row.due_at == row.life_started_at <= store.now()
    assert [held.uuid for held in floor.take()] == [one]


def test_run_now_does_not_make_a_retrys_life_younger(store, floor: Floor, rows: Rows):
    from .make import retry

    held = floor.running()
    floor.settle(retry(held, 600))
    rows.earlier(held.uuid, "life_started_at", 1000)
    began = rows.row(held.uuid).life_started_at
    floor.ask(Verb.RUN_NOW, held.uuid)
    assert rows.row(held.uuid).life_started_at == began


def test_burying_after_an_edit_tells_of_the_revision_that_ran(floor: Floor, rows: Rows):
    one = floor.one()
    floor.edit(one, payload=b"2")
    (held,) = floor.take()
    floor.settle(bury(held))
    assert rows.ledger(one)[0].revision == 2
