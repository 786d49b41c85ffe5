"""Every payload of the table through every entrance: stored exactly, or refused with code, field and offset."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from redrive import InvalidField, PayloadError, Redrive
from redrive.domain.filters import JobFilter
from redrive.domain.states import Place
from tests.app.payloads import CASES, NOTHING, Case
from tests.cli.command import run

LIBRARY = [case for case in CASES if case.value is not NOTHING]


@pytest.fixture(scope="module")
def apps(shared_url: str) -> Iterator[dict[int, Redrive]]:
    made = {limit: Redrive(shared_url, limits={"payload": limit}) for limit in {case.limit for case in CASES}}
    yield made
    for app in made.values():
        app.close()


@pytest.fixture
def app(apps: dict[int, Redrive], case: Case) -> Redrive:
    return apps[case.limit]


def stored(app: Redrive, place: Place, job_type: str) -> list[bytes]:
    heads = app.insight().jobs(JobFilter(place=place, type=job_type)).jobs
    return [app.desk("test").get(head.id).payload for head in heads]


@pytest.fixture
def job_type() -> str:
    """Its own for each test: what is stored under it is this test's."""
    return f"t.{uuid4().hex}"


@pytest.mark.parametrize("case", LIBRARY, ids=str)
def test_library(app, case, job_type):
    if case.written is None:
        app.enqueue(job_type, case.value)
        assert stored(app, Place.HOT, job_type) == [case.data]
        return
    code, field = case.written
    with pytest.raises(InvalidField) as refused:
        app.enqueue(job_type, case.value)
    assert (refused.value.code, refused.value.field) == (code, field)
    with pytest.raises(InvalidField) as in_batch:
        app.enqueue_many([(job_type, {"fine": 1}), (job_type, case.value)])
    assert (in_batch.value.code, in_batch.value.field) == (code, f"items[1].{field}")
    assert stored(app, Place.HOT, job_type) == []


@pytest.mark.parametrize("case", CASES, ids=str)
def test_raw(app, case, job_type):
    if len(case.data) <= case.limit:
        handle = app.enqueue_raw(job_type, case.data)
        assert app.desk("test").get(handle.id).payload == case.data
        return
    with pytest.raises(PayloadError) as refused:
        app.enqueue_raw(job_type, case.data)
    assert (refused.value.code, refused.value.field, refused.value.offset) == (
        "payload-too-large",
        "payload",
        case.limit,
    )
    assert stored(app, Place.HOT, job_type) == []


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch, shared_url: str, case: Case) -> None:
    monkeypatch.setenv("REDRIVE_DATABASE_URL", shared_url)
    monkeypatch.setenv("REDRIVE_LIMITS__PAYLOAD", str(case.limit))


SAID = [(case, False) for case in CASES] + [(case, True) for case in CASES if case.read is not None]


@pytest.mark.parametrize(("case", "raw"), SAID, ids=[f"{case}{'-raw' if raw else ''}" for case, raw in SAID])
@pytest.mark.usefixtures("limits")
def test_command_line(app, case, job_type, tmp_path, raw):
    (tmp_path / "payload").write_bytes(case.data)
    ran = run("enqueue", job_type, f"@{tmp_path / 'payload'}", *(["--raw"] if raw else []))
    refusal = case.read if not raw or (case.read and case.read[0] == "payload-too-large") else None
    if refusal is None:
        assert ran.code == 0, ran.said
        assert app.desk("test").get(UUID(ran.text.strip())).payload == case.data
        return
    assert ran.code == 1
    assert re.search(rf"payload: .*(byte {refusal[1]}\)|at most {refusal[1]} bytes)", ran.said), ran.said
    assert "Traceback" not in ran.said
    assert stored(app, Place.HOT, job_type) == []


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("limits")
def test_import(app, case, job_type, tmp_path: Path):
    try:
        payload = {"payload": case.data.decode()}
    except UnicodeDecodeError:
        payload = {"payload_base64": base64.b64encode(case.data).decode()}
    base = {"type": job_type, "queue": "q", "reason": "MaxRetriesExceeded", "failed_at": "2026-04-30T14:32:07Z"}
    lines = [{**base, "id": str(uuid4()), "payload": "{}"}, {**base, "id": str(uuid4()), **payload}]
    file = tmp_path / "dead.ndjson"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = run("dlq", "import", str(file))
    if len(case.data) <= case.limit:
        assert ran.code == 0, ran.said
        assert sorted(stored(app, Place.DLQ, job_type)) == sorted([b"{}", case.data])
        return
    assert ran.code == 1
    assert f"payload: {len(case.data)} bytes at line 2, column 1 (byte {len(json.dumps(lines[0])) + 1})" in ran.said
    assert stored(app, Place.DLQ, job_type) == []  # not even the good line before it
