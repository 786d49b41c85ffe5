"""The promises see damage: each kind, done by SQL behind the store's back, is counted and named."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Table, insert, select

from redrive.domain.edits import JobEdit
from redrive.domain.failures import Reason
from redrive.domain.states import Verb
from redrive.store.sql.promises import PROMISES, statement
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import (
    JOB_COLUMNS,
    audit_log,
    dead_marks,
    job_ledger,
    job_revisions,
    jobs_archive,
    jobs_dlq,
    jobs_hot,
    metadata,
    queue_totals,
)
from redrive.store.sql.tables_later import held_keys

from .make import OTHER, QUEUE, Floor, bury, retry, succeed, worker
from .rows import Rows

NAMES = ("conservation", "owner", "exclusive", "evidence", "exactness", "audited")


@dataclass
class World:
    """A database with a story: one job of each kind."""

    floor: Floor
    rows: Rows
    scheduled: UUID  # failed once, waits for its second attempt
    archived: UUID  # failed once, then succeeded
    repaired: UUID  # edited, died, repaired with its resurrection, succeeded
    dead: UUID  # with tags
    twice: UUID  # died, was resurrected, died again
    isolated: UUID
    back: UUID  # resurrected with another payload, and taken back
    running: UUID
    pending: UUID


def world(store: SqlStore) -> World:
    store.register(worker(queues=(QUEUE, OTHER)))
    floor, rows = Floor(store), Rows(store)
    archived = floor.one()
    floor.settle(retry(floor.take()[0]))
    store.promote()
    floor.settle(succeed(floor.take()[0]))
    repaired = floor.one(b"broken")
    floor.edit(repaired, payload=b"still broken")
    floor.settle(bury(floor.take()[0]))
    floor.resurrect(repaired, edit=JobEdit(payload=b"whole"))
    floor.settle(succeed(floor.take()[0]))
    twice = floor.dead()
    floor.resurrect(twice)
    floor.settle(bury(floor.take()[0], Reason.TIMEOUT))
    dead = floor.dead(tags=("a",), labels={"c": "1"})
    isolated = floor.one()
    floor.ask(Verb.ISOLATE, isolated)
    back = floor.dead(payload=b"first")
    floor.resurrect(back, edit=JobEdit(payload=b"second", queue=OTHER))
    floor.ask(Verb.TAKE_BACK, back)
    floor.ask(Verb.PURGE, floor.dead(), floor.archived())
    scheduled = floor.one()
    floor.settle(retry(floor.take()[0], 3600))
    running = floor.running().uuid
    pending = floor.one()
    floor.ask(Verb.CANCEL, floor.later())
    floor.kept()
    return World(floor, rows, scheduled, archived, repaired, dead, twice, isolated, back, running, pending)


STORIES: dict[str, tuple[dict[str, UUID], list[tuple[Table, list[dict[str, Any]]]]]] = {}
"""The story by database, told once: jobs by name, and every table's rows."""


@pytest.fixture
def w(store: SqlStore) -> World:
    """The story in an empty database."""
    rows = Rows(store)
    if store._db.name not in STORIES:
        told = world(store)
        jobs = {name: value for name, value in vars(told).items() if isinstance(value, UUID)}
        tables = [(table, [dict(row._mapping) for row in rows.all(select(table))]) for table in metadata.sorted_tables]
        STORIES[store._db.name] = jobs, tables
        return told
    jobs, tables = STORIES[store._db.name]
    for table, content in tables:
        if content:
            rows.add(table, content)
    return World(Floor(store), rows, **jobs)


def ledger(w: World, job: UUID) -> int:
    """The id of the job's last ledger line."""
    return int(w.rows.ledger(job)[-1].id)


def copied(w: World, job: UUID, source, target, **extra) -> None:
    names = [name for name in JOB_COLUMNS if name not in ("lease", "started_at")]
    columns = select(*(source.c[name] for name in names)).where(source.c.id == job)
    w.rows.run(insert(target).from_select(names, columns) if not extra else _with(target, names, columns, extra))


def _with(target, names, columns, extra):
    from sqlalchemy import literal

    values = [literal(value, target.c[name].type) for name, value in extra.items()]
    return insert(target).from_select([*names, *extra], columns.add_columns(*values))


def now(w: World):
    return w.floor.store.now()


# Each does its damage and returns the words that have to be in an example.
Damage = Callable[[World], str]


