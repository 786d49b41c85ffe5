"""An archived job again, as a new one."""

import io

import pytest

from redrive import Conflict, JobFilter, KeyHeld, NotAllowed, NotFound
from redrive.domain.states import Spot
from redrive.ops.exchange import export_dead, import_dead


@pytest.fixture
def done(app):
    seen = []

    @app.job("t", queue="q")
    def handler(n: int) -> int:
        seen.append(n)
        return n

    options = {"priority": 30, "tags": ["a"], "labels": {"b": "c"}, "idempotency_key": "k", "max_attempts": 7}
    handle = handler.using(**options).enqueue(1)
    app.worker().run(burst=True)
    assert seen == [1]
    return handle


def carried(record):
    head = record.head
    return (
        record.payload, record.head.content_type, head.type, head.queue, head.priority, head.tags, head.labels,
        head.idempotency_key, head.max_attempts,
    )  # fmt: skip


def test_the_copy_carries_what_the_old_one_did_and_runs_as_a_job_of_its_own(app, desk, done):
    new = desk.copy(done.id, note="once more")
    made, old = desk.get(new), desk.get(done.id)
    assert new.version == 7
    assert carried(made) == carried(old)
    head = made.head
    assert (head.spot, head.life, head.attempt, head.spent, head.revision, head.version) == (
        Spot.PENDING,
        1,
        0,
        0,
        1,
        1,
    )
    assert (head.created_by, head.created_at > old.head.created_at) == ("ann@example.com", True)
    app.worker().run(burst=True)
    assert desk.get(new).head.spot is Spot.ARCHIVE
    assert desk.get(done.id).head == old.head, "the old one stays as it was"
    assert {result.number for result in app.store.promises()} == {0}


def test_the_ledgers_and_the_audit_tell_of_each_other(app, desk, done):
    new = desk.copy(done.id, note="once more")
    lines = [[(line.kind, line.error_message) for line in desk.get(job).ledger] for job in (done.id, new)]
    assert lines == [[("copied", f"as job {new}")], [("copied", f"of job {done.id}")]]
    entries = {entry.target: (entry.action, entry.result, entry.note) for entry in app.store.audit_entries()}
    assert entries[str(done.id)] == ("copy", "copied", "once more")
    assert entries[str(new)] == ("copy", "made", "once more")


def test_a_key_that_a_live_job_holds_is_refused_by_name(app, desk, done):
    new = desk.copy(done.id)
    with pytest.raises(KeyHeld) as refused:
        desk.copy(done.id)
    assert refused.value.holder == str(new)
    without = desk.copy(done.id, drop_key=True)
    assert desk.get(without).head.idempotency_key is None
    app.worker().run(burst=True)
    assert desk.get(desk.copy(done.id)).head.idempotency_key == "k", "it is free again"


def test_what_has_not_succeeded_is_not_copied(app, desk, done):
    waiting = app.enqueue("other", {})
    with pytest.raises(NotAllowed, match="it has not ended"):
        desk.copy(waiting.id)
    desk.isolate(waiting.id)
    with pytest.raises(NotAllowed, match="resurrect it"):
        desk.copy(waiting.id)
    desk.purge(done.id)
    with pytest.raises(NotFound):
        desk.copy(done.id)


def test_a_dead_copy_can_be_exported_and_imported(app, desk, done):
    new = desk.copy(done.id)
    desk.isolate(new)
    lines = b"".join(export_dead(desk, JobFilter()))
    desk.purge(new)
    assert all(answer.ok for batch in import_dead(desk, io.BytesIO(lines)) for answer in batch)
    assert [line.kind for line in desk.get(new).ledger] == ["copied", "cancelled"]


def test_refusals_are_conflicts():
    assert issubclass(NotAllowed, Conflict)
    assert issubclass(KeyHeld, Conflict)
