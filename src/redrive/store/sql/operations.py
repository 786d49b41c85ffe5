"""Operations: a batch of a plan, its cursor and its exceptions are one transaction, so no kill can part them.

Lock order: the operation's row, then job rows as ``operate`` locks them. Whoever steers waits for the batch under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, case, func, insert, literal, or_, select, update
from uuid_utils.compat import uuid7

from redrive.domain.audit import Actor, AuditDraft, Channel
from redrive.domain.errors import NotAllowed, NotFound
from redrive.domain.failures import FAILURES
from redrive.domain.moves import Answered, Skipped
from redrive.domain.operations import Operation, OperationState, Outcomes, Progress, RunOptions
from redrive.domain.plans import Action, Plan, PlanExpired, PlanItem, PlanOptions, PlanState, wish_of
from redrive.domain.text import storable
from redrive.store.bulk import Advanced, Left
from redrive.store.port import BATCH

from .audit import Target, write_audit
from .dialect import Dialect
from .operate import operate_in
from .plans import items
from .tables import jobs_archive, jobs_dlq, jobs_hot
from .tables_later import operation_exceptions, operations, plans

_op = operations.c
WHY = 500
"""Characters kept of why a job was left out."""


def _select(db: Dialect) -> Any:
    moved = _op.cursor - _op.paced_from
    pace = case((db.age(_op.paced_at) > 0, moved / db.age(_op.paced_at)), else_=literal(0.0))
    return select(operations, pace.label("pace"), plans.c.number.label("plan"), plans.c.action).join(
        plans, plans.c.id == _op.plan_id
    )


def _operation(row: Row[Any]) -> Operation:
    values = dict(row._mapping)
    options = values["options"]
    state = OperationState(values["state"])
    return Operation(
        id=values["id"],
        number=values["number"],
        plan_id=values["plan_id"],
        plan=values["plan"],
        action=values["action"],
        state=state,
        cursor=values["cursor"],
        options=RunOptions(values["rate"], values["canary"], options["stop_at"], options["hold"]),
        progress=Progress.load(values["progress"]),
        owner=values["owner"],
        actor=values["actor"],
        started_at=values["started_at"],
        finished_at=values["finished_at"],
        note=options["note"],
        pace=float(values["pace"]) if state is OperationState.RUNNING else None,
    )


def start(db: Dialect, plan: Plan, options: RunOptions, draft: AuditDraft) -> tuple[Operation, bool]:
    """See ``OperationPort.start_operation``."""

    def work(connection: Connection) -> tuple[Operation, bool]:
        locked = select(plans.c.state, plans.c.expires_at <= db.now()).where(plans.c.id == plan.id)
        row = connection.execute(db.locking(locked, of=plans)).first()
        if row is None:
            raise PlanExpired(plan.number, plan.expires_at)
        if row[0] == PlanState.RUN.value:
            return _operation(connection.execute(_select(db).where(_op.plan_id == plan.id)).one()), False
        if row[0] != PlanState.READY.value:
            raise NotAllowed("run", "plan that is being made", "it is not complete; make it anew")
        if row[1]:
            raise PlanExpired(plan.number, plan.expires_at)
        made = uuid7()
        actor = draft.actor
        connection.execute(
            insert(operations).values(
                id=made,
                number=db.numbering(_op.number),
                plan_id=plan.id,
                state=OperationState.RUNNING.value,
                rate=options.rate,
                canary=options.canary,
                options={
                    "stop_at": options.stop_at, "hold": options.hold, "note": draft.note,
                    "channel": actor.channel.value, "role": actor.role, "request_id": actor.request_id,
                },
                progress=Progress(plan.counts.matched).as_json(),
                paced_at=db.now(),
                actor=actor.name,
                started_at=db.now(),
            )
        )  # fmt: skip
        connection.execute(update(plans).where(plans.c.id == plan.id).values(state=PlanState.RUN.value))
        operation = _operation(connection.execute(_select(db).where(_op.id == made)).one())
        details: dict[str, Any] = {"plan": plan.number, "digest": plan.digest, "action": plan.action.value}
        details |= {"jobs": plan.counts.matched, "options": plan.options.given()}
        target = Target(f"operation {operation.number}", "started", details=details)
        write_audit(db, connection, replace(draft, action="run-plan", operation_id=made), [target])
        return operation, True

    return db.write(work)


def by_number(db: Dialect, connection: Connection, number: int) -> Operation | None:
    """See ``OperationPort.operation``."""
    row = connection.execute(_select(db).where(_op.number == number)).first()
    return None if row is None else _operation(row)


def newest(db: Dialect, connection: Connection, limit: int, before: int | None, unfinished: bool) -> list[Operation]:
    """See ``OperationPort.operations``."""
    statement = _select(db).order_by(_op.number.desc()).limit(limit)
    if before is not None:
        statement = statement.where(_op.number < before)
    if unfinished:
        statement = statement.where(_op.finished_at.is_(None), _op.state == OperationState.RUNNING.value)
    return [_operation(row) for row in connection.execute(statement)]


def take(db: Dialect, operation_id: UUID, owner: str, lease: float) -> int | None:
    """See ``OperationPort.take_operation``."""
    taken = (
        update(operations)
        .where(
            _op.id == operation_id,
            _op.state == OperationState.RUNNING.value,
            or_(_op.owner.is_(None), _op.owner_seen_at < db.after(-lease)),
        )
        .values(
            owner=owner,
            owner_lease=func.coalesce(_op.owner_lease, 0) + 1,
            owner_seen_at=db.now(),
            paced_from=_op.cursor,
            paced_at=db.now(),
        )
        .returning(_op.owner_lease)
    )
    return db.write(lambda connection: connection.execute(taken).scalar_one_or_none())


def advance(db: Dialect, operation_id: UUID, lease: int, rows: int, keep: Progress | None) -> Advanced:
    """See ``OperationPort.advance``."""

    def work(connection: Connection) -> Advanced:
        row, progress = _locked(db, connection, operation_id)
        state = OperationState(row.state)
        if row.owner_lease != lease or state is not OperationState.RUNNING:
            return Advanced(row.owner_lease == lease, state, progress=progress)
        if keep is not None:
            progress = replace(progress, gate=keep.gate, seen=keep.seen)
        batch = items(connection, row.plan_id, row.cursor, min(rows, BATCH)) if rows else []
        changes: dict[str, Any] = {"owner_seen_at": db.now()}
        if batch:
            draft = _draft(row, operation_id)
            hold = row.options["hold"]
            wish = wish_of(Action(row.action), PlanOptions.load(row.plan_options), hold=hold)
            answers = operate_in(db, connection, wish, [(item.job_id, item.version) for item in batch], draft)
            progress = _keep(connection, operation_id, batch, answers, progress)
            changes["cursor"] = batch[-1].ordinal
        elif rows:
            state = OperationState.DONE
            changes |= {"state": state.value, "finished_at": db.now(), "owner": None}
        changes["progress"] = progress.as_json()
        connection.execute(update(operations).where(_op.id == operation_id).values(**changes))
        return Advanced(True, state, len(batch), progress)

    return db.write(work)


def leave_out(db: Dialect, operation_id: UUID, lease: int, why: str) -> Advanced:
    """See ``OperationPort.leave_out``."""

    def work(connection: Connection) -> Advanced:
        row, progress = _locked(db, connection, operation_id)
        state = OperationState(row.state)
        batch = items(connection, row.plan_id, row.cursor, 1)
        if row.owner_lease != lease or state is not OperationState.RUNNING or not batch:
            return Advanced(row.owner_lease == lease, state, progress=progress)
        (item,) = batch
        _except(connection, operation_id, [(item, "failed", "error", why)])
        progress = replace(progress, failed=progress.failed + 1)
        changed = update(operations).where(_op.id == operation_id)
        connection.execute(
            changed.values(cursor=item.ordinal, owner_seen_at=db.now(), progress=progress.as_json())
        )  # fmt: skip
        return Advanced(True, state, 1, progress)

    return db.write(work)


def _locked(db: Dialect, connection: Connection, operation_id: UUID) -> tuple[Row[Any], Progress]:
    statement = (
        select(operations, plans.c.action, plans.c.options.label("plan_options"))
        .join(plans, plans.c.id == _op.plan_id)
        .where(_op.id == operation_id)
    )
    row = connection.execute(db.locking(statement, of=operations)).first()
    if row is None:
        raise NotFound("operation", operation_id)
    return row, Progress.load(row.progress)


def _draft(row: Row[Any], operation_id: UUID) -> AuditDraft:
    options = row.options
    actor = Actor(row.actor, Channel(options["channel"]), options["role"], options["request_id"])
    return AuditDraft(actor, row.action, options["note"], operation_id)


def _keep(
    connection: Connection,
    operation_id: UUID,
    batch: Sequence[PlanItem],
    answers: Sequence[Answered],
    progress: Progress,
) -> Progress:
    skipped: Counter[str] = Counter()
    left: list[tuple[PlanItem, str, str, str]] = []
    moved = unchanged = 0
    for item, answer in zip(batch, answers, strict=True):
        if answer.ok:
            moved += 1
        elif answer.skipped is Skipped.UNCHANGED:
            unchanged += 1
        else:
            reason = str(answer.skipped)
            skipped[reason] += 1
            left.append((item, "skipped", reason, answer.why))
    _except(connection, operation_id, left)
    return progress.plus(moved=moved, unchanged=unchanged, skipped=skipped, failed=0)


def _except(connection: Connection, operation_id: UUID, left: Sequence[tuple[PlanItem, str, str, str]]) -> None:
    if left:
        connection.execute(
            insert(operation_exceptions),
            [
                {
                    "operation_id": operation_id, "ordinal": item.ordinal, "job_id": item.job_id, "result": result,
                    "reason": reason, "why": storable(why, WHY),
                }
                for item, result, reason, why in left
            ],
        )  # fmt: skip


def let_go(db: Dialect, operation_id: UUID, lease: int) -> None:
    """See ``OperationPort.let_go``."""
    gone = update(operations).where(_op.id == operation_id, _op.owner_lease == lease).values(owner=None)
    # One more, so that a batch of the old owner that is still on its way does nothing.
    db.write(lambda connection: connection.execute(gone.values(owner_lease=_op.owner_lease + 1)))


def halt(db: Dialect, operation_id: UUID, lease: int, why: str) -> None:
    """See ``OperationPort.halt``."""

    def work(connection: Connection) -> None:
        row, progress = _locked(db, connection, operation_id)
        if row.owner_lease != lease or row.state != OperationState.RUNNING.value:
            return
        changed = update(operations).where(_op.id == operation_id)
        stopped = replace(progress, why=why).as_json()
        connection.execute(changed.values(state=OperationState.HALTED.value, owner=None, progress=stopped))
        target = Target(f"operation {row.number}", "halted", details={"why": why, "cursor": row.cursor})
        write_audit(db, connection, replace(_draft(row, operation_id), action="halt-operation"), [target])

    db.write(work)


def steer(db: Dialect, operation_id: UUID, state: OperationState, draft: AuditDraft) -> Operation:
    """See ``OperationPort.steer``."""

    def work(connection: Connection) -> Operation:
        row, progress = _locked(db, connection, operation_id)
        was = OperationState(row.state)
        if was is not state:
            if was.over or (was is OperationState.HALTED and state is OperationState.PAUSED):
                why = "what it did is done" if was.over else "it moves nothing; resume or cancel it"
                raise NotAllowed(draft.action, f"operation that is {was}", why)
            # Who resumes has looked: judging begins anew from what has become of the jobs until then.
            if state is OperationState.RUNNING and was is OperationState.HALTED:
                found = outcomes(connection, operation_id, progress.moved)
                progress = replace(progress, why="", seen=(found.ended, found.failing), gate=0)
            values: dict[str, Any] = {"state": state.value, "owner": None, "progress": progress.as_json()}
            if state.over:
                values["finished_at"] = db.now()
            connection.execute(update(operations).where(_op.id == operation_id).values(**values))
            target = Target(f"operation {row.number}", state.value, details={"was": was.value, "cursor": row.cursor})
            write_audit(db, connection, replace(draft, operation_id=operation_id), [target])
        return _operation(connection.execute(_select(db).where(_op.id == operation_id)).one())

    return db.write(work)


def outcomes(connection: Connection, operation_id: UUID, moved: int) -> Outcomes:
    """See ``OperationPort.outcomes``."""
    hot = jobs_hot.c
    retries = func.coalesce(func.sum(case((hot.spent > 0, 1), else_=0)), 0)
    live, retrying = connection.execute(select(func.count(), retries).where(hot.operation_id == operation_id)).one()
    done, dead = jobs_archive.c, jobs_dlq.c
    ended = select(func.count()).select_from(jobs_archive).where(done.operation_id == operation_id)
    died = select(func.count()).select_from(jobs_dlq).where(dead.operation_id == operation_id)
    succeeded = connection.execute(ended).scalar_one()
    died_again = connection.execute(died.where(dead.reason.in_([one.value for one in FAILURES]))).scalar_one()
    gone = max(0, moved - live - succeeded - died_again)
    return Outcomes(int(live - retrying), int(retrying), int(succeeded), int(died_again), int(gone))


def unstarted(connection: Connection, operation_id: UUID, after: UUID | None, limit: int) -> list[UUID]:
    """See ``OperationPort.unstarted``."""
    hot = jobs_hot.c
    statement = select(hot.id).where(
        hot.operation_id == operation_id, hot.state.in_(("pending", "scheduled")), hot.attempt == 0
    )
    if after is not None:
        statement = statement.where(hot.id > after)
    return list(connection.execute(statement.order_by(hot.id).limit(limit)).scalars())


def left_out(connection: Connection, operation_id: UUID, after: int, limit: int) -> list[Left]:
    """See ``OperationPort.left_out``."""
    c = operation_exceptions.c
    statement = select(c.ordinal, c.job_id, c.result, c.reason, c.why)
    statement = statement.where(c.operation_id == operation_id, c.ordinal > after).order_by(c.ordinal).limit(limit)
    return [Left(*row) for row in connection.execute(statement)]
