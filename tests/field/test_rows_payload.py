"""Field reports about payloads: what was accepted is what is kept, seen and run, or it is refused by name."""

import hashlib
import json
import math
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from redrive import Fatal, InvalidField, JobFilter, Place, Reason, Redrive, RetryPolicy, Spot
from redrive.domain.moves import Skipped
from tests.field.draining import drain

ONCE = RetryPolicy(max_attempts=1)


def count(app: Redrive) -> int:
    """Jobs anywhere."""
    return sum(app.insight().count(JobFilter(place=place)).number for place in Place)


def test_row_07_nul_in_a_payload_a_result_and_an_error(app: Redrive):
    """A NUL that the database cannot store kept the closing write failing, and the run running for ever."""
    seen: list[str] = []

    @app.job("echo.v1")
    async def echo(s: str) -> dict[str, str]:
        seen.append(s)
        return {"back": s}

    @app.job("complain.v1", retry=ONCE)
    async def complain(s: str) -> None:
        raise ConnectionError(f"peer said {s}")

    good = echo.enqueue(s="a\0b")
    raw = app.enqueue_raw("echo.v1", b'{"s": "a\\u0000b"}')
    bad = complain.enqueue(s="a\0b")
    drain(app)
    assert seen == ["a\0b", "a\0b"]
    assert [good.status(), raw.status(), bad.status()] == [Spot.ARCHIVE, Spot.ARCHIVE, Spot.DLQ]
    assert good.result() == raw.result() == {"back": "a\0b"}
    assert app.desk("reader").get(raw.id).payload == b'{"s": "a\\u0000b"}'
    (line,) = app.desk("reader").get(bad.id).ledger
    assert line.error_message is not None
    assert "peer said a" in line.error_message
    assert "\0" not in line.error_message


EMPTY = (b"", b"null", b"{}", b"[]", b'""')


def test_row_10_empty_bodies_are_bodies(app: Redrive):
    """Messages with an empty body could not be retried, because a stored body was assumed."""

    @app.job("nothing.v1", retry=ONCE)
    async def nothing() -> None:
        raise Fatal("for now")

    jobs = [app.enqueue_raw("nothing.v1", body) for body in EMPTY]
    drain(app)
    desk = app.desk("operator")
    assert [job.status() for job in jobs] == [Spot.DLQ] * 5
    assert all(answer.ok for answer in desk.resurrect_many([job.id for job in jobs]))
    drain(app)
    records = [desk.get(job.id) for job in jobs]
    assert tuple(record.payload for record in records) == EMPTY
    assert {(record.head.life, record.head.attempt, record.head.reason) for record in records} == {(2, 1, Reason.FATAL)}


def test_row_12_order_and_duplicate_keys_are_kept(app: Redrive):
    """What was read was not what was written: keys in another order, all but the last of a name gone."""
    seen: list[list[str]] = []

    @app.job("signed.v1")
    async def signed(**values: int) -> None:
        seen.append(list(values))

    sent = b'{"b":1,"a":2,"a":3}'
    app.enqueue_raw("signed.v1", b'{"b": 1, "a": 2}')
    drain(app)
    assert seen == [["b", "a"]]

    job = app.enqueue_raw(
        "signed.v1", sent, run_after=timedelta(hours=1), labels={"sha": hashlib.sha256(sent).hexdigest()}
    )
    desk = app.desk("operator")
    before = desk.get(job.id)
    assert hashlib.sha256(before.payload).hexdigest() == before.head.labels["sha"]
    answer = desk.edit(job.id, payload=before.payload, version=before.head.version)
    assert answer.skipped is Skipped.UNCHANGED
    assert desk.get(job.id) == before
    assert app.store.audit_entries() == []


REFUSED: list[tuple[str, float, dict[str, Any]]] = [
    ("payload.x", math.nan, {}),
    ("payload.x", math.inf, {}),
    ("payload.x", float("1e400"), {}),
    ("run_after", 1.0, {"run_after": math.nan}),
    ("run_after", 1.0, {"run_after": -5}),
    ("priority", 1.0, {"priority": "high"}),
]


def test_row_13_values_that_no_storage_takes_are_refused_by_name(app: Redrive):
    """NaN in an option reached the storage script, and the error did not name the field."""

    @app.job("measure.v1")
    async def measure(x: float) -> None: ...

    for field, x, options in REFUSED:
        with pytest.raises(InvalidField) as refused:
            app.enqueue("measure.v1", {"x": x}, **options)
        assert refused.value.field == field
        with pytest.raises(InvalidField) as refused:
            measure.using(**options).enqueue(x=x)
        assert refused.value.field == field.removeprefix("payload.")
    assert count(app) == 0