def in_hot_and_dlq(w: World) -> str:
    copied(w, w.dead, jobs_dlq, jobs_hot, state="pending")
    return str(w.dead)


def in_archive_and_dlq(w: World) -> str:
    copied(w, w.archived, jobs_archive, jobs_dlq, failed_at=now(w), reason="isolated")
    return str(w.archived)


def in_hot_and_archive(w: World) -> str:
    copied(w, w.pending, jobs_hot, jobs_archive, finished_at=now(w), outcome="succeeded")
    return str(w.pending)


def gone_from_the_dlq(w: World) -> str:
    w.rows.remove(jobs_dlq, jobs_dlq.c.id == w.isolated)
    return str(w.isolated)


def gone_from_hot(w: World) -> str:
    w.rows.remove(jobs_hot, jobs_hot.c.id == w.scheduled)
    return str(w.scheduled)


def gone_from_the_archive_without_a_trail(w: World) -> str:
    w.rows.remove(job_ledger, job_ledger.c.job_id == w.archived)
    w.rows.remove(jobs_archive, jobs_archive.c.id == w.archived)
    return QUEUE


def succeeded_too_many(w: World) -> str:
    w.rows.run(queue_totals.update().where(queue_totals.c.succeeded > 0).values(succeeded=queue_totals.c.succeeded + 1))
    return QUEUE


def failed_too_few(w: World) -> str:
    w.rows.run(queue_totals.update().where(queue_totals.c.failed > 0).values(failed=queue_totals.c.failed - 1))
    return QUEUE


def purged_too_many(w: World) -> str:
    w.rows.run(queue_totals.update().values(purged_failed=queue_totals.c.purged_failed + 1))
    return QUEUE


def totals_of_a_queue_without_jobs(w: World) -> str:
    w.rows.add(queue_totals, {"queue": "ghost", "shard": 3, "succeeded": 1})
    return "ghost"


def totals_gone(w: World) -> str:
    w.rows.remove(queue_totals, queue_totals.c.queue == QUEUE)
    return QUEUE


def a_mark_of_a_job_that_lives(w: World) -> str:
    w.rows.add(dead_marks, {"job_id": w.pending, "kind": "tag", "name": "x", "value": ""})
    return str(w.pending)


def a_lease_on_a_pending_row(w: World) -> str:
    w.rows.set(jobs_hot, w.pending, lease=5)
    return str(w.pending)


def a_taken_row_without_a_lease(w: World) -> str:
    w.rows.set(jobs_hot, w.running, lease=None)
    return str(w.running)


def a_taken_row_without_a_worker(w: World) -> str:
    w.rows.set(jobs_hot, w.running, worker_id=None)
    return str(w.running)


def a_taken_row_without_a_heartbeat(w: World) -> str:
    w.rows.set(jobs_hot, w.running, heartbeat_at=None)
    return str(w.running)


def a_scheduled_row_that_has_started(w: World) -> str:
    w.rows.set(jobs_hot, w.scheduled, started_at=now(w))
    return str(w.scheduled)


def an_attempt_that_ended_twice(w: World) -> str:
    line = dict(w.rows.ledger(w.dead)[0]._mapping)
    w.rows.add(job_ledger, {name: value for name, value in line.items() if name != "id"} | {"kind": "zombie"})
    return str(w.dead)


def an_attempt_that_failed_and_succeeded(w: World) -> str:
    line = dict(w.rows.ledger(w.archived)[0]._mapping)
    w.rows.add(job_ledger, {name: value for name, value in line.items() if name != "id"} | {"attempt": 2})
    return str(w.archived)


def a_death_without_a_line(w: World) -> str:
    w.rows.remove(job_ledger, job_ledger.c.id == ledger(w, w.dead))
    return str(w.dead)


def another_reason_than_the_lines(w: World) -> str:
    w.rows.set(jobs_dlq, w.dead, reason="isolated")
    return str(w.dead)


def a_line_that_became_a_note(w: World) -> str:
    w.rows.run(job_ledger.update().where(job_ledger.c.id == ledger(w, w.dead)).values(kind="late_failure"))
    return str(w.dead)


def a_retry_without_a_line(w: World) -> str:
    w.rows.remove(job_ledger, job_ledger.c.job_id == w.scheduled)
    return str(w.scheduled)


