"""Jobs, errors and workers with what does not matter filled in, and the few steps every test takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.edits import NO_EDIT, JobEdit
from redrive.domain.failures import Reason
from redrive.domain.job import ClaimedJob, JobHead, NewJob
from redrive.domain.lifecycle import Wish
from redrive.domain.moves import Answered, Bury, Retry, Settled, SettleMove, Skip, SnoozeFor, Succeed
from redrive.domain.outcome import ErrorReport
from redrive.domain.states import Spot, Verb
from redrive.store.port import ClaimRequest, Pair, PromiseResult, Store, TypeInfo, WorkerInfo

QUEUE, OTHER, TYPE = "default", "other", "email.send.v1"
PAYLOAD = b'{"to": "a@example.com"}'
ACTOR = "ann@example.com"


def job(payload: bytes = PAYLOAD, **but: Any) -> NewJob:
    """A job that is due at once."""
    known: dict[str, Any] = {"id": uuid7(), "type": TYPE, "queue": QUEUE, "payload": payload}
    return NewJob(**(known | but))


def error(message: str = "no such customer", kind: str = "builtins.ValueError", cause: str = "c" * 16) -> ErrorReport:
    """A failure; ``cause`` is its fingerprint."""
    return ErrorReport(kind, message, f"Traceback (most recent call last): {message}", cause, 1)


def kind(name: str = TYPE, **but: Any) -> TypeInfo:
    """A type as a worker announces it."""
    known: dict[str, Any] = {"queue": QUEUE, "schema": {"type": "object"}, "idempotent": False, "on_zombie": "bury"}
    return TypeInfo(type=name, **(known | {"retry": {"max_attempts": 3}, "timeout": None} | but))


def worker(name: str = "w1", **but: Any) -> WorkerInfo:
    """A worker process that serves one type."""
    known: dict[str, Any] = {"host": "host-1", "pid": 4711, "build": "b1", "queues": (QUEUE,), "concurrency": 5}
    return WorkerInfo(id=name, **(known | {"types": (kind(),)} | but))


def draft(action: str, note: str | None = None, actor: str = ACTOR) -> AuditDraft:
    """What an operator's call brings for the audit log."""
    return AuditDraft(Actor(actor), action, note)


def pair(held: ClaimedJob) -> Pair:
    return held.id, held.lease


def succeed(held: ClaimedJob, result: bytes | None = None, ms: int = 7) -> Succeed:
    return Succeed(held.id, held.lease, ms, result)


def retry(held: ClaimedJob, delay: float = 0.0, report: ErrorReport | None = None, budget: int = 3) -> Retry:
    return Retry(held.id, held.lease, 7, delay, budget, report or error())


def bury(
    held: ClaimedJob, reason: Reason = Reason.FATAL, report: ErrorReport | None = None, *, charged: bool = True
) -> Bury:
    return Bury(held.id, held.lease, 7, reason, report or error(), 3, charged)


def skip(held: ClaimedJob) -> Skip:
    return Skip(held.id, held.lease, 7, "'k' was completed by job 4711")


def snooze(held: ClaimedJob, delay: float = 0.0) -> SnoozeFor:
    return SnoozeFor(held.id, held.lease, 7, delay)


@dataclass
class Floor:
    """A store and the steps of those who use it, in one word each."""

    store: Store

    # -- work ----------------------------------------------------------------------------------------------------------

    def accept(self, *jobs: NewJob) -> list[UUID]:
        return [accepted.id for accepted in self.store.enqueue(jobs)]

    def one(self, payload: bytes = PAYLOAD, **but: Any) -> UUID:
        """Accept one job."""
        return self.accept(job(payload, **but))[0]

    def fetch(
        self,
        limit: int = 1,
        *,
        queues: tuple[str, ...] = (QUEUE,),
        types: tuple[str, ...] = (),
        who: str = "w1",
    ) -> list[ClaimedJob]:
        """Claim without a start, unless ``types`` are named."""
        return self.store.claim(ClaimRequest(who, queues, limit, types))

    def take(self, limit: int = 1, *, queues: tuple[str, ...] = (QUEUE,), who: str = "w1") -> list[ClaimedJob]:
        """Claim and start jobs of the one known type."""
        return self.fetch(limit, queues=queues, types=(TYPE,), who=who)

    def running(self, payload: bytes = PAYLOAD, **but: Any) -> ClaimedJob:
        """A job whose handler is running."""
        one = self.one(payload, **but)
        (held,) = self.take(queues=(but.get("queue", QUEUE),))
        assert held.uuid == one, "another job was waiting before this one"
        return held

    def fetched(self, **but: Any) -> ClaimedJob:
        """A job reserved by a worker."""
        one = self.one(**but)
        (held,) = self.fetch(queues=(but.get("queue", QUEUE),))
        assert held.uuid == one, "another job was waiting before this one"
        return held

    def settle(self, *moves: SettleMove, who: str = "w1", slot: int = 3) -> list[Settled]:
        return self.store.settle(moves, worker_id=who, build="b1", slot=slot)

    def dead(
        self, reason: Reason = Reason.FATAL, report: ErrorReport | None = None, *, charged: bool = True, **but: Any
    ) -> UUID:
        """A job that ran once and died."""
        held = self.running(**but)
        self.settle(bury(held, reason, report, charged=charged))
        return held.uuid

    def archived(self, **but: Any) -> UUID:
        """A job that succeeded."""
        held = self.running(**but)
        self.settle(succeed(held))
        return held.uuid

    def later(self, seconds: float = 3600, **but: Any) -> UUID:
        """A job that waits for its time."""
        from datetime import timedelta

        return self.one(due=timedelta(seconds=seconds), **but)

    # -- operators -----------------------------------------------------------------------------------------------------

    def ask(
        self,
        verb: Verb,
        *targets: UUID | tuple[UUID, int | None],
        edit: JobEdit = NO_EDIT,
        due: Any = None,
        drop_key: bool = False,
        note: str | None = None,
    ) -> list[Answered]:
        pairs = [target if isinstance(target, tuple) else (target, None) for target in targets]
        return self.store.operate(Wish(verb, edit, due, drop_key), pairs, draft(verb.value, note))

    def resurrect(self, *targets: UUID | tuple[UUID, int | None], **but: Any) -> list[Answered]:
        return self.ask(Verb.RESURRECT, *targets, **but)

    def edit(self, target: UUID | tuple[UUID, int | None], **changes: Any) -> Answered:
        return self.ask(Verb.EDIT, target, edit=JobEdit(**changes))[0]

    # -- looking -------------------------------------------------------------------------------------------------------

    def head(self, job_id: UUID) -> JobHead:
        head = self.store.head(job_id)
        assert head is not None
        return head

    def spot(self, job_id: UUID) -> Spot:
        head = self.store.head(job_id)
        return Spot.NOWHERE if head is None else head.spot

    def kept(self) -> None:
        """Every promise holds."""
        assert broken(self.store.promises()) == []


def broken(results: Sequence[PromiseResult]) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(result.promise, result.number, result.examples) for result in results if result.number]
