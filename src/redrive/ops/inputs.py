"""What people hand in, turned into what the store takes, or refused naming the field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from redrive.domain.edits import UNSET, Unset
from redrive.domain.errors import InvalidField, PayloadError, require_aware
from redrive.domain.payload import dumps

JobId = UUID | str
Target = JobId | tuple[JobId, int | None]
RunAfter = datetime | timedelta | float | int | None
FARTHEST = timedelta(days=36_500)
DUE_EXPECTED = f"seconds or a timedelta from 0 to {FARTHEST.days} days, or a datetime with a time zone"


def job_id(value: object, field: str = "id") -> UUID:
    """A job's id from its text or itself."""
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value) if isinstance(value, str) else UUID(hex=str(value))
    except ValueError:
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
        raise InvalidField(field, f"{shown} is not an id", expected="a UUID") from None


def target(value: object, field: str = "id") -> tuple[UUID, int | None]:
    """A job to act on: its id, or its id with the version that was read."""
    if isinstance(value, tuple) and len(value) == 2:
        return job_id(value[0], field), check_version(value[1])
    return job_id(value, field), None


def targets(values: object) -> Iterable[tuple[UUID, int | None]]:
    """Jobs to act on, each once, in the order given; one id is a list of one."""
    if isinstance(values, str | UUID):
        return [target(values)]
    if not isinstance(values, Iterable):
        raise InvalidField("ids", f"{values!r} is not a list", expected="ids, or pairs of id and version")
    once: dict[UUID, int | None] = {}
    for number, value in enumerate(values):
        identity, version = target(value, f"ids[{number}]")
        if once.setdefault(identity, version) != version:
            raise InvalidField(f"ids[{number}]", f"{identity} is given at two versions", expected="each job once")
    return once.items()


def check_slots(value: object) -> int | None:
    """How many jobs a worker shall run at a time; None: what it was started with."""
    if value is None or (isinstance(value, int) and value in range(1, 10_001)):
        return value
    raise InvalidField("concurrency", f"{value!r}", expected="a whole number from 1 to 10000")


def check_version(value: object) -> int | None:
    """The version a person looked at."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InvalidField("version", f"{value!r}", expected="the version that was read, a whole number")
    return value


def due(value: object, field: str = "run_after") -> datetime | timedelta | None:
    """When a job may start: an aware datetime, or a delay on the database's clock."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return require_aware(field, value)
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidField(field, f"{value!r} is not a time", expected=DUE_EXPECTED)
    # NaN fails both comparisons, and a huge int never becomes a float.
    if not 0 <= seconds <= FARTHEST.total_seconds() or not math.isfinite(seconds):
        raise InvalidField(field, f"{value!r} is out of range", expected=DUE_EXPECTED)
    return timedelta(seconds=seconds)


def payload(value: object) -> bytes:
    """A payload from bytes (kept as they are), text (in UTF-8) or anything that is JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, str):
        return dumps(value)
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        before = value[: error.start].encode()
        raise PayloadError(
            "half of a character (a lone surrogate)",
            code="json-surrogate",
            expected="text that has a UTF-8 form",
            offset=len(before),
            line=before.count(b"\n") + 1,
            column=error.start - value.rfind("\n", 0, error.start),
        ) from None


def exact(value: Mapping[str, Any]) -> bytes:
    """A mapping as JSON that reads back equal: a tuple, or a number as a name, would come back as something else."""
    try:
        data = dumps(value if isinstance(value, dict) else dict(value))
    except PayloadError as error:
        field = "payload" if error.field == "payload" else f"payload.{error.field}"
        raise PayloadError(error.problem, field=field, expected=error.expected, code=error.code) from None
    if json.loads(data) != value:
        for path, problem, expected in _changed("payload", value):
            raise PayloadError(problem, field=path, expected=expected, code="json-type")
    return data


def _changed(path: str, value: object) -> Iterator[tuple[str, str, str]]:
    """What JSON would bring back as something else."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                yield path, f"{name!r} as a name would come back as text", "names that are strings"
            yield from _changed(f"{path}.{name}", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _changed(f"{path}[{number}]", inner)
    elif isinstance(value, tuple):
        yield path, "a tuple would come back as a list", "a list"


def payload_or_unset(value: object) -> bytes | Unset:
    """Like ``payload``, where nothing given means "leave it"."""
    return UNSET if isinstance(value, Unset) else payload(value)
