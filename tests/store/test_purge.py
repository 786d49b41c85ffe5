"""For good: purge, the archive's cleaning, and dead jobs from an export file."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, select

from redrive.domain.errors import InvalidField
from redrive.domain.failures import Reason
from redrive.domain.filters import JobFilter, PageRequest
from redrive.domain.job import JobRecord
from redrive.domain.moves import Answered, Did, Skipped
from redrive.domain.states import Spot, Verb
from redrive.store.port import ImportedJob
from redrive.store.sql.purge import remove_trails
from redrive.store.sql.tables import dead_marks, job_ledger, job_revisions, jobs_archive

from .make import QUEUE, TYPE, Floor, bury, draft, error, job, retry
from .rows import Rows


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- purge -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["dead", "archived"])
def test_a_purged_job_leaves_its_audit_and_nothing_else(store, floor: Floor, rows: Rows, place: str):
    one = getattr(floor, place)(payload=b"\x00\xffsecret", tags=("t",))
    if place == "dead":
        floor.edit(one, payload=b"\x00\xffsecret2")
    final = rows.row(one).payload
    floor.ask(Verb.PURGE, one, note="asked for by customer")
    assert floor.spot(one) is Spot.NOWHERE
    assert store.find(one) is None
    assert [rows.count(table) for table in (job_ledger, job_revisions, dead_marks)] == [0, 0, 0]
    entry = store.audit_entries()[0]
    assert (entry.action, entry.result, entry.note) == ("purge", "purged", "asked for by customer")
    assert entry.details["payload_sha256"] == sha(final)
    assert entry.details["payload_bytes"] == len(final)
    assert (entry.details["type"], entry.details["queue"]) == (TYPE, QUEUE)
    assert "secret" not in str(entry)
    done, failed = ("purged_succeeded", "succeeded") if place == "archived" else ("purged_failed", "failed")
    assert rows.totals(QUEUE) == {done: 1, failed: 1}
    assert len(rows.buckets()) == 1, "metrics tell of events, and those happened"
    floor.kept()


def test_a_cancelled_job_is_purged_without_touching_the_failed(floor: Floor, rows: Rows):
    one = floor.dead(Reason.CANCELLED)
    floor.ask(Verb.PURGE, one)
    assert rows.totals(QUEUE) == {}
    floor.kept()


def test_the_hash_of_a_trail_tells_trails_apart(store, floor: Floor):
    same, other, revised = (floor.dead(report=error(text)) for text in ("one", "two", "one"))
    floor.edit(revised, payload=b"2")
    floor.ask(Verb.PURGE, same, other, revised)
    hashes = [entry.details["trail_sha256"] for entry in store.audit_entries() if entry.action == "purge"]
    assert len(set(hashes)) == 3


def test_the_hash_of_a_trail_covers_what_revisions_held(store, floor: Floor):
    """The same job, so that its ledger is the same to the microsecond."""
    one = floor.dead()
    before = trail(store, one)
    assert trail(store, one) == before
    floor.edit(one, payload=b"2")
    assert trail(store, one) != before


def trail(store, job_id: UUID) -> str:
    """The hash a purge would answer with; nothing is deleted."""
    found: list[str] = []

    def look(connection: Connection) -> None:
        found.append(remove_trails(store._db, connection, [job_id])[job_id])
        raise ZeroDivisionError

    with suppress(ZeroDivisionError):
        store._db.write(look)
    return found[0]


def test_a_purged_id_may_be_used_again(floor: Floor, store):
    one = floor.dead()
    floor.ask(Verb.PURGE, one)
    floor.accept(job(id=one))
    assert floor.spot(one) is Spot.PENDING
    floor.kept()


# -- the archive -------------------------------------------------------------------------------------------------------


def test_old_successes_go_a_batch_at_a_time_oldest_first(store, floor: Floor, rows: Rows):
    done = [floor.archived() for _ in range(5)]
    long_ago = store.now() - timedelta(days=100)
    for n, one in enumerate(done[:4]):
        rows.set(jobs_archive, one, finished_at=long_ago + timedelta(hours=n))
    limit = store.now() - timedelta(days=90)
    assert store.purge_archive(limit, draft("purge-archive"), limit=3) == 3
    assert [floor.spot(one) for one in done] == [Spot.NOWHERE] * 3 + [Spot.ARCHIVE] * 2
    assert store.purge_archive(limit, draft("purge-archive"), limit=3) == 1
    assert store.purge_archive(limit, draft("purge-archive"), limit=3) == 0
    assert floor.spot(done[4]) is Spot.ARCHIVE
    assert [entry.details["jobs"] for entry in store.audit_entries()] == [1, 3]
    assert all(len(entry.details["sha256"]) == 64 for entry in store.audit_entries())
    assert rows.totals(QUEUE) == {"succeeded": 5, "purged_succeeded": 4}
    floor.kept()


def test_the_archives_cleaning_takes_trails_along(store, floor: Floor, rows: Rows):
    one = floor.dead()
    floor.edit(one, payload=b"2")
    floor.resurrect(one)
    (held,) = floor.take()
    from .make import succeed

    floor.settle(succeed(held))
    assert store.purge_archive(store.now() + timedelta(seconds=9), draft("purge-archive")) == 1
    assert [rows.count(table) for table in (job_ledger, job_revisions)] == [0, 0]
    floor.kept()


# -- import ------------------------------------------------------------------------------------------------------------


def exported(store, one) -> JobRecord:
    record = store.find(one)
    assert isinstance(record, JobRecord)
    return record


def bring(store, *records: JobRecord) -> list[Answered]:
    answers: list[Answered] = store.import_dead([ImportedJob(record) for record in records], draft("import"))
    return answers


@pytest.fixture
def story(store, floor: Floor) -> JobRecord:
    """A job of two lives, three attempts and two revisions, exported and then purged."""
    one = floor.one(b'{"b":1,"a":2,"a":3}', tags=("t",), labels={"c": "1"}, idempotency_key="k", priority=44)
    (held,) = floor.take()
    floor.settle(retry(held))
    store.promote()
    floor.settle(bury(floor.take()[0]))
    floor.edit(one, payload=b"\x00\xff")
    floor.resurrect(one)
    floor.settle(bury(floor.take()[0], Reason.TIMEOUT, error("late", cause="e" * 16)))
    record = exported(store, one)
    floor.ask(Verb.PURGE, one)
    return record


def test_an_export_comes_back_as_it_was(store, floor: Floor, rows: Rows, story: JobRecord):
    assert [answer.did for answer in bring(store, story)] == [Did.DONE]
    again = exported(store, story.head.id)
    assert again == story
    assert [head.id for head in store.list_jobs(JobFilter(tag="t"), PageRequest()).jobs] == [story.head.id]
    assert rows.totals(QUEUE)["failed"] == 2
    assert ("e" * 16, 2) in [(incident.id, incident.deaths) for incident in store.incidents()]
    entry = store.audit_entries()[0]
    assert (entry.action, entry.target, entry.result) == ("import", str(story.head.id), "imported")
    floor.kept()


def test_an_imported_job_lives_like_any_other(store, floor: Floor, rows: Rows, story: JobRecord):
    bring(store, story)
    one = story.head.id
    for _ in range(2):
        floor.resurrect(one)
        floor.ask(Verb.TAKE_BACK, one)
        assert exported(store, one).head.reason is Reason.TIMEOUT
        floor.kept()
    floor.edit(one, payload=b"3")
    floor.resurrect(one)
    (held,) = floor.take()
    assert (held.payload, held.life, held.attempt) == (b"3", 3, 1)
    floor.settle(bury(held))
    floor.kept()


def test_an_id_that_is_anywhere_is_skipped(store, floor: Floor, rows: Rows, story: JobRecord):
    hot, dead, done = floor.later(), floor.dead(), floor.archived()
    records = [replace(story, head=replace(story.head, id=one)) for one in (hot, dead, done)]
    before = [rows.row(one) for one in (hot, dead, done)]
    answers = bring(store, *records, story)
    assert [answer.skipped for answer in answers] == [Skipped.NOT_ALLOWED] * 3 + [None]
    assert [answer.id for answer in answers] == [hot, dead, done, story.head.id]
    assert [rows.row(one) for one in (hot, dead, done)] == before
    assert [answer.skipped for answer in bring(store, story)] == [Skipped.NOT_ALLOWED]
    floor.kept()


def test_one_id_twice_in_a_file_is_taken_once(store, floor: Floor, story: JobRecord):
    answers = bring(store, story, replace(story, payload=b"other"))
    assert [answer.skipped for answer in answers] == [None, Skipped.NOT_ALLOWED]
    assert exported(store, story.head.id).payload == story.payload
    floor.kept()


def test_a_death_without_a_ledger_line_gets_one(store, floor: Floor, rows: Rows, story: JobRecord):
    head = replace(story.head, life=1, spent=1, revision=1, attempt=1, incident_id=None)
    cancelled = replace(head, id=job().id, reason=Reason.CANCELLED, spent=0)
    bring(store, replace(story, head=head, ledger=(), revisions=()))
    bring(store, replace(story, head=cancelled, ledger=(), revisions=()))
    (line,) = rows.ledger(head.id)
    assert (line.kind, line.reason, line.life, line.attempt) == ("failed", "timeout", 1, 1)
    assert (line.error_type, line.error_message, line.ended_at) == (head.error_type, head.error_message, head.failed_at)
    assert [line.kind for line in rows.ledger(cancelled.id)] == ["cancelled"]
    floor.kept()
    floor.resurrect(head.id, cancelled.id)
    floor.ask(Verb.TAKE_BACK, head.id, cancelled.id)
    assert [exported(store, one.id).head.reason for one in (head, cancelled)] == [Reason.TIMEOUT, Reason.CANCELLED]
    floor.kept()


def test_a_trail_with_a_gap_is_refused(store, floor: Floor, rows: Rows, story: JobRecord):
    broken = {
        "life 1": replace(story, ledger=story.ledger[2:]),
        "charged": replace(story, head=replace(story.head, spent=5)),
        "revision": replace(story, revisions=()),
        "dead": replace(story, head=replace(story.head, reason=None)),
    }
    for word, record in broken.items():
        (answer,) = bring(store, record)
        assert (answer.did, answer.skipped) == (None, Skipped.UNREADABLE)
        assert word in answer.why
    assert rows.places() == {}
    assert [entry.action for entry in store.audit_entries() if entry.action == "import"] == []


def test_an_import_is_bounded(store, story: JobRecord):
    with pytest.raises(InvalidField, match="1000"):
        bring(store, *[story] * 1001)


def test_times_of_an_import_are_kept(store, floor: Floor, rows: Rows, story: JobRecord):
    old = datetime(2019, 5, 4, 3, 2, 1, 234567, tzinfo=UTC)
    head = replace(story.head, failed_at=old, created_at=old, due_at=old)
    bring(store, replace(story, head=head))
    assert exported(store, head.id).head == head
    (found,) = rows.all(select(job_ledger.c.ended_at).where(job_ledger.c.life == 2))
    assert found[0] == story.ledger[-1].ended_at