def an_archived_jobs_failure_without_a_line(w: World) -> str:
    w.rows.remove(job_ledger, job_ledger.c.job_id == w.archived)
    return str(w.archived)


def an_earlier_death_without_a_line(w: World) -> str:
    w.rows.remove(job_ledger, job_ledger.c.job_id == w.twice, job_ledger.c.life == 1)
    return str(w.twice)


def a_revision_gone(w: World) -> str:
    w.rows.remove(job_revisions, job_revisions.c.job_id == w.repaired, job_revisions.c.revision == 1)
    return str(w.repaired)


def every_revision_gone(w: World) -> str:
    w.rows.remove(job_revisions, job_revisions.c.job_id == w.repaired)
    return str(w.repaired)


def a_revision_too_many(w: World) -> str:
    w.rows.set(jobs_archive, w.repaired, revision=2)
    return str(w.repaired)


def an_archived_payload_changed(w: World) -> str:
    w.rows.set(jobs_archive, w.repaired, payload=b"whole ")
    return str(w.repaired)


def a_restored_payload_changed(w: World) -> str:
    w.rows.set(jobs_dlq, w.back, payload=b"second")
    return str(w.back)


def an_edited_hot_payload_changed(w: World) -> str:
    w.floor.edit(w.pending, payload=b"saved")
    w.rows.set(jobs_hot, w.pending, payload=b"Saved")
    return str(w.pending)


def a_payload_changed_after_another_edit(w: World) -> str:
    w.floor.edit(w.dead, payload=b"saved")
    w.floor.edit(w.dead, priority=3)
    w.rows.set(jobs_dlq, w.dead, payload=b"")
    return str(w.dead)


def a_revision_without_an_entry(w: World) -> str:
    entries = select(audit_log.c.id).where(audit_log.c.job_id == w.repaired, audit_log.c.action == "edit")
    w.rows.remove(audit_log, audit_log.c.id.in_([row[0] for row in w.rows.all(entries)]))
    return str(w.repaired)


def a_resurrection_without_an_entry(w: World) -> str:
    w.rows.remove(audit_log, audit_log.c.job_id == w.twice)
    return str(w.twice)


def a_resurrection_too_many(w: World) -> str:
    (row,) = w.rows.all(select(audit_log).where(audit_log.c.job_id == w.twice))
    w.rows.add(audit_log, {name: value for name, value in row._mapping.items() if name != "id"} | {"job_id": w.pending})
    return str(w.pending)


def an_isolation_without_an_entry(w: World) -> str:
    w.rows.remove(audit_log, audit_log.c.job_id == w.isolated)
    return str(w.isolated)


def an_entry_of_another_job(w: World) -> str:
    w.rows.run(audit_log.update().where(audit_log.c.job_id == w.twice).values(job_id=w.dead))
    return str(w.twice)


def a_key_held_for_a_job_that_waits(w: World) -> str:
    w.rows.add(held_keys, {"lock_key": "k", "job_id": w.pending, "lease": 7})
    return str(w.pending)


def a_key_held_under_another_lease(w: World) -> str:
    w.rows.set(jobs_hot, w.running, lock_key="k")
    w.rows.add(held_keys, {"lock_key": "k", "job_id": w.running, "lease": 7})
    return str(w.running)


def a_run_without_its_key(w: World) -> str:
    w.rows.set(jobs_hot, w.running, lock_key="k")
    return str(w.running)


def a_scheduled_job_that_waits_for_a_key(w: World) -> str:
    w.rows.set(jobs_hot, w.scheduled, lock_key="k", blocked=True)
    return str(w.scheduled)


def a_job_without_a_key_that_waits_for_one(w: World) -> str:
    w.rows.set(jobs_hot, w.pending, blocked=True)
    return str(w.pending)


