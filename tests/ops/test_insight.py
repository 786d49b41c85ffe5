"""The operator's two questions: why is it here, and is it safe to run again."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update

from redrive import Fatal, Reason
from redrive.domain.errors import NotFound, PayloadError
from redrive.domain.job import JobHead, JobRecord, LedgerEntry
from redrive.domain.states import Place
from redrive.ops.safety import Safety, judge
from redrive.store.port import ClaimRequest, QueueChange, TypeInfo, TypeView, WorkerInfo
from redrive.store.sql.tables import jobs_hot

NOW = datetime(2026, 4, 30, tzinfo=UTC)


def head(**changes: Any) -> JobHead:
    made = JobHead(
        id=UUID(int=1), place=Place.DLQ, state=None, type="t", queue="q", priority=10, version=3, revision=1, life=1,
        attempt=1, spent=1, max_attempts=3, content_type="application/json", payload_size=2, tags=(), labels={},
        idempotency_key=None, lock_key=None, worker_id=None, due_at=NOW, created_at=NOW, updated_at=NOW,
        life_started_at=NOW, created_by=None, modified_by=None, reason=Reason.RETRIES_EXHAUSTED,
    )  # fmt: skip
    return replace(made, **changes)


def entry(kind: str = "failed", life: int = 1) -> LedgerEntry:
    return LedgerEntry(life, 1, kind, 1, NOW, NOW, "w", "b", "fatal", "E", "m", None, None)


def view(idempotent: bool) -> TypeView:
    return TypeView("t", "b", "q", {}, idempotent, "bury", {}, None, None, NOW)


PROBLEM = PayloadError("a comma is missing")
CASES: list[tuple[str, Any, Safety, str]] = [
    ("retries", {}, Safety.SAFE, "was not undone"),
    ("retries, idempotent", {"view": view(True)}, Safety.SAFE, ""),
    ("late success", {"ledger": ["late_success"]}, Safety.UNSAFE, "its effect has happened"),
    ("key held", {"holder": head()}, Safety.UNSAFE, "holds its key"),
    ("zombie", {"reason": Reason.ZOMBIE}, Safety.UNKNOWN, "not idempotent"),
    ("zombie, idempotent", {"reason": Reason.ZOMBIE, "view": view(True)}, Safety.SAFE, "says that it is idempotent"),
    ("zombie, unknown type", {"reason": Reason.ZOMBIE, "view": None}, Safety.UNKNOWN, "no worker has announced"),
    ("timeout", {"reason": Reason.TIMEOUT}, Safety.UNKNOWN, "may have done part"),
    ("lost", {"reason": Reason.HEARTBEAT_LOST}, Safety.UNKNOWN, "may have done part"),
    ("unreadable", {"problem": PROBLEM}, Safety.FUTILE, "repair it first"),
    ("nobody serves it", {"live": False}, Safety.SAFE, "would wait for one"),
    ("nobody knows it", {"live": False, "view": None}, Safety.FUTILE, "no worker has announced its type"),
    ("three lives", {"lives": 3}, Safety.FUTILE, "died in 3 lives"),
    ("fatal", {"reason": Reason.FATAL}, Safety.FUTILE, "still the same"),
    ("fatal, edited", {"reason": Reason.FATAL, "revision": 2}, Safety.SAFE, ""),
    ("unreadable zombie", {"reason": Reason.ZOMBIE, "problem": PROBLEM}, Safety.UNKNOWN, "may have done part"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "safety", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_verdicts(facts: dict[str, Any], safety, said):
    ledger = [entry(kind) for kind in facts.get("ledger", [])] + [entry(life=n) for n in range(facts.get("lives", 1))]
    about = head(reason=facts.get("reason", Reason.RETRIES_EXHAUSTED), revision=facts.get("revision", 1))
    record = JobRecord(about, b"{}", None, tuple(ledger))
    verdict = judge(
        record, facts.get("problem"), facts.get("view", view(False)), facts.get("holder"), facts.get("live", True)
    )
    assert verdict.safety is safety
    assert said in (verdict.findings[0] if verdict.findings else "")


def test_a_dead_job_explained(app, desk):
    @app.job("t")
    def handler(a: int) -> None: ...

    broken = app.enqueue_raw("t", b'{"a": 1\n"b": 2}')
    app.worker().run(burst=True)
    explained = app.insight().explain(broken.id)
    assert explained.reason is not None
    assert explained.reason.first_step == "repair the payload or the code, then resurrect"
    assert explained.problem is not None
    assert (explained.problem.line, explained.problem.column, explained.problem.offset) == (2, 1, 8)
    assert explained.suggestion is not None
    assert explained.suggestion.payload == b'{"a": 1,\n"b": 2}'
    assert explained.verdict is not None
    assert explained.verdict.safety is Safety.FUTILE
    assert desk.get(broken.id).payload == b'{"a": 1\n"b": 2}'  # a suggestion applies itself never

    key = app.enqueue("t", {"a": 1}, idempotency_key="k")
    desk.isolate(key.id)
    app.enqueue("t", {"a": 1}, idempotency_key="k")
    held = app.insight().explain(key.id)
    assert held.verdict is not None
    assert held.verdict.safety is Safety.UNSAFE
    with pytest.raises(NotFound):
        app.insight().explain(UUID(int=7))


def test_a_job_that_lives_has_no_verdict(app):
    explained = app.insight().explain(app.enqueue_raw("t", b"{").id)
    assert (explained.reason, explained.verdict, explained.suggestion) == (None, None, None)
    assert explained.problem is not None


def test_work_that_does_not_move_is_named(app, desk):
    for queue in ("served", "forgotten", "paused"):
        app.enqueue("t", {}, queue=queue)
    app.enqueue("t", {}, queue="later", run_after=3600)
    desk.pause("paused")
    announced = (TypeInfo("t", "served", {}, False, "bury", {}, None),)
    app.store.register(WorkerInfo("w", "h", 1, "b", ("served", "paused"), announced, 1))
    stuck = {one.queue: one.why for one in app.insight().standstills()}
    assert set(stuck) == {"forgotten", "paused"}
    assert "redrive work" in stuck["forgotten"]
    assert "redrive queues resume paused" in stuck["paused"]


def test_what_a_limit_holds_back_for_long_is_named_and_so_is_what_nothing_holds_back(app):
    queues = ("full", "slow", "keyed", "starved", "fine")
    announced = (TypeInfo("t", "full", {}, False, "bury", {}, None),)
    app.store.register(WorkerInfo("w", "h", 1, "b", queues, announced, 1))
    desk = app.desk("ann")
    desk.set_queue("full", QueueChange(max_running=1))
    desk.set_queue("slow", QueueChange(rate="1/day"))
    for queue in queues:
        for _ in range(3):
            app.enqueue("t", {}, queue=queue, **({"lock_key": "k"} if queue == "keyed" else {}))
    for queue in queues[:3]:
        held = app.store.claim(ClaimRequest("w", (queue,), 2, ("t",)))
        app.store.start(queues, [(one.id, one.lease) for one in held if not one.started])
    assert app.insight().standstills() == [], "all of that is as it should be, for a while"

    def waited(seconds: int, *names: str) -> dict[str, str]:
        which = update(jobs_hot).where(jobs_hot.c.queue.in_(names)).values(due_at=app.store._db.after(-seconds))
        app.store._db.write(lambda connection: connection.execute(which))
        found = app.insight().standstills()
        assert all(one.oldest is not None and one.oldest >= seconds for one in found if one.queue in names)
        return {one.queue: one.why for one in found}

    said = waited(90, "full", "slow", "keyed", "starved")
    assert set(said) == {"full", "slow", "keyed"}
    assert said["full"].startswith("1 of 1 running: redrive jobs list --queue full --state processing shows what runs")
    assert re.match(r"rate 1/day: next in .+ s: redrive queues set slow --rate RATE lets more start", said["slow"])
    assert said["keyed"].startswith("1 wait for a lock key: redrive jobs list --queue keyed")
    assert "docs/limits.md" in waited(600, "starved")["starved"]


def test_who_has_the_lock_key_is_told(app):
    app.store.register(WorkerInfo("w", "h", 1, "b", ("default",), (), 1))
    first, second = (app.enqueue("t", {}, lock_key="k").id for _ in range(2))
    assert app.insight().explain(second).lock_holder is None
    for _ in range(2):
        held = app.store.claim(ClaimRequest("w", ("default",), 2, ("t",)))
        app.store.start(("default",), [(one.id, one.lease) for one in held])
    assert app.insight().explain(second).lock_holder == first
    assert app.insight().explain(first).lock_holder is None


def test_the_application_of_the_examples_raises_no_alarm_when_all_is_well(app):
    @app.job("t")
    def handler() -> None:
        raise Fatal("no")

    handler.enqueue()
    app.worker().run(burst=True)
    assert app.insight().standstills() == []
