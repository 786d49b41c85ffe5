"""Schedules as an application declares them, up to the handler that runs."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from sqlalchemy import update

from redrive import InvalidField, JobContext, Redrive
from redrive.domain.filters import JobFilter
from redrive.domain.job import JobHead
from redrive.domain.states import Place
from redrive.store.sql.tables_later import schedules

DAY = timedelta(days=1)


def burst(app: Redrive) -> None:
    app.worker().run(burst=True)


def days_pass(app: Redrive, number: int = 1) -> None:
    """Write the rows as if nobody had seen to them for so long."""
    store: Any = app.store
    with store._db.engine.begin() as connection:
        for row in connection.execute(schedules.select()).all():
            moved = update(schedules).where(schedules.c.name == row.name)
            connection.execute(moved.values(next_slot=row.next_slot - number * DAY))


def done(app: Redrive) -> list[JobHead]:
    return list(app.insight().jobs(JobFilter(place=Place.ARCHIVE)).jobs)


def test_a_scheduled_handler_runs_with_its_arguments_and_knows_its_slot(app):
    ran: list[tuple[str, int, dict[str, str]]] = []

    @app.cron(
        "0 3 * * *", tz="Europe/Berlin", arguments={"region": "eu"}, priority=30, tags=["night"], labels={"a": "b"}
    )
    @app.cron("0 4 * * *", name="report-us", arguments={"region": "us", "days": 7}, queue="slow")
    @app.job("report.v1", queue="reports")
    def report(ctx: JobContext, region: str, days: int = 1) -> None:
        ran.append((region, days, dict(ctx.labels)))

    burst(app)
    rows = {view.name: view for view in app.insight().schedules()}
    assert rows.keys() == {"report.v1", "report-us"}
    assert ran == []
    days_pass(app)
    app.worker(queues=["reports", "slow"]).run(burst=True)
    slots = {name: view.next_slot - DAY for name, view in rows.items() if view.next_slot}
    berlin, us = (slots[name].strftime("%Y-%m-%dT%H:%M:%SZ") for name in ("report.v1", "report-us"))
    assert sorted(ran) == [
        ("eu", 1, {"a": "b", "schedule": "report.v1", "slot": berlin}),
        ("us", 7, {"schedule": "report-us", "slot": us}),
    ]
    said = {job.labels["schedule"]: job for job in done(app)}
    job = said["report.v1"]
    assert (job.queue, job.priority, job.tags, job.created_by) == ("reports", 30, ("night",), "schedule")
    assert job.idempotency_key == f"report.v1@{berlin}"
    assert said["report-us"].queue == "slow"
    assert app.insight().schedules()[0].state == "undeclared", "its worker has ended"


def test_a_worker_enqueues_for_queues_it_does_not_serve(app):
    @app.cron("0 3 * * *")
    @app.job("report.v1", queue="reports")
    def report() -> None: ...

    @app.job("other.v1", queue="other")
    def other() -> None: ...

    app.worker(queues=["other"]).run(burst=True)
    days_pass(app)
    app.worker(queues=["other"]).run(burst=True)
    assert app.insight().count(JobFilter(place=Place.HOT, queue="reports")).number == 1


def test_the_key_of_the_handler_is_the_key_of_the_slots_job(lite):
    @lite.every(DAY, arguments={"region": "eu"})
    @lite.job("report.v1", key=lambda region: f"report-{region}")
    def report(region: str) -> None: ...

    held = report.using(run_after=3600).enqueue("eu")
    burst(lite)
    days_pass(lite)
    burst(lite)
    assert lite.insight().count(JobFilter(place=Place.HOT)).number == 1
    assert done(lite) == []
    lite.desk("t").run_now(held.id)
    days_pass(lite)
    burst(lite)
    assert [job.idempotency_key for job in done(lite)] == ["report-eu"]


def plain() -> None: ...


def test_what_cannot_be_meant_is_refused_where_it_is_declared(lite):
    @lite.job("report.v1")
    def report(region: str) -> None: ...

    good: dict[str, Any] = {"arguments": {"region": "eu"}}
    refusals: list[tuple[str, Any]] = [
        ("cron", lambda: lite.cron("0 3 * *", **good)),
        ("tz", lambda: lite.cron("0 3 * * *", tz="Berlin", **good)),
        ("every", lambda: lite.every(0.1, **good)),
        ("region", lambda: lite.every(60)(report)),
        ("region", lambda: lite.every(60, arguments={"region": 7})(report)),
        ("day", lambda: lite.every(60, arguments={"region": "eu", "day": 1})(report)),
        ("catch_up", lambda: lite.every(60, catch_up="some", **good)(report)),
        ("name", lambda: lite.every(60, name="no spaces", **good)(report)),
        ("run_after", lambda: lite.every(60, run_after=5, **good)(report)),
        ("labels", lambda: lite.every(60, labels={"slot": "x"}, **good)(report)),
        ("priority", lambda: lite.every(60, priority=101, **good)(report)),
        ("arguments", lambda: lite.every(60, arguments={"region": "x" * 10_000})(report)),
        ("handler", lambda: lite.every(60)(plain)),
    ]
    for field, declare in refusals:
        with pytest.raises(InvalidField) as refused:
            declare()
        assert refused.value.field == field
    lite.every(60, **good)(report)
    with pytest.raises(InvalidField, match=r"name: report\.v1 is taken"):
        lite.every(60, **good)(report)
    with pytest.raises(TypeError, match="'colour' is no option"):
        lite.every(60, name="b", colour="red", **good)(report)
    assert report("eu") is None, "it is still the function it was"


def test_an_application_without_schedules_asks_the_database_nothing(lite):
    @lite.job("t")
    def handler() -> None: ...

    with mock.patch.object(type(lite.store), "schedule_rows", side_effect=AssertionError):
        burst(lite)


def test_the_desk_pauses_and_resumes(app):
    @app.every(DAY)
    @app.job("report.v1")
    def report() -> None: ...

    burst(app)
    desk = app.desk("ann")
    version = desk.pause_schedule("report.v1", note="holidays").version
    days_pass(app)
    burst(app)
    assert done(app) == []
    assert desk.resume_schedule("report.v1", version=version).paused is False
    burst(app)
    assert len(done(app)) == 1
    said = [(entry.action, entry.actor, entry.note) for entry in app.store.audit_entries()]
    assert said == [("resume-schedule", "ann", None), ("pause-schedule", "ann", "holidays")]
    for wrong in ("", "no spaces", None):
        with pytest.raises(InvalidField):
            desk.pause_schedule(wrong)


if TYPE_CHECKING:
    # Never run: mypy is the test.
    _app = Redrive()

    @_app.every(60)
    @_app.cron("0 3 * * *", tz="Europe/Berlin", catch_up="none", arguments={"to": "a"}, priority=3)
    @_app.job("typed")
    async def _typed(ctx: JobContext, to: str) -> None: ...

    _typed.enqueue("a")
    _typed.enqueue(3)  # type: ignore[arg-type]
    _app.cron("0 3 * * *", catch_up="some")  # type: ignore[arg-type]
    _app.every(60)(plain)  # type: ignore[type-var]
