"""Export and import: everything that is evidence comes over, and a bad line stops the import before it begins."""

import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from redrive import Fatal, PayloadError, Reason, Redrive
from redrive.domain.filters import JobFilter
from redrive.domain.job import JobRecord
from redrive.domain.moves import Skipped
from redrive.domain.states import Place
from redrive.ops.exchange import check_lines, export_dead, import_dead, read_dead
from redrive.ops.service import Desk


@pytest.fixture
def other(tmp_path) -> Iterator[Redrive]:
    made = Redrive(f"sqlite:///{tmp_path / 'other.db'}")
    yield made
    made.close()


def evidence(record: JobRecord) -> tuple[Any, ...]:
    head = record.head
    return (
        head.id, head.type, head.queue, head.priority, head.reason, head.error_type, head.error_message, head.failed_at,
        head.life, head.attempt, head.spent, head.revision, head.tags, head.labels, head.idempotency_key,
        head.created_at, head.created_by, record.payload, record.ledger,
        [(old.revision, old.payload, old.tags, old.priority, old.actor) for old in record.revisions],
    )  # fmt: skip


def test_a_dead_job_goes_over_with_its_evidence(app, desk, other):
    @app.job("t", queue="q")
    def handler() -> None:
        raise Fatal("née \x1b[31m\n💥")

    payloads = [b'{"b":1,"a":2,"a":3}', bytes(range(256)), b"", '"\u2028 \\u0000 ü"'.encode(), b'{"a": 1 "b"}']
    ids = [
        app.enqueue_raw("t", payload, tags=["x"], labels={"c": "4"}, priority=7, idempotency_key=f"k{n}").id
        for n, payload in enumerate(payloads)
    ]
    app.worker().run(burst=True)
    desk.edit(ids[0], payload=b"[1]", tags=[])
    desk.edit(ids[0], payload=b"[2]")
    lines = list(export_dead(desk, JobFilter()))
    assert len(lines) == len(payloads)
    assert all(line.count(b"\n") == 1 for line in lines)

    target = other.desk("importer")
    (answers,) = import_dead(target, io.BytesIO(b"\n".join(lines)), note="moved")
    assert [answer.ok for answer in answers] == [True] * len(payloads)
    for identity in ids:
        assert evidence(target.get(identity)) == evidence(desk.get(identity))
    assert {entry.action for entry in other.store.audit_entries()} == {"import"}

    (again,) = import_dead(target, io.BytesIO(b"".join(lines)))
    assert [answer.skipped for answer in again] == [Skipped.NOT_ALLOWED] * len(payloads)
    assert target.resurrect(ids[1]).ok
    assert target.get(ids[1]).payload == bytes(range(256))
    assert [result.number for result in other.store.promises()] == [0] * len(other.store.promises())


@pytest.mark.slow
def test_export_takes_a_filter_and_goes_page_by_page(app, desk, monkeypatch):
    monkeypatch.setattr("redrive.ops.exchange.PAGE_MAX", 10)
    handles = app.enqueue_many([("t" if n % 2 else "u", {"n": n}) for n in range(26)])
    desk.isolate([handle.id for handle in handles])
    seen: list[int] = []
    lines = list(export_dead(desk, JobFilter(type="t"), progress=seen.append))
    assert len({json.loads(line)["id"] for line in lines}) == 13
    assert len({json.loads(line)["id"] for line in export_dead(desk, JobFilter(), progress=seen.append)}) == 26
    assert seen == [10, 13, 10, 20, 26]


@pytest.mark.slow
def test_what_was_resurrected_meanwhile_is_not_exported(app, desk):
    handles = app.enqueue_many([("t", {"n": n}) for n in range(3)])
    desk.isolate([handle.id for handle in handles])
    lines = export_dead(desk, JobFilter())
    first = UUID(json.loads(next(lines))["id"])
    desk.resurrect_many([handle.id for handle in handles])
    assert list(lines) == []
    assert first in {handle.id for handle in handles}


def line(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": str(UUID(int=1)), "type": "t", "payload": "{}", "reason": "fatal", "failed_at": "2026-04-30T14:32:07Z",
    }  # fmt: skip
    made |= changes
    return {name: value for name, value in made.items() if value is not ...}