DAMAGES: dict[str, list[Damage]] = {
    "conservation": [
        in_hot_and_dlq, in_archive_and_dlq, in_hot_and_archive, gone_from_the_dlq, gone_from_hot,
        gone_from_the_archive_without_a_trail, succeeded_too_many, failed_too_few, purged_too_many,
        totals_of_a_queue_without_jobs, totals_gone, a_mark_of_a_job_that_lives,
    ],
    "owner": [an_attempt_that_ended_twice, an_attempt_that_failed_and_succeeded,
              a_taken_row_without_a_worker, a_taken_row_without_a_heartbeat],
    "exclusive": [
        a_key_held_for_a_job_that_waits, a_key_held_under_another_lease, a_run_without_its_key,
        a_scheduled_job_that_waits_for_a_key, a_job_without_a_key_that_waits_for_one,
    ],
    "evidence": [
        a_death_without_a_line, another_reason_than_the_lines, a_line_that_became_a_note, a_retry_without_a_line,
        an_archived_jobs_failure_without_a_line, an_earlier_death_without_a_line, a_revision_gone, every_revision_gone,
        a_revision_too_many,
    ],
    "exactness": [an_archived_payload_changed, a_restored_payload_changed, an_edited_hot_payload_changed,
                  a_payload_changed_after_another_edit],
    "audited": [a_revision_without_an_entry, a_resurrection_without_an_entry, a_resurrection_too_many,
                an_isolation_without_an_entry, an_entry_of_another_job],
}  # fmt: skip
FORBIDDEN: list[Damage] = [a_lease_on_a_pending_row, a_taken_row_without_a_lease, a_scheduled_row_that_has_started]
"""The tables' own constraints refuse these; the promise sees them all the same."""


def seen(w: World, promise: str, words: str) -> None:
    (found,) = [result for result in w.floor.store.promises() if result.promise == promise]
    assert found.number > 0
    assert any(words in example for example in found.examples), found.examples


@pytest.mark.parametrize(
    ("promise", "damage"),
    [pytest.param(name, damage, id=f"{name}-{damage.__name__}") for name in DAMAGES for damage in DAMAGES[name]],
)
def test_damage_is_counted_and_named(w: World, promise: str, damage: Damage):
    seen(w, promise, damage(w))


@pytest.fixture
def unchecked(database_url: str) -> Iterator[SqlStore]:
    """A store whose tables refuse nothing."""
    store = open_store(database_url)
    rows = Rows(store)
    if rows.sqlite:
        store._db.engine.pool.dispose()
        from sqlalchemy import event

        event.listen(
            store._db.engine,
            "connect",
            lambda connection, _: connection.execute("PRAGMA ignore_check_constraints = ON"),
        )
    else:
        rows.sql("ALTER TABLE {s}jobs_hot DROP CONSTRAINT ck_jobs_hot_lease, DROP CONSTRAINT ck_jobs_hot_started")
    yield store
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("damage", FORBIDDEN)
def test_damage_that_the_tables_would_refuse_is_seen_too(unchecked: SqlStore, damage: Damage):
    w = world(unchecked)
    seen(w, "owner", damage(w))


@pytest.mark.parametrize("damage", FORBIDDEN)
def test_the_tables_refuse_that_damage(w: World, damage: Damage):
    with pytest.raises(Exception, match=r"ck_jobs_hot_(lease|started)"):
        damage(w)


def test_the_whole_story_keeps_every_promise(w: World):
    results = w.floor.store.promises()
    assert [result.promise for result in results] == list(NAMES)
    assert [(result.number, result.examples) for result in results] == [(0, ())] * len(NAMES)


def test_examples_are_limited_and_the_number_is_not(store: SqlStore, floor: Floor, rows: Rows):
    for _ in range(4):
        one = floor.dead()
        rows.remove(job_ledger, job_ledger.c.job_id == one)
    for limit in (1, 3):
        evidence = {result.promise: result for result in store.promises(examples=limit)}["evidence"]
        assert evidence.number == 8  # its death, and an attempt that was charged
        assert len(evidence.examples) == limit


def test_the_statements_are_shown_as_they_can_be_run(store: SqlStore, rows: Rows):
    from sqlalchemy import text

    for result in store.promises():
        assert "{" not in result.query.replace("{payload_sha256,after}", "")
        escaped = result.query.replace(":", r"\:")
        assert rows.all(text(escaped)) == []


def test_a_schema_whose_name_needs_quotes_is_quoted():
    assert 'FROM "My schema".jobs_hot' in statement(PROMISES[1], postgres=True, schema="My schema")
    assert "FROM redrive.jobs_hot" in statement(PROMISES[1], postgres=True, schema="redrive")


def test_an_old_success_that_is_purged_leaves_no_offence(store: SqlStore, w: World):
    from .make import draft

    assert store.purge_archive(store.now() + timedelta(minutes=1), draft("purge-archive")) == 2
    w.floor.kept()
