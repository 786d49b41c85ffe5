"""The desk on both databases: one job and many, versions, keys, revisions, audit."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from redrive import (
    Fatal,
    InvalidField,
    KeyHeld,
    NotAllowed,
    NotFound,
    PayloadError,
    Reason,
    Redrive,
    Spot,
    VersionChanged,
)
from redrive.domain.audit import Actor, AuditEntry, Channel
from redrive.domain.filters import JobFilter
from redrive.domain.job import JobRecord
from redrive.domain.moves import Did, Skipped
from redrive.domain.states import Place
from redrive.domain.text import one_line
from redrive.ops.service import Desk
from redrive.store.port import ClaimRequest, QueueChange, TypeInfo, WorkerInfo

BROKEN = b'{\n  "to": "user@example.com",\n  "subject": "Welcome!"\n  "body": "Hello, World!"\n}'
REPAIRED = BROKEN.replace(b'"Welcome!"', b'"Welcome!",')


def dead(app: Redrive, payload: bytes = b"{}", **options: Any) -> UUID:
    """A job that an operator took out: it is in the dlq without any worker."""
    handle = app.enqueue_raw("t", payload, **options)
    (answer,) = app.desk("setup").isolate(handle.id)
    assert answer.ok
    return handle.id


def audit(app: Redrive, job: UUID | str) -> list[AuditEntry]:
    return [entry for entry in app.store.audit_entries(target=str(job)) if entry.actor != "setup"]


# -- one job -----------------------------------------------------------------------------------------------------------


def test_the_main_job_from_death_to_success(app, desk):
    sent: list[str] = []

    @app.job("email.send.v1", queue="notifications")
    def send(to: str, subject: str, body: str) -> None:
        sent.append(to)

    handle = app.enqueue_raw("email.send.v1", BROKEN, created_by="shop")
    app.worker().run(burst=True)
    record = desk.get(handle.id)
    assert (record.head.reason, record.payload) == (Reason.FATAL, BROKEN)
    assert "line 4, column 3" in record.ledger[0].error_message

    answer = desk.resurrect(
        handle.id,
        payload=REPAIRED,
        tags=["resurrected", "manual"],
        priority=30,
        version=record.head.version,
        note="comma",
    )
    assert (answer.did, answer.version) == (Did.DONE, record.head.version + 1)
    head = desk.get(handle.id).head
    assert (head.spot, head.life, head.attempt, head.spent, head.priority) == (Spot.PENDING, 2, 0, 0, 30)
    assert (head.tags, head.created_by, head.modified_by) == (("resurrected", "manual"), "shop", "ann@example.com")

    app.worker().run(burst=True)
    record = desk.get(handle.id)
    assert (record.head.spot, record.head.life, sent) == (Spot.ARCHIVE, 2, ["user@example.com"])
    assert [(entry.life, entry.kind, entry.reason) for entry in record.ledger] == [(1, "failed", "fatal")]
    assert [(old.revision, old.payload) for old in record.revisions] == [(1, BROKEN)]
    (entry,) = audit(app, handle.id)
    assert (entry.actor, entry.channel, entry.action, entry.note) == ("ann@example.com", "code", "resurrect", "comma")
    assert "user@example.com" not in str(entry.details)


@pytest.mark.parametrize("payload", [b"", b"null", b"{}", b"[]", b'""'])
def test_payloads_of_next_to_nothing_stay_what_they_are(app, desk, payload):
    job = dead(app, payload)
    desk.edit(job, tags=["seen"])
    desk.resurrect(job)
    assert desk.get(job).payload == payload


def test_an_edit_that_changes_nothing_writes_nothing(app, desk):
    payload = b'{"b":1,"a":2,"a":3}'
    job = dead(app, payload, tags=["x"], labels={"a": "1"}, priority=20)
    before = desk.get(job)
    for same in ({"payload": payload}, {"tags": ["x"]}, {"labels": {"a": "1"}}, {"priority": 20}, {}):
        answer = desk.edit(job, **same, version=before.head.version)
        assert (answer.did, answer.skipped) == (None, Skipped.UNCHANGED)
    assert desk.get(job) == before
    assert audit(app, job) == []


def test_an_edit_changes_what_was_changed_and_keeps_what_was(app, desk):
    job = dead(app, b'{"n":1}', tags=["x"], labels={"a": "1"}, idempotency_key="k")
    version = desk.get(job).head.version
    answer = desk.edit(job, payload=b'{"n":2}', priority=99, version=version, note="twice")
    record = desk.get(job)
    assert (record.payload, record.head.priority, record.head.version) == (b'{"n":2}', 99, version + 1)
    assert (record.head.tags, record.head.labels, record.head.idempotency_key) == (("x",), {"a": "1"}, "k")
    assert (record.head.place, record.head.revision, answer.version) == (Place.DLQ, 2, version + 1)
    (old,) = record.revisions
    assert (old.payload, old.priority, old.tags, old.actor) == (b'{"n":1}', 10, ("x",), "ann@example.com")

    desk.edit(job, tags=[], labels={}, idempotency_key=None)
    head = desk.get(job).head
    assert (head.tags, head.labels, head.idempotency_key) == ((), {}, None)
    assert [entry.action for entry in audit(app, job)] == ["edit", "edit"]


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (b"\xff\x00", b"\xff\x00"),
        ("über", "über".encode()),
        ({"b": 1, "a": [1.5, None]}, b'{"b":1,"a":[1.5,null]}'),
        (None, b"null"),
    ],
)
def test_a_payload_may_be_bytes_text_or_json(app, desk, payload, stored):
    job = dead(app)
    desk.edit(job, payload=payload)
    assert desk.get(job).payload == stored


@pytest.mark.slow
def test_a_revision_can_be_taken_again(app, desk):
    job = dead(app, b'{"n":1}')
    desk.edit(job, payload=b'{"n":2}')
    with pytest.raises(InvalidField, match="revision: 7 is not kept; expected an earlier revision of this job: 1"):
        desk.resurrect(job, revision=7)
    with pytest.raises(InvalidField, match="together with a payload"):
        desk.resurrect(job, revision=1, payload=b"{}")
    desk.resurrect(job, revision=1)
    assert desk.get(job).payload == b'{"n":1}'


def test_a_revision_is_taken_only_of_the_job_that_was_read(app, desk, monkeypatch):
    job = dead(app, b'{"n":1}')
    desk.edit(job, payload=b'{"n":2}')
    read = desk.get

    def get(identity: UUID) -> JobRecord:
        record: JobRecord = read(identity)
        app.desk("bob").edit(identity, tags=["meanwhile"])
        return record

    monkeypatch.setattr(desk, "get", get)
    with pytest.raises(VersionChanged):
        desk.resurrect(job, revision=1)


def test_resurrect_to_another_queue_and_type_at_another_time(app, desk):
    job = dead(app)
    desk.resurrect(job, queue="slow", type="t.v2", run_after=timedelta(hours=1))
    head = desk.get(job).head
    assert (head.queue, head.type, head.spot) == ("slow", "t.v2", Spot.SCHEDULED)
    assert timedelta(minutes=59) < head.due_at - app.store.now() <= timedelta(hours=1)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"priority": "high"}, "priority"),
        ({"priority": 101}, "priority"),
        ({"tags": "one"}, "tags"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"payload": {"x": float("nan")}}, "x"),
        ({"payload": "\ud800"}, "payload"),
        ({"payload": b"x" * 1_000_001}, "payload"),
        ({"note": "x" * 2001}, "note"),
        ({"version": "3"}, "version"),
        ({"version": True}, "version"),
    ],
    ids=lambda value: "" if isinstance(value, str) else one_line(value, 30),
)
def test_a_change_out_of_range_is_named_and_nothing_happens(lite, changes: dict[str, Any], field):
    desk = lite.desk("ann")
    job = dead(lite)
    before = desk.get(job)
    for verb in (desk.edit, desk.resurrect):
        with pytest.raises(InvalidField) as refused:
            verb(job, **changes)
        assert refused.value.field == field
    assert desk.get(job) == before
    with pytest.raises(InvalidField, match="run_after"):
        desk.resurrect(job, run_after=float("nan"))
    with pytest.raises(InvalidField, match="id: 'x' is not an id"):
        desk.get("x")


def test_a_refused_payload_names_its_place(app, desk):
    with pytest.raises(PayloadError) as refused:
        desk.edit(dead(app), payload='{\n"a": "\ud800"}')
    assert (refused.value.line, refused.value.column, refused.value.offset) == (2, 7, 8)


def test_conflicts_have_their_own_errors_and_change_nothing(app, desk):
    job = dead(app, idempotency_key="k")
    version = desk.get(job).head.version
    with pytest.raises(VersionChanged) as changed:
        desk.edit(job, tags=["x"], version=version - 1)
    assert (changed.value.expected, changed.value.actual) == (version - 1, version)
    with pytest.raises(NotFound):
        desk.edit(uuid4(), tags=["x"])
    with pytest.raises(NotFound):
        desk.get(uuid4())

    live = app.enqueue("t", {}, idempotency_key="k")
    with pytest.raises(KeyHeld) as held:
        desk.resurrect(job)
    assert (held.value.key, held.value.holder) == ("k", str(live.id))
    with pytest.raises(NotAllowed, match="cannot resurrect a job that is pending"):
        desk.resurrect(live.id)
    assert desk.get(job).head.version == version

    desk.resurrect(job, drop_key=True)
    assert desk.get(job).head.idempotency_key is None
    with pytest.raises(NotAllowed, match="pending"):
        desk.resurrect(job)


def test_a_stale_page_does_nothing_to_a_running_job(app, desk):
    """Row 24: the job runs; an operator who still sees it dead acts on it."""
    job = dead(app, b'{"n":1}')
    stale = desk.get(job).head.version
    desk.resurrect(job)
    info = WorkerInfo("w", "h", 1, "b", ("default",), (TypeInfo("t", "default", {}, False, "bury", {}, None),), 1)
    app.store.register(info)
    (claimed,) = app.store.claim(ClaimRequest("w", ("default",), 10, ("t",)))
    assert claimed.started
    for act in (
        lambda: desk.resurrect(job, version=stale),
        lambda: desk.edit(job, payload=b"{}", version=stale),
    ):
        with pytest.raises(VersionChanged):
            act()
    for act in (lambda: desk.resurrect(job), lambda: desk.edit(job, payload=b"{}")):
        with pytest.raises(NotAllowed, match="processing"):
            act()
    answers = [*desk.purge([(job, stale)]), *desk.purge(job), *desk.isolate(job), *desk.take_back(job)]
    assert [answer.skipped for answer in answers] == [Skipped.CHANGED, *[Skipped.NOT_ALLOWED] * 3]
    assert [answer.did for answer in desk.cancel(job)] == [Did.REQUESTED]
    record = desk.get(job)
    assert (record.head.spot, record.payload, record.head.attempt) == (Spot.PROCESSING, b'{"n":1}', 1)
    assert app.store.claim(ClaimRequest("w", ("default",), 10, ("t",))) == []


@pytest.mark.slow
def test_each_round_has_the_whole_budget(app, desk):
    """Row 45: three executions in every life, numbered by life and attempt."""
    runs: list[int] = []

    @app.job("t")
    def handler() -> None:
        runs.append(1)
        raise OSError("down")

    handle = handler.enqueue()
    for life in range(1, 6):
        for _ in range(3):
            if handle.status() is not Spot.DLQ:
                app.worker().run(burst=True)
        record = desk.get(handle.id)
        assert (record.head.reason, record.head.life, len(runs)) == (Reason.RETRIES_EXHAUSTED, life, 3 * life)
        assert [(e.life, e.attempt) for e in record.ledger][-3:] == [(life, 1), (life, 2), (life, 3)]
        desk.resurrect(handle.id)


def test_take_back_undoes_a_resurrection(app, desk):
    @app.job("t")
    def handler() -> None:
        raise Fatal("no")

    handle = handler.enqueue()
    app.worker().run(burst=True)
    before = desk.get(handle.id).head
    desk.resurrect(handle.id, queue="elsewhere")
    assert [answer.did for answer in desk.take_back(handle.id)] == [Did.DONE]
    after = desk.get(handle.id).head
    assert (after.place, after.reason, after.error_message) == (before.place, before.reason, before.error_message)


# -- many jobs ---------------------------------------------------------------------------------------------------------


def test_many_jobs_go_in_batches_with_an_answer_for_each(app):
    desk = Desk(app.store, "ann", batch=100)
    handles = app.enqueue_many([("t", {"n": n}) for n in range(250)])
    ids = [handle.id for handle in handles]
    seen: list[int] = []
    answers = desk.isolate(ids, progress=seen.append)
    assert seen == [100, 200, 250]
    assert [answer.id for answer in answers] == ids
    assert all(answer.did is Did.DONE for answer in answers)

    answers = desk.resurrect_many([*ids[:3], uuid4(), ids[0]], note="again")
    assert [answer.skipped for answer in answers] == [None, None, None, Skipped.NOT_FOUND]
    assert {entry.note for identity in ids[:3] for entry in audit(app, identity) if entry.action == "resurrect"} == {
        "again"
    }
    assert app.insight().count(JobFilter(place=Place.DLQ)).number == 247
    assert app.insight().count(JobFilter(place=Place.HOT)).number == 3


def test_a_crash_between_batches_leaves_whole_batches(app):
    desk = Desk(app.store, "ann", batch=10)
    ids = [handle.id for handle in app.enqueue_many([("t", {}) for _ in range(30)])]

    def crash(done: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        desk.isolate(ids, progress=crash)
    places = [desk.get(identity).head.place for identity in ids]
    assert places == [Place.DLQ] * 20 + [Place.HOT] * 10


def test_versions_travel_with_ids(app, desk):
    first, second = dead(app), dead(app)
    desk.edit(first, tags=["changed since"])
    versions = [(first, 2), (second, desk.get(second).head.version)]
    answers = desk.resurrect_many(versions)
    assert [answer.skipped for answer in answers] == [Skipped.CHANGED, None]
    with pytest.raises(InvalidField, match=r"ids\[1\]: .* at two versions"):
        desk.purge([(first, 1), (first, 2)])
    with pytest.raises(InvalidField, match=r"ids\[0\]: 'x' is not an id"):
        desk.purge(["x"])


def test_waiting_jobs_are_cancelled_brought_forward_and_purged_when_dead(app, desk):
    soon, later = app.enqueue("t", {}), app.enqueue("t", {}, run_after=3600)
    assert [answer.did for answer in desk.run_now(later.id)] == [Did.DONE]
    assert later.status() is Spot.PENDING
    assert [answer.skipped for answer in desk.run_now(later.id)] == [Skipped.NOT_ALLOWED]
    assert [answer.skipped for answer in desk.purge(soon.id)] == [Skipped.NOT_ALLOWED]
    assert [answer.did for answer in desk.cancel([str(soon.id)])] == [Did.DONE]
    assert desk.get(soon.id).head.reason is Reason.CANCELLED
    assert [answer.did for answer in desk.purge(soon.id)] == [Did.DONE]
    assert soon.status() is Spot.NOWHERE
    assert [entry.action for entry in audit(app, soon.id)] == ["purge", "cancel"]


def test_the_archive_is_purged_by_age_in_batches(app):
    @app.job("t")
    async def handler() -> None: ...

    app.enqueue_many([handler.job() for _ in range(25)])
    app.worker().run(burst=True)
    desk = Desk(app.store, "ann", batch=10)
    assert desk.purge_archive(timedelta(days=1)) == 0
    assert desk.purge_archive(datetime(2020, 1, 1, tzinfo=UTC)) == 0
    seen: list[int] = []
    assert desk.purge_archive(timedelta(0), progress=seen.append) == 25
    assert seen == [10, 20, 25]
    for wrong in (datetime(2020, 1, 1), timedelta(seconds=-1), 5):  # noqa: DTZ001 - no zone is the point
        with pytest.raises(InvalidField, match="older_than"):
            desk.purge_archive(wrong)  # type: ignore[arg-type]


# -- queues ------------------------------------------------------------------------------------------------------------


def test_queues_are_paused_and_set_with_an_audit_entry(app, desk):
    assert desk.pause("q", note="incident").paused
    assert not desk.resume("q").paused
    changed = desk.set_queue("q", QueueChange(zombie_timeout=120.0, owner="team a"))
    assert (changed.zombie_timeout, changed.owner, changed.paused) == (120.0, "team a", False)
    with pytest.raises(VersionChanged):
        desk.pause("q", version=changed.version - 1)
    cleared = desk.set_queue("q", QueueChange(clear=("zombie_timeout",)), version=changed.version)
    assert (cleared.zombie_timeout, cleared.owner) == (None, "team a")
    actions = [(entry.action, entry.note) for entry in audit(app, "queue q")]
    assert actions == [("set-queue", None), ("set-queue", None), ("resume", None), ("pause", "incident")]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (QueueChange(zombie_timeout=29.9), "zombie_timeout"),
        (QueueChange(fetched_timeout=float("nan")), "fetched_timeout"),
        (QueueChange(owner="a\nb"), "owner"),
    ],
)
def test_a_queue_setting_out_of_range_is_refused(desk, change, field):
    """Row 30: a timeout below three heartbeats would bury living jobs."""
    with pytest.raises(InvalidField) as refused:
        desk.set_queue("q", change)
    assert refused.value.field == field
    with pytest.raises(InvalidField, match="queue"):
        desk.pause("no spaces")


def test_the_actor_is_who_the_face_says(app):
    job = dead(app)
    app.desk(Actor("bob", Channel.CLI, "operator", "req-1")).edit(job, tags=["x"])
    (entry,) = audit(app, job)
    assert (entry.actor, entry.channel, entry.role, entry.request_id) == ("bob", "cli", "operator", "req-1")
    with pytest.raises(InvalidField, match="actor"):
        app.desk("a\nb")
