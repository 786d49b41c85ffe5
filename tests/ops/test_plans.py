"""Plans on both databases: what was previewed is what runs, at the versions that were previewed."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, update
from uuid_utils.compat import uuid7

from redrive import InvalidField, NotAllowed, NotFound, Place, Redrive, Spot
from redrive.domain.filters import JobFilter
from redrive.domain.job import NewJob
from redrive.domain.operations import OperationState
from redrive.domain.plans import PlanExpired
from redrive.ops.filter_text import parse_filter, write_filter
from redrive.ops.plans import NotExported
from redrive.ops.service import Desk
from redrive.store.sql.rows import PLACES, head, head_columns
from redrive.store.sql.tables_later import plan_items, plans
from tests.ops.crowd import die
from tests.store.rows import Rows

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def accept(app: Redrive, number: int, **but: Any) -> list[UUID]:
    known: dict[str, Any] = {"type": "t", "queue": "q", "payload": b"{}"}
    return [one.id for one in app.store.enqueue([NewJob(id=uuid7(), **(known | but)) for _ in range(number)])]


def spots(app: Redrive, ids: list[UUID]) -> dict[Spot, int]:
    """How many of ``ids`` are where."""
    db: Any = app.store._db  # type: ignore[attr-defined]
    found, wanted = dict.fromkeys(Spot, 0), set(ids)
    for place, table in PLACES.items():
        for row in db.read(lambda connection, t=table, p=place: connection.execute(select(*head_columns(p))).all()):
            if row.id in wanted:
                found[head(place, row).spot] += 1
    return found | {Spot.NOWHERE: len(ids) - sum(found.values())}


def kept(app: Redrive) -> None:
    assert [(one.promise, one.examples) for one in app.store.promises() if one.number] == []


# -- what was previewed is what runs -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_plan_moves_its_jobs_at_its_versions_and_nothing_else(app, desk):
    ids = die(app, 500)
    plan = desk.plan("resurrect", filter=JobFilter(queue="q"))
    assert (plan.counts.matched, plan.counts.affected, plan.counts.skipped) == (500, 500, {})
    desk.resurrect_many(ids[:3])
    for job in ids[3:5]:
        desk.edit(job, tags=["looked at"])
    late = die(app, 20)
    preview = desk.plans.preview(plan.number)
    assert preview.arrived.number == 20
    assert set(preview.arrived_ids) <= set(map(str, late))

    done = desk.run(plan, note="fixed")
    assert done.state is OperationState.DONE
    assert (done.progress.moved, done.progress.skipped) == (495, {"version-changed": 5})
    left = desk.operations.left_out(done)
    assert [one.job_id for one in left] == ids[:5]
    assert all("somebody changed it" in one.why for one in left)
    assert spots(app, late)[Spot.DLQ] == 20
    assert spots(app, ids)[Spot.PENDING] == 498
    assert desk.plans.preview(plan.number).arrived.number == 20

    again = desk.run(plan)
    assert (again.id, again.progress) == (done.id, done.progress)
    entries = [one for one in app.store.audit_entries(limit=1000) if one.operation_id == done.id]
    assert {one.note for one in entries} == {"fixed"}
    assert sum(one.action == "resurrect" for one in entries) == 495
    (begun,) = [one for one in entries if one.action == "run-plan"]
    assert begun.details["digest"] == plan.digest
    kept(app)


@pytest.mark.slow
def test_a_held_key_and_twins_roll_nothing_back(app, desk):
    ids = die(app, 1000)
    holder = app.enqueue("t", {}, queue="q", idempotency_key="held")
    desk.edit(ids[7], idempotency_key="held")
    plan = desk.plan("resurrect", filter="queue=q")
    assert (plan.counts.affected, plan.counts.skipped) == (999, {"key-held": 1})
    done = desk.run(plan)
    assert (done.progress.moved, done.progress.skipped) == (999, {"key-held": 1})
    (left,) = desk.operations.left_out(done)
    assert left.job_id == ids[7]
    assert str(holder.id) in left.why

    twins = die(app, 1000, queue="r")
    for job in twins[10:12]:
        desk.edit(job, idempotency_key="twin")
    desk.edit(twins[12], idempotency_key="held")
    done = desk.run(desk.plan("resurrect", filter="queue=r"))
    assert (done.progress.moved, done.progress.skipped) == (998, {"key-held": 2})
    assert [one.job_id for one in desk.operations.left_out(done)] == [twins[11], twins[12]]
    kept(app)


def test_what_no_handler_could_read_stays_unless_it_is_included(app, desk):
    good, bad = die(app, 3), die(app, 2, payload=b'{"a": 1 "b": 2}')
    plan = desk.plan("resurrect", filter="queue=q")
    assert (plan.counts.affected, plan.counts.skipped) == (3, {"unreadable": 2})
    done = desk.run(plan)
    assert (done.progress.moved, done.progress.skipped) == (3, {"unreadable": 2})
    assert "a comma is missing" in desk.operations.left_out(done)[0].why
    assert spots(app, good)[Spot.PENDING] == 3
    assert desk.run(desk.plan("resurrect", filter="queue=q", include=("unreadable",))).progress.moved == 2
    assert spots(app, bad)[Spot.PENDING] == 2


@pytest.mark.slow
def test_a_job_that_dies_again_is_not_picked_up_again(app, desk):
    """Row 3: every job is resurrected once, however soon it dies again."""
    ids = die(app, 250)
    plan = desk.plan("resurrect", filter="queue=q")
    desk.batch = 100
    operation, _ = desk.plans.run(plan)
    lease = app.store.take_operation(operation.id, "me", lease=10)
    assert lease is not None
    app.store.advance(operation.id, lease, 100)
    app.desk("dies").isolate(ids[:100])  # all of them, at once
    app.store.let_go(operation.id, lease)
    done = desk.run(plan)
    assert (done.progress.moved, done.progress.skipped) == (250, {})
    assert {app.store.head(job).life for job in ids} == {2}
    assert spots(app, ids)[Spot.DLQ] == 100


@pytest.mark.slow
def test_two_operations_over_the_same_jobs_move_each_once(app, desk):
    """Row 4: who comes second is told so."""
    ids = die(app, 300)
    one, two = desk.plan("resurrect", filter="queue=q"), desk.plan("resurrect", ids=ids[100:])
    first, _ = desk.plans.run(one)
    lease = app.store.take_operation(first.id, "me", lease=10)
    assert lease is not None
    app.store.advance(first.id, lease, 150)
    second = desk.run(two)
    app.store.let_go(first.id, lease)
    first = desk.run(one)
    assert (second.progress.moved, second.progress.skipped) == (150, {"version-changed": 50})
    assert (first.progress.moved, first.progress.skipped) == (150, {"version-changed": 150})
    assert {app.store.head(job).life for job in ids} == {2}
    kept(app)


# -- making plans ------------------------------------------------------------------------------------------------------


def test_oldest_first_and_the_digest_says_which(app, desk):
    ids = die(app, 5)
    plan = desk.plan("resurrect", filter="queue=q")
    assert [item.job_id for item in app.store.plan_items(plan.id, limit=10)] == ids
    assert desk.plan("resurrect", filter="queue=q").digest == plan.digest
    assert desk.plan("resurrect", filter="queue=q", priority=3).digest != plan.digest
    assert desk.plan("purge", filter="queue=q").digest != plan.digest
    desk.edit(ids[2], tags=["x"])
    assert desk.plan("resurrect", filter="queue=q").digest != plan.digest
    with pytest.raises(InvalidField, match="digest"):
        desk.run(plan.number, digest="0" * 64)
    with pytest.raises(InvalidField, match="digest: is missing"):
        desk.run(plan.number)
    with pytest.raises(InvalidField, match="digest"):
        desk.run(plan.number, digest=plan.digest[:11])
    assert desk.run(plan.number, digest=plan.short).progress.moved == 4


def test_ids_with_and_without_versions(app, desk):
    ids = die(app, 4)
    nobody = uuid4()
    version = app.store.head(ids[0]).version
    desk.edit(ids[1], tags=["x"])
    live = accept(app, 1)
    plan = desk.plan("resurrect", ids=[(ids[0], version), (ids[1], version), ids[2], nobody, *live])
    assert (plan.counts.matched, plan.counts.affected) == (4, 2)
    assert plan.counts.skipped == {"version-changed": 1, "not-allowed": 1, "not-found": 1}
    done = desk.run(plan)
    assert (done.progress.moved, done.progress.skipped) == (2, {"version-changed": 1, "not-allowed": 1})


@pytest.mark.slow
def test_more_than_one_batch_in_constant_steps(app, desk):
    ids = die(app, 2200)
    bad = die(app, 1, payload=b"{")  # beyond the first batch, whose payloads are looked at
    plan = desk.plan("resurrect", filter="queue=q")
    assert (plan.counts.matched, plan.counts.affected) == (2201, 2201)
    assert (
        len({item.ordinal for n in (0, 1000, 2000) for item in app.store.plan_items(plan.id, after=n, limit=1000)})
        == 2201
    )
    done = desk.run(plan)
    assert (done.progress.moved, done.progress.skipped, done.cursor) == (2200, {"unreadable": 1}, 2201)
    assert spots(app, ids)[Spot.PENDING] == 2200
    assert spots(app, bad)[Spot.DLQ] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no condition"),
        ("reson=zombie", "'reson' is no condition"),
        ("reason=zombi", "reason"),
        ("reason=", "is no condition"),
        ("zombie", "is no condition"),
        ("reason=zombie reason=fatal", "given twice"),
        ("failed_after=yesterday", "failed_after: 'yesterday' is not a time"),
        ("failed_after=-5", "is not a time"),
        ("life_min=two", "life_min"),
        ("label=customer", "NAME=VALUE"),
        ("'reason=zombie", "cannot be read"),
        ("operation=7", "operation"),
        ("cancelled=maybe", "true or false"),
        ("place=nowhere", "place"),
        ("place=hot", "takes nothing from hot"),
        ("place=hot reason=zombie", "does not go with place"),
        ("state=pending", "does not go with place"),
        ("all queue=q", "does not go with conditions"),
    ],
)
def test_a_filter_that_does_not_parse_is_refused_never_widened(lite, text, said):
    die(lite, 1)
    with pytest.raises(InvalidField, match=said):
        lite.desk("ann").plan("resurrect", filter=text)
    assert lite.store.plans() == []


def test_filters_come_back_as_they_were_written():
    text = "reason=zombie queue=mail 'label=customer=42 b' failed_after=2h life_min=2 cancelled=true q='no such'"
    found = parse_filter(text, now=NOW)
    assert found.failed_after == NOW - timedelta(hours=2)
    assert found.label == ("customer", "42 b")
    assert parse_filter(write_filter(found), now=NOW + timedelta(days=9)) == found
    assert write_filter(JobFilter()) == "all"
    assert parse_filter("all", now=NOW) == JobFilter()
    hot = JobFilter(place=Place.HOT, queue="q")
    assert parse_filter(write_filter(hot), now=NOW) == hot


def test_relative_times_are_pinned_by_the_databases_clock(app, desk):
    before = app.store.now()
    plan = desk.plan("resurrect", filter="failed_after=1h")
    assert plan.filter is not None
    assert plan.filter.failed_after is not None
    assert before <= plan.filter.failed_after + timedelta(hours=1) <= plan.created_at
    command = desk.plans.preview(plan.number).command
    assert (
        command
        == f"redrive plan resurrect --filter failed_after={plan.filter.failed_after.isoformat('T', 'microseconds')}"
    )


def test_options_that_do_not_go_with_the_action(lite):
    desk = lite.desk("ann")
    for action, options, said in (
        ("purge", {"tags": ["x"]}, "tags: does not go with purge"),
        ("edit", {}, "changes nothing"),
        ("edit", {"delay": 3.0}, "delay: does not go with edit"),
        ("resurrect", {"priority": 101}, "priority"),
        ("resurrect", {"include": ("key-held",)}, "cannot be included"),
        ("resurrect", {"colour": "red"}, "colour: is no option"),
        ("explode", {}, "action"),
    ):
        with pytest.raises(InvalidField, match=said):
            desk.plan(action, filter="all", **options)
    with pytest.raises(InvalidField, match="neither"):
        desk.plan("resurrect")
    plan = desk.plan("purge", filter="all")
    with pytest.raises(InvalidField, match="does not go with purge"):
        desk.run(plan, canary=3, count=0, exported=True)
    with pytest.raises(NotFound):
        desk.run(4711, digest="0" * 12)


def test_plans_expire_and_are_collected(app, desk):
    rows = Rows(app.store)
    ids = die(app, 1200)
    plan, other = desk.plan("resurrect", filter="queue=q"), desk.plan("resurrect", ids=ids[:3])
    past = app.store.now() - timedelta(seconds=1)
    rows.run(update(plans).where(plans.c.id == plan.id).values(expires_at=past))
    with pytest.raises(PlanExpired, match="make it anew"):
        desk.run(plan)
    removed = 0
    while number := app.store.prune_plans():
        assert number <= 1000
        removed += number
    assert removed >= 1200
    assert app.store.plan(plan.number) is None
    with pytest.raises(NotFound):
        desk.run(plan)
    assert rows.count(plan_items) == 3
    assert desk.run(other).progress.moved == 3
    rows.run(update(plans).where(plans.c.id == other.id).values(expires_at=past))
    assert app.store.prune_plans() == 0  # it was run: it stays as long as its operation is of interest


def test_a_plan_that_was_not_completed_cannot_be_run(app, desk):
    plan = app.store.begin_plan(
        desk.plan("resurrect", filter="all").action, JobFilter(), desk.plans._options("resurrect", {}), "ann"
    )
    with pytest.raises(InvalidField, match="digest"):
        desk.run(plan.number, digest="0" * 12)
    with pytest.raises(NotAllowed):
        app.store.start_operation(plan, *_nothing(desk))


def _nothing(desk: Desk) -> tuple[Any, Any]:
    from redrive.domain.audit import AuditDraft
    from redrive.domain.operations import RunOptions

    return RunOptions(), AuditDraft(desk.actor, "run-plan")


# -- the other actions -------------------------------------------------------------------------------------------------


def test_purge_wants_the_count_and_the_export(app, desk):
    ids = die(app, 5)
    changed, rest = ids[0], ids[1:]
    plan = desk.plan("purge", filter="queue=q")
    with pytest.raises(InvalidField, match="count: is missing"):
        desk.run(plan, exported=True)
    with pytest.raises(InvalidField, match="count: 4 is not"):
        desk.run(plan, count=4, exported=True)
    with pytest.raises(NotExported):
        desk.run(plan, count=5)
    assert spots(app, ids)[Spot.DLQ] == 5
    desk.edit(changed, tags=["x"])
    file = io.BytesIO()
    done = desk.run(plan, count=5, export=file)
    assert (done.progress.moved, done.progress.skipped) == (4, {"version-changed": 1})
    assert spots(app, rest)[Spot.NOWHERE] == 4
    lines = file.getvalue().splitlines()
    assert sorted(str(job) for job in rest) == sorted(line.split(b'"')[5].decode() for line in lines)
    assert desk.run(plan).progress == done.progress  # again: no count, nothing to delete
    kept(app)


def test_waiting_work_is_cancelled_isolated_and_edited_by_plans(app, desk):
    hot = accept(app, 5)
    plan = desk.plan("edit", filter="place=hot queue=q", priority=70, tags=["night"])
    assert desk.run(plan).progress.moved == 5
    head = app.store.head(hot[0])
    assert (head.priority, head.tags, head.revision) == (70, ("night",), 2)
    same = desk.run(desk.plan("edit", filter="place=hot queue=q", priority=70))
    assert (same.progress.moved, same.progress.unchanged, same.partly) == (0, 5, False)
    assert desk.run(desk.plan("cancel", ids=hot[:2])).progress.moved == 2
    rest = desk.plan("isolate", filter="state=pending")
    accept(app, 1)  # arrived since
    assert desk.plans.preview(rest.number).arrived.number == 1
    assert desk.run(rest).progress.moved == 3
    assert spots(app, hot)[Spot.DLQ] == 5
    assert app.store.count_jobs(JobFilter(place=Place.HOT)).number == 1
    kept(app)


def test_a_resurrection_changes_what_it_is_told_to(app, desk):
    ids = die(app, 3)
    plan = desk.plan("resurrect", filter="queue=q", queue="slow", type="t.v2", priority=90, labels={"a": "b"}, delay=60)
    done = desk.run(plan)
    head = app.store.head(ids[0])
    assert (head.queue, head.type, head.priority, head.labels) == ("slow", "t.v2", 90, {"a": "b"})
    assert (head.spot, head.operation_id) == (Spot.SCHEDULED, done.id)
    command = desk.plans.preview(plan.number).command
    for part in ("--to-queue slow", "--to-type t.v2", "--priority 90", "--label a=b", "--delay 60"):
        assert part in command
