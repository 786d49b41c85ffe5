"""The rules: what happens to a job, decided from plain values.

Nothing here reads a clock, a random number or a database; ``jitter`` and ages come in as arguments. A worker asks
``settle``, a rescuer ``rescue``, a claimer ``unserved``; operators' wishes are judged by ``operate`` on a row that the
store holds locked, so that the judgement and its effect are one transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, assert_never
from uuid import UUID

from .edits import NO_EDIT, JobEdit
from .failures import FailureClass, Reason
from .job import JobHead
from .moves import (
    ApplyEdit,
    BackToPending,
    BackToScheduled,
    BringForward,
    Bury,
    BuryByRule,
    OperatorMove,
    PutOff,
    Remove,
    RequestCancel,
    Retry,
    Revive,
    RuleMove,
    SettleMove,
    Skip,
    Skipped,
    SnoozeFor,
    Succeed,
    TakeBackMove,
)
from .once import Mark
from .outcome import (
    Cancelled,
    Done,
    ErrorReport,
    Failed,
    LeaseLost,
    Outcome,
    Snoozed,
    TimedOut,
    Unclassified,
    WorkerStopped,
)
from .outcome import Skipped as Skipping
from .policy import LONGEST, RetryPolicy
from .states import HotState, Place, Spot, Verb, sources

OnZombie = Literal["bury", "retry"]


@dataclass(frozen=True, slots=True)
class TypeRules:
    """What the application declared for a type, as far as the lifecycle needs it."""

    retry: RetryPolicy
    idempotent: bool = False
    on_zombie: OnZombie = "bury"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, at its end. ``age`` is seconds since this life became due, by the database's clock.

    ``mark`` is the completion marker it holds.
    """

    id: bytes
    lease: int
    spent: int
    max_attempts: int | None
    duration_ms: int
    age: float
    mark: Mark | None = None


Backoff = Callable[[int], float]
"""Seconds to wait before the next attempt, from the number of charged attempts (1 after the first)."""


def settle(
    run: Run, outcome: Outcome, rules: TypeRules, *, jitter: float, backoff: Backoff | None = None
) -> SettleMove:
    """The move for the end of a run. ``jitter`` is from 0 to 1; ``backoff`` overrides the policy's delays."""
    budget = rules.retry.max_attempts if run.max_attempts is None else run.max_attempts

    def bury(reason: Reason, error: ErrorReport, *, charged: bool = True) -> Bury:
        return Bury(run.id, run.lease, run.duration_ms, reason, error, budget, charged)

    def again(exhausted: Reason, error: ErrorReport, not_before: float = 0.0) -> SettleMove:
        charged = run.spent + 1
        if charged >= budget:
            return bury(exhausted, error)
        wait = rules.retry.delay(charged, jitter) if backoff is None else max(0.0, backoff(charged))
        if not_before > 0.0:
            # A stated time is never shortened: jitter goes upward, and the cap does not apply to it.
            wait = max(wait, not_before + rules.retry.jitter_seconds * jitter)
        if rules.retry.outlives(run.age + wait):
            return bury(Reason.RETRY_LIFETIME_EXPIRED, error)
        return Retry(run.id, run.lease, run.duration_ms, wait, budget, error)

    match outcome:
        case Done(result):
            return Succeed(run.id, run.lease, run.duration_ms, result, run.mark)
        case Skipping(why):
            return Skip(run.id, run.lease, run.duration_ms, why)
        case Snoozed(delay):
            return SnoozeFor(run.id, run.lease, run.duration_ms, min(max(0.0, delay), LONGEST))
        case Cancelled(error):
            return bury(Reason.CANCELLED, error, charged=False)
        case Failed(FailureClass.FATAL, error):
            return bury(Reason.FATAL, error)
        case Failed(FailureClass.THROTTLED, error, retry_after):
            return again(Reason.THROTTLED, error, retry_after or 0.0)
        case Failed(_, error):
            return again(Reason.RETRIES_EXHAUSTED, error)
        case TimedOut(error, stopped):
            if not stopped and not rules.idempotent:
                return bury(Reason.TIMEOUT, error)
            return again(Reason.TIMEOUT, error)
        case WorkerStopped(error):
            if rules.idempotent and rules.on_zombie == "retry":
                return again(Reason.ZOMBIE, error)
            return bury(Reason.ZOMBIE, error)
        case LeaseLost(error):
            return bury(Reason.HEARTBEAT_LOST, error)
        case Unclassified(error):
            return bury(Reason.UNKNOWN, error)
        case _:
            assert_never(outcome)


@dataclass(frozen=True, slots=True)
class Expired:
    """A taken job whose lease was not renewed in time."""

    state: HotState
    spent: int
    max_attempts: int | None
    age: float
    cancel_requested: bool = False


