"""Operators' moves: lock the rows, let the lifecycle judge them, apply, count, audit; one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, select, tuple_

from redrive.domain.audit import AuditDraft
from redrive.domain.edits import UNSET
from redrive.domain.errors import InvalidField
from redrive.domain.job import JobHead
from redrive.domain.lifecycle import Refusal, Wish, operate
from redrive.domain.moves import Answered, ApplyEdit, Did, OperatorMove, RequestCancel, Revive, Skipped
from redrive.domain.states import Place, Verb
from redrive.store.port import BATCH

from .act import Act
from .audit import Target, write_audit
from .counters import Tally, add_up
from .dialect import Again, Dialect
from .effects import apply
from .locate import lock_jobs
from .readable import unreadable
from .tables import jobs_hot

OPERATOR_SLOT = 0
"""Operators' moves count in this shard: they are rare, and shards are summed."""


def operate_batch(
    db: Dialect, wish: Wish, targets: Sequence[tuple[UUID, int | None]], audit: AuditDraft
) -> list[Answered]:
    """See ``OperatorPort.operate``."""
    if len(targets) > BATCH:
        raise InvalidField("ids", f"{len(targets)} jobs in one call", expected=f"at most {BATCH}")
    if wish.edit.payload is not UNSET and len(targets) > 1:
        raise InvalidField("payload", "one payload for several jobs", expected="one job at a time")
    return db.write(lambda connection: operate_in(db, connection, wish, targets, audit))


def operate_in(
    db: Dialect, connection: Connection, wish: Wish, targets: Sequence[tuple[UUID, int | None]], audit: AuditDraft
) -> list[Answered]:
    """The same within a transaction that has done nothing to jobs yet."""
    versions = dict(targets)
    heads = lock_jobs(db, connection, sorted(versions), archive=wish.verb is Verb.PURGE)
    holders = key_holders(connection, heads.values(), wish)
    broken = unreadable(connection, heads.values()) if wish.readable else {}
    moves: list[tuple[JobHead, OperatorMove]] = []
    answers: dict[UUID, Answered] = {}
    for job_id in sorted(versions):
        job = heads.get(job_id)
        if job is None:
            why = "no such job: it never existed, or it was purged"
            answers[job_id] = Answered(job_id, None, Skipped.NOT_FOUND, why)
            continue
        key = wanted_key(job, wish)
        holder = holders.get(key) if key is not None else None
        verdict = operate(job, wish, version=versions[job_id], key_holder=holder if holder != job_id else None)
        if not isinstance(verdict, Refusal) and job_id in broken:
            verdict = Refusal(Skipped.UNREADABLE, f"no handler could read it: {broken[job_id]}")
        if isinstance(verdict, Refusal):
            answers[job_id] = _skipped(job, verdict)
            continue
        moves.append((job, verdict))
        if key is not None and _will_hold(job, verdict):
            holders.setdefault(key, job_id)  # of two jobs of one call that want a key the first gets it
    tally = Tally()
    touched: list[Target] = []
    for job, move, target in apply(Act(db, connection, audit, tally), moves):
        if isinstance(target, Refusal):
            if target.skipped is Skipped.KEY_HELD and wish.drop_key:
                raise Again("a live job took an idempotency key meanwhile")  # and the next look will see it
            answers[job.id] = _skipped(job, target)
            continue
        requested = isinstance(move, RequestCancel)
        answers[job.id] = Answered(
            job.id,
            Did.REQUESTED if requested else Did.DONE,
            why="its handler is running and was asked to stop; success still wins" if requested else "",
            version=job.version if requested else job.version + 1,
        )
        touched.append(target)
    add_up(db, connection, tally, OPERATOR_SLOT)
    write_audit(db, connection, audit, touched)
    return [answers[job_id] for job_id, _ in targets]


def _skipped(job: JobHead, refusal: Refusal) -> Answered:
    return Answered(job.id, None, refusal.skipped, refusal.why, version=job.version, holder=refusal.holder)


def wanted_key(job: JobHead, wish: Wish) -> tuple[str, str] | None:
    """The (type, key) the job would hold in hot after the wish."""
    edited = wish.edit.idempotency_key
    key = job.idempotency_key if edited is UNSET else edited
    type_ = job.type if wish.edit.type is UNSET else wish.edit.type
    return (str(type_), str(key)) if key is not None else None


def _will_hold(job: JobHead, move: OperatorMove) -> bool:
    match move:
        case Revive():  # one that drops its key does so for a holder, who is known already
            return True
        case ApplyEdit():
            return job.place is Place.HOT
        case _:
            return False


def key_holders(connection: Connection, heads: Iterable[JobHead], wish: Wish) -> dict[tuple[str, str], UUID]:
    if wish.verb not in (Verb.RESURRECT, Verb.EDIT):
        return {}
    keys = sorted({key for job in heads if (key := wanted_key(job, wish)) is not None})
    if not keys:
        return {}
    hot = jobs_hot.c
    pair: Any = tuple_(hot.type, hot.idempotency_key)
    rows = connection.execute(
        select(hot.type, hot.idempotency_key, hot.id).where(hot.idempotency_key.is_not(None), pair.in_(keys))
    )
    return {(row.type, row.idempotency_key): row.id for row in rows}
