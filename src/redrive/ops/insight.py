"""What people look at: thin over the port, and one job with the answers to the operator's two questions.

Why is this job here? Is it safe to run it again?
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from redrive.domain.errors import NotFound, PayloadError
from redrive.domain.failures import REASONS, ReasonInfo
from redrive.domain.filters import Count, JobFilter, PageRequest
from redrive.domain.job import JobHead, JobRecord
from redrive.domain.payload import is_json, parse
from redrive.domain.states import Place, Spot
from redrive.store.port import CircuitView, JobPage, QueueInfo, ScheduleView, Store, TypeView

from .inputs import JobId, job_id
from .repair import Suggestion, suggest
from .safety import Verdict, judge

ALIVE_WITHIN = 60.0
"""A worker that was silent for longer counts as gone, in what people are told."""
LONG, VERY_LONG = 60.0, 600.0
"""Seconds. What a limit holds back for longer is told; and what waits so long though nothing holds it back."""


@dataclass(frozen=True, slots=True)
class Explained:
    """One job with what an operator asks about it."""

    record: JobRecord
    reason: ReasonInfo | None
    problem: PayloadError | None
    suggestion: Suggestion | None
    verdict: Verdict | None
    kept_off: CircuitView | None = None
    """The circuit that keeps a waiting job from being started, or would keep a dead one that is sent back."""
    lock_holder: UUID | None = None
    """The running job whose lock key a waiting job wants as well."""


@dataclass(frozen=True, slots=True)
class Standstill:
    """A queue whose work does not move, and what to do about it."""

    queue: str
    waiting: int
    why: str
    oldest: float | None = None
    """Seconds for which the oldest has waited, where that is the point."""


class Insight:
    """Reading, for any face."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def jobs(self, job_filter: JobFilter, page: PageRequest | None = None) -> JobPage:
        """A page of heads."""
        return self.store.list_jobs(job_filter.check(), page or PageRequest())

    def count(self, job_filter: JobFilter) -> Count:
        """How many match."""
        return self.store.count_jobs(job_filter.check())

    def explain(self, job: JobId) -> Explained:
        """One job wherever it is: why it is there, what is wrong with its payload, whether it may run again."""
        identity = job_id(job)
        record = self.store.find(identity)
        if record is None:
            raise NotFound("job", identity)
        head = record.head
        problem = payload_problem(record)
        if head.place is not Place.DLQ:
            holder = self.store.lock_holder(head.lock_key) if head.blocked and head.lock_key is not None else None
            return Explained(record, None, problem, None, None, self._keeps_off(head), holder)
        reason = REASONS[head.reason] if head.reason is not None else None
        suggestion = suggest(record.payload, head.content_type) if problem is not None else None
        verdict = judge(record, problem, self._type(head), self._holder(head), self._live(head))
        return Explained(record, reason, problem, suggestion, verdict, self._keeps_off(head))

    def standstills(self) -> list[Standstill]:
        """Queues with pending work that nobody will start, or that has waited for long, and why."""
        served = {name for worker in self.store.workers() if worker.silent <= ALIVE_WITHIN for name in worker.queues}
        return [stuck for queue in self.store.queues() if (stuck := _standstill(queue, served)) is not None]

    def circuits(self) -> list[CircuitView]:
        """Circuit breakers by name."""
        return self.store.circuits()

    def schedules(self) -> list[ScheduleView]:
        """Schedules by name."""
        return self.store.schedules(alive_within=ALIVE_WITHIN)

    def _keeps_off(self, head: JobHead) -> CircuitView | None:
        if head.spot not in (Spot.PENDING, Spot.SCHEDULED, Spot.DLQ):
            return None
        blocking = (circuit for circuit in self.store.circuits() if circuit.blocks)
        return next((circuit for circuit in blocking if head.type in circuit.types), None)

    def _type(self, head: JobHead) -> TypeView | None:
        return next((view for view in self.store.types() if view.type == head.type), None)

    def _live(self, head: JobHead) -> bool:
        return head.type in self.store.announced([head.type], alive_within=ALIVE_WITHIN)

    def _holder(self, head: JobHead) -> JobHead | None:
        if head.idempotency_key is None:
            return None
        same = JobFilter(place=Place.HOT, type=head.type, key=head.idempotency_key)
        return next(iter(self.store.list_jobs(same, PageRequest(1)).jobs), None)


def payload_problem(record: JobRecord) -> PayloadError | None:
    """What keeps the payload from being read, with line and column."""
    if not is_json(record.head.content_type):
        return None
    try:
        parse(record.payload)
    except PayloadError as error:
        return error
    return None


def _standstill(queue: QueueInfo, served: set[str]) -> Standstill | None:
    waiting = queue.pending + queue.scheduled
    if not queue.pending:
        return None
    if queue.paused:
        return Standstill(queue.name, waiting, f"it is paused: redrive queues resume {queue.name}")
    if queue.name not in served:
        return Standstill(queue.name, waiting, "no live worker serves it: redrive work MODULE:app")
    oldest = queue.oldest_pending or 0.0
    if queue.held_back and oldest >= LONG:
        return Standstill(queue.name, waiting, f"{'; '.join(queue.held_back)}: {_advice(queue)}", oldest)
    if oldest >= VERY_LONG:
        why = "live workers serve it, but have too few slots for it, or start others first (docs/limits.md)"
        return Standstill(queue.name, waiting, why, oldest)
    return None


def _advice(queue: QueueInfo) -> str:
    """What to do about that which weighs most."""
    name = queue.name
    if queue.full:
        more = f"redrive queues set {name} --max-running N lets more run"
        return f"redrive jobs list --queue {name} --state processing shows what runs, {more}"
    if queue.next_start > 0:
        return f"redrive queues set {name} --rate RATE lets more start"
    return f"redrive jobs list --queue {name} --state pending shows them, redrive jobs show ID who has the key"


__all__ = ["Explained", "Insight", "Spot", "Standstill"]