def rescue(job: Expired, rules: TypeRules | None, *, jitter: float) -> RuleMove:
    """What becomes of a job whose worker vanished. ``rules`` None: nobody announced the type, so the safe answer."""
    if job.state is HotState.FETCHED:
        return BackToPending()
    if job.cancel_requested:
        return BuryByRule(Reason.CANCELLED)
    if rules is None or not rules.idempotent or rules.on_zombie != "retry":
        return BuryByRule(Reason.ZOMBIE)
    budget = rules.retry.max_attempts if job.max_attempts is None else job.max_attempts
    charged = job.spent + 1
    wait = rules.retry.delay(charged, jitter)
    if charged >= budget or rules.retry.outlives(job.age + wait):
        return BuryByRule(Reason.ZOMBIE)
    return BackToScheduled(wait)


HEARTBEATS = 3
"""A lease may expire no sooner than after this many heartbeats: one late beat must bury nobody's job."""


def shortest_lease(heartbeat: float) -> float:
    """The shortest zombie or fetched timeout, in seconds, that goes with a heartbeat interval."""
    return round(HEARTBEATS * heartbeat, 6)  # 3 * 0.2 is a little more than 0.6


UNSERVED_FIRST, UNSERVED_LONGEST = 1.0, 60.0


def put_off(job_id: bytes, lease: int, unserved_for: float | None) -> PutOff:
    """Set a fetched job of an unknown type aside: a second at first, then as long as it has waited, up to a minute."""
    waited = UNSERVED_FIRST if unserved_for is None else unserved_for
    return PutOff(job_id, lease, min(UNSERVED_LONGEST, max(UNSERVED_FIRST, waited)))


def unserved_is_dead(unserved_for: float | None, timeout: float, *, announced: bool) -> bool:
    """Whether a job of a type unknown here is given up: long enough without any live worker announcing the type."""
    return unserved_for is not None and unserved_for >= timeout and not announced


# -- operators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wish:
    """What an operator asks of jobs. ``edit``, ``due`` and ``drop_key`` go with the verbs that take them.

    ``place`` refuses jobs that are elsewhere, where the verb alone would take them. ``readable`` refuses to resurrect
    what no handler could read: a payload that says it is JSON and is not.
    """

    verb: Verb
    edit: JobEdit = NO_EDIT
    due: datetime | timedelta | None = None
    drop_key: bool = False
    place: Place | None = None
    readable: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a wish is not granted for one job, in words for a person."""

    skipped: Skipped
    why: str
    holder: UUID | None = None


_WHY = {
    Spot.FETCHED: "a worker has reserved it; wait a moment or cancel it",
    Spot.PROCESSING: "its handler is running; cancel it, or wait for it to end",
    Spot.ARCHIVE: "it has succeeded; enqueue it anew to run it again",
    Spot.DLQ: "it is dead; resurrect it to run it again",
    Spot.SCHEDULED: "it is waiting for its time and will run by itself",
    Spot.PENDING: "it is waiting for a worker and will run by itself",
}


def operate(job: JobHead, wish: Wish, *, version: int | None, key_holder: UUID | None = None) -> OperatorMove | Refusal:
    """Judge one wish for one job. ``version`` None skips the check; ``key_holder`` is the live job with its key."""
    if version is not None and version != job.version:
        return Refusal(
            Skipped.CHANGED, f"it is at version {job.version}, not {version}: somebody changed it; look again"
        )
    if wish.verb is Verb.CANCEL and job.spot is Spot.PROCESSING:
        return RequestCancel()
    if job.spot not in sources(wish.verb) or (wish.place is not None and job.place is not wish.place):
        return Refusal(Skipped.NOT_ALLOWED, _WHY[job.spot])
    match wish.verb:
        case Verb.EDIT:
            if {"queue", "type"} & set(wish.edit.touched()):
                return Refusal(Skipped.NOT_ALLOWED, "queue and type change with a resurrection only")
            if _takes_key(wish) and key_holder is not None and job.place is Place.HOT:
                return key_held(wish.edit.idempotency_key, key_holder)
            return ApplyEdit(wish.edit)
        case Verb.RESURRECT:
            if key_holder is not None and not wish.drop_key:
                return key_held(wish.edit.idempotency_key if _takes_key(wish) else job.idempotency_key, key_holder)
            return Revive(wish.edit, wish.due, drop_key=wish.drop_key and key_holder is not None)
        case Verb.CANCEL:
            return BuryByRule(Reason.CANCELLED)
        case Verb.ISOLATE:
            return BuryByRule(Reason.ISOLATED)
        case Verb.RUN_NOW:
            return BringForward()
        case Verb.TAKE_BACK:
            if job.life == 1:
                return Refusal(Skipped.NOT_ALLOWED, "it was never resurrected; isolate or cancel it instead")
            if job.attempt > 0:
                return Refusal(Skipped.NOT_ALLOWED, "it has run since its resurrection; isolate or cancel it instead")
            return TakeBackMove()
        case Verb.PURGE:
            return Remove()
        case _:
            raise ValueError(f"{wish.verb} is not an operator's move")


def _takes_key(wish: Wish) -> bool:
    return isinstance(wish.edit.idempotency_key, str)


def key_held(key: object, holder: UUID) -> Refusal:
    """What a job is told whose idempotency key a live job of its type has."""
    shown = f" {key!r}" if isinstance(key, str) else ""
    return Refusal(
        Skipped.KEY_HELD,
        f"its idempotency key{shown} is held by live job {holder}: wait for that one, or drop the key",
        holder,
    )