def test_row_13_floats_come_back_bit_by_bit_and_a_batch_is_all_or_nothing(app: Redrive):
    """One bad item of a hundred, and floats at the edges."""
    seen: list[bytes] = []

    @app.job("measure.v1")
    async def measure(x: float) -> None:
        seen.append(struct.pack(">d", x))

    values = [-0.0, 0.1, 5e-324]
    app.enqueue_many(measure.job(x=x) for x in values)
    drain(app)
    assert sorted(seen) == sorted(struct.pack(">d", x) for x in values)
    batch: list[Any] = [("measure.v1", {"x": 1.0})] * 99
    batch.insert(57, ("measure.v1", {"x": math.nan}))
    with pytest.raises(InvalidField) as refused:
        app.enqueue_many(batch)
    assert refused.value.field == "items[57].payload.x"
    assert count(app) == len(values)


KATHMANDU = timezone(timedelta(hours=5, minutes=45))
ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "moment": (datetime, datetime(2026, 3, 1, 12, 30, 45, 123456, tzinfo=KATHMANDU)),
    "utc": (datetime, datetime(2026, 3, 1, 12, 30, 45, 1, tzinfo=UTC)),
    "naive": (datetime, datetime(2026, 3, 1, 12, 30, 45, 123456)),  # noqa: DTZ001 - that is the case
    "day": (date, date(2026, 2, 28)),
    "money": (Decimal, Decimal("1.10")),
    "id": (UUID, UUID("01890000-0000-7000-8000-000000000001")),
    "blob": (bytes, b"\x00\xff\xfe"),
}


def test_row_15_arguments_arrive_with_their_type_and_value(app: Redrive):
    """Times lost their sub-seconds on the way; here equal in the handler, also after death, an edit and a new life."""
    seen: dict[str, list[Any]] = {name: [] for name in ARGUMENTS}
    desk = app.desk("operator")

    def declare(name: str, kind: type) -> Any:
        async def take(value: Any, note: str) -> None:
            seen[name].append(value)
            if note == "broken":
                raise Fatal("repair the note")

        take.__annotations__ = {"value": kind, "note": str}
        return app.job(f"take.{name}.v1")(take)

    jobs = [declare(name, kind).enqueue(value=value, note="broken") for name, (kind, value) in ARGUMENTS.items()]
    drain(app)
    for job in jobs:
        desk.edit(job.id, payload=desk.get(job.id).payload.replace(b'"broken"', b'"repaired"'))
        desk.resurrect(job.id)
    drain(app)
    assert [job.status() for job in jobs] == [Spot.ARCHIVE] * len(jobs)
    for name, (kind, value) in ARGUMENTS.items():
        assert [(type(back), back, str(back)) for back in seen[name]] == [(kind, value, str(value))] * 2


def test_row_15_what_would_not_come_back_equal_is_refused(app: Redrive):
    """An argument that its annotation brings back as something else."""

    @app.job("take.v1")
    async def take(value: float) -> None: ...

    with pytest.raises(InvalidField) as refused:
        take.enqueue(value=Decimal("1.10"))  # type: ignore[arg-type]
    assert refused.value.field == "value"
    assert isinstance(refused.value, ValueError)
    assert count(app) == 0


def test_row_16_arguments_spoilt_in_place_do_not_spoil_the_failure(app: Redrive):
    """Data that could not be encoded again made the failure handling fail, and the job ran without end."""
    runs: list[str] = []

    @app.job("spoil.v1", retry=RetryPolicy(max_attempts=3, base=0, jitter=0))
    async def spoil(names: list[str]) -> None:
        runs.append(names[0])
        names[0] = "\ud800"
        names.clear()
        raise ConnectionError("half of a character: \ud800")

    job = spoil.enqueue(names=["Zoë"])
    stored = app.desk("reader").get(job.id).payload
    drain(app)
    record = app.desk("reader").get(job.id)
    assert runs == ["Zoë"] * 3
    assert (record.head.reason, record.head.attempt, record.payload) == (Reason.RETRIES_EXHAUSTED, 3, stored)
    assert json.loads(stored) == {"names": ["Zoë"]}
    assert [line.attempt for line in record.ledger] == [1, 2, 3]