ENTRY = {"life": 1, "attempt": 1, "kind": "failed", "ended_at": "2026-04-30T14:32:07Z"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("MaxRetriesExceeded", Reason.RETRIES_EXHAUSTED),
        ("Fatal", Reason.FATAL),
        ("Zombie", Reason.ZOMBIE),
        ("Cancelled", Reason.CANCELLED),
        ("Unknown", Reason.UNKNOWN),
        ("heartbeat_lost", Reason.HEARTBEAT_LOST),
    ],
)
def test_reasons_of_the_older_engine_are_understood(name, reason):
    (job,) = read_dead([json.dumps(line(reason=name)).encode()], payload_limit=100)
    assert job.record.head.reason is reason


BAD: list[tuple[Any, str]] = [
    (line(id="x"), "id"),
    (line(id=...), "id"),
    (line(type="no spaces"), "type"),
    (line(type=...), "type"),
    (line(queue=""), "queue"),
    (line(reason="Tired"), "reason"),
    (line(reason=...), "reason"),
    (line(payload=...), "payload"),
    (line(payload_base64="e30="), "payload"),
    (line(payload=..., payload_base64="e30"), "payload_base64"),
    (line(payload={"a": 1}), "payload"),
    (line(payload="x" * 101), "payload"),
    (line(failed_at="yesterday"), "failed_at"),
    (line(failed_at="2026-04-30T14:32:07"), "failed_at"),
    (line(failed_at=...), "failed_at"),
    (line(priority=101), "priority"),
    (line(tags=["a\nb"]), "tags[0]"),
    (line(labels={"a": 1}), "labels.a"),
    (line(life=0), "life"),
    (line(attempt=True), "attempt"),
    (line(version=2**31), "version"),
    (line(error_message="a\0b"), "error_message"),
    (line(redrive=2), "redrive"),
    (line(surprise=1), "surprise"),
    (line(ledger={}), "ledger"),
    (line(ledger=[ENTRY, {**ENTRY, "kind": "other"}]), "ledger[1].kind"),
    (line(ledger=[{**ENTRY, "reason": "Tired"}]), "ledger[0].reason"),
    (line(ledger=[{**ENTRY, "x": 1}]), "ledger[0].x"),
    (line(revisions=[{"revision": 1, "payload": "{}", "actor": "a"}]), "revisions[0].at"),
    (line(revisions=[3]), "revisions[0]"),
    ([1], "line"),
]


@pytest.mark.parametrize(("bad", "field"), BAD, ids=[f"{number} {case[1]}" for number, case in enumerate(BAD)])
def test_a_bad_field_is_named_with_its_line_and_offset(bad, field):
    good = json.dumps(line()).encode() + b"\n\n"
    with pytest.raises(PayloadError) as refused:
        list(read_dead(io.BytesIO(good + json.dumps(bad).encode()), payload_limit=100))
    assert (refused.value.field, refused.value.line, refused.value.offset) == (field, 3, len(good))
    assert str(refused.value).count(" at line ") == 1


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [(b'{"id": 1 "x"}', "json-syntax", 10), (b"\xff", "not-utf8", 1), (b'{"a": NaN}', "json-number", 7)],
)
def test_a_line_that_is_no_json_is_named_with_its_place(text, code, column):
    good = json.dumps(line()).encode() + b"\n"
    with pytest.raises(PayloadError) as refused:
        list(read_dead(io.BytesIO(good + text), payload_limit=100))
    assert (refused.value.field, refused.value.code) == ("line", code)
    assert (refused.value.line, refused.value.column) == (2, column)
    assert refused.value.offset == len(good) + column - 1


def test_nothing_is_written_before_every_line_was_read(app):
    desk = Desk(app.store, "ann", batch=2)
    lines = [json.dumps(line(id=str(uuid4()))).encode() + b"\n" for _ in range(5)]
    source = io.BytesIO(b"".join([*lines, b"{}\n"]))
    with pytest.raises(PayloadError, match="line 6"):
        list(import_dead(desk, source))
    assert app.insight().count(JobFilter(place=Place.DLQ)).number == 0
    good = io.BytesIO(b"".join(lines))
    assert check_lines(good, payload_limit=100) == 5
    assert [len(batch) for batch in import_dead(desk, good)] == [2, 2, 1]
    assert app.insight().count(JobFilter(place=Place.DLQ)).number == 5
