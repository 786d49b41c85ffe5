"""What an operator's move does to locked rows. Every statement here names rows that this transaction holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, assert_never

from sqlalchemy import case, func, update

from redrive.domain.job import JobHead
from redrive.domain.marks import pack
from redrive.domain.moves import (
    ApplyEdit,
    BringForward,
    BuryByRule,
    OperatorMove,
    Remove,
    RequestCancel,
    Revive,
    TakeBackMove,
)
from redrive.store.port import mailbox

from .act import Act, Applied
from .audit import Target
from .burial import Burial, bury, rule_error
from .content import edit
from .held import Held
from .lives import revive, take_back
from .purge import remove
from .tables import jobs_hot


def apply(act: Act, moves: Sequence[tuple[JobHead, OperatorMove]]) -> Iterator[Applied]:
    """Apply all moves of one wish, in bulk where they are of one kind."""
    kinds: dict[type[OperatorMove], list[tuple[JobHead, Any]]] = {}
    for job, move in moves:
        kinds.setdefault(type(move), []).append((job, move))
    for kind, group in kinds.items():
        yield from _effect(kind)(act, group)


def _effect(kind: type[OperatorMove]) -> Callable[[Act, list[tuple[JobHead, Any]]], Iterator[Applied]]:
    if kind is ApplyEdit:
        return edit
    if kind is Revive:
        return revive
    if kind is BuryByRule:
        return _bury
    if kind is RequestCancel:
        return _request_cancel
    if kind is BringForward:
        return _bring_forward
    if kind is TakeBackMove:
        return take_back
    if kind is Remove:
        return remove
    assert_never(kind)  # type: ignore[arg-type]


def _bury(act: Act, group: list[tuple[JobHead, BuryByRule]]) -> Iterator[Applied]:
    who = act.audit.actor.name
    burials = [
        Burial(
            _held(job),
            move.reason,
            "cancelled",
            rule_error(job.type, move.reason, f"{move.reason} by {who}"),
            charged=False,
        )
        for job, move in group
    ]
    bury(
        act.db,
        act.connection,
        burials,
        worker_id=None,
        build=None,
        tally=act.tally,
        modified_by=who,
    )
    for job, move in group:
        details = {"was": job.spot.value, "life": job.life}
        yield job, move, Target(str(job.id), move.reason.value, job.id, job.revision, details)


def _request_cancel(act: Act, group: list[tuple[JobHead, RequestCancel]]) -> Iterator[Applied]:
    ids = [job.id for job, _ in group]
    act.connection.execute(
        update(jobs_hot)
        .where(jobs_hot.c.id.in_(ids))
        .values(cancel_requested=func.coalesce(jobs_hot.c.cancel_requested, act.db.now()))
    )
    act.db.notify(act.connection, sorted({mailbox(job.worker_id) for job, _ in group if job.worker_id is not None}))
    for job, move in group:
        yield job, move, Target(str(job.id), "cancel requested", job.id, job.revision, {"was": job.spot.value})


def _bring_forward(act: Act, group: list[tuple[JobHead, BringForward]]) -> Iterator[Applied]:
    hot, now = jobs_hot.c, act.db.now()
    act.connection.execute(
        update(jobs_hot)
        .where(hot.id.in_([job.id for job, _ in group]))
        .values(
            state="pending",
            due_at=now,
            # A life that had not begun begins now; one that has keeps its age.
            life_started_at=case((hot.life_started_at > now, now), else_=hot.life_started_at),
            version=hot.version + 1,
            updated_at=now,
            modified_by=act.audit.actor.name,
        )
    )
    for job, move in group:
        yield job, move, Target(str(job.id), "due now", job.id, job.revision, {"due_at": job.due_at.isoformat()})


def _held(job: JobHead) -> Held:
    return Held(
        id=job.id,
        queue=job.queue,
        type=job.type,
        life=job.life,
        attempt=job.attempt,
        spent=job.spent,
        revision=job.revision,
        version=job.version,
        lease=None,
        worker_id=job.worker_id,
        started_at=job.started_at,
        cancel_requested=job.cancel_requested,
        marks=pack(job.tags, job.labels),
        lock_key=job.lock_key,
    )
