"""What the rest of Redrive may ask of a store, cut by who asks.

One implementation on two databases stands behind it (``store/sql``). Every method is synchronous, takes its own
transaction unless it says otherwise, and raises only errors of ``domain/errors.py``: ``Unavailable`` when nothing is
known to have happened and the call may be repeated. No method touches more than ``BATCH`` rows in one statement,
except ``enqueue``, which is all or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from redrive.domain.audit import AuditDraft, AuditEntry
from redrive.domain.circuit import Breaker, Circuit, CircuitState, Seen
from redrive.domain.filters import Count, JobFilter, PageRequest
from redrive.domain.job import ClaimedJob, Enqueued, JobHead, JobRecord, NewJob
from redrive.domain.lifecycle import TypeRules, Wish
from redrive.domain.moves import Answered, PutOff, Release, Settled, SettleMove
from redrive.domain.schedule import ON_TIME

from .bulk import OperationPort, PlanPort

BATCH = 1000
"""The most rows one statement touches."""

Pair = tuple[bytes, int]
"""(job id as 16 bytes, lease): the proof of ownership."""

Guarded = tuple[tuple[str, str], ...]
"""(type, name of its circuit), for each type that has a breaker."""


# -- enqueue -----------------------------------------------------------------------------------------------------------


class EnqueuePort(Protocol):
    """Accepting work."""

    def enqueue(self, jobs: Sequence[NewJob], *, connection: object | None = None) -> list[Enqueued]:
        """Accept jobs, all or nothing; the answers are in the order given.

        With ``connection`` (SQLAlchemy Connection or Session, psycopg, sqlite3, Django's) the rows are part of the
        caller's transaction and nothing is committed here; a key whose holder vanished meanwhile raises ``Retryable``.
        """
        ...

    async def aenqueue(self, jobs: Sequence[NewJob], *, connection: object) -> list[Enqueued]:
        """``enqueue`` in the caller's transaction, through connections that are awaited as well: SQLAlchemy's
        AsyncConnection and AsyncSession, psycopg's AsyncConnection, asyncpg, aiosqlite.
        """
        ...


# -- worker ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """What a worker announces about a type it serves. ``retry``, ``schema`` and ``breaker`` are JSON-able."""

    type: str
    queue: str
    schema: Mapping[str, Any]
    idempotent: bool
    on_zombie: str
    retry: Mapping[str, Any]
    timeout: float | None
    owner: str | None = None
    breaker: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker process as it announces itself. ``id`` is unique to the process start."""

    id: str
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    types: tuple[TypeInfo, ...]
    concurrency: int
    schedules: Mapping[str, str] = field(default_factory=dict)
    """Declared schedules by name, each with the digest of its declaration."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How a worker is. ``mode``: serving, quiet (claims nothing more), stopping, or degraded (about to be replaced).

    ``stuck`` is the number of runs that were given up and still go on; ``concurrency`` how many jobs it runs at a time.
    """

    mode: str
    stuck: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Orders:
    """What operators want of a worker. ``concurrency`` None: what it was started with."""

    concurrency: int | None


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Up to ``limit`` jobs from ``queues`` in that order; those of ``start_types`` start at once, others are fetched.

    A job's row is started and its attempt counted in the same statement that claims it. Jobs of a type of ``guarded``,
    given as (type, circuit), are passed by, unchanged, while that circuit is not closed.
    """

    worker_id: str
    queues: tuple[str, ...]
    limit: int
    start_types: tuple[str, ...]
    guarded: Guarded = ()
    only_start_types: bool = False
    """Pass by, unchanged, what is of no type of ``start_types``."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """How many scheduled jobs became pending, and seconds until the next one is due (None: none is scheduled)."""

    count: int
    next_due: float | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a heartbeat learns: leases that are no longer ours, and jobs whose cancellation is wanted."""

    lost: frozenset[Pair]
    cancel: frozenset[Pair]


@dataclass(frozen=True, slots=True)
class Rescued:
    """One job taken from a vanished worker: its new spot is ``pending``, ``scheduled`` or ``dlq``."""

    id: UUID
    type: str
    spot: str
    worker_id: str | None


def mailbox(worker_id: str) -> str:
    """The name under which one worker listens for what concerns the jobs it holds; no queue can have it."""
    return f"!{worker_id}"


class Listener(AbstractContextManager["Listener"], Protocol):
    """A subscription to wake-ups; leaving it closes its connection."""

    silent: str
    """Empty; or why no wake-up will come, so that work has to be looked for."""
    heard: frozenset[str]
    """Which of the names it subscribed to the last ``wait`` heard of, where the database can say so."""

    def wait(self, timeout: float) -> bool:
        """Block up to ``timeout`` seconds; True when work may have arrived. Raises ``Unavailable`` when it broke."""
        ...

    def interrupt(self) -> None:
        """Make a running ``wait`` return soon; callable from another thread."""
        ...


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as it is stored. ``next_slot`` is the oldest slot nobody has seen to; None: there is none any more."""

    name: str
    spec: Mapping[str, Any]
    paused: bool
    last_slot: datetime | None
    next_slot: datetime | None
    version: int


class SchedulePort(Protocol):
    """What a worker's scheduler does."""

    def schedule_rows(self, names: Sequence[str]) -> tuple[datetime, dict[str, ScheduleRow]]:
        """The database's clock, and those of up to ``BATCH`` schedules that are there."""
        ...

    def declare_schedule(
        self, name: str, spec: Mapping[str, Any], next_slot: datetime | None, *, version: int | None
    ) -> bool:
        """Put a declaration in force: a new one (``version`` None), or in place of the one at that version.

        False when somebody was first. Whether it is paused, and what was its last slot, stay.
        """
        ...

    def announced_schedules(self, *, alive_within: float) -> frozenset[tuple[str, str]]:
        """(name, digest) of each declaration that a worker seen within that many seconds has."""
        ...

    def enqueue_slots(
        self, name: str, jobs: Sequence[NewJob], *, slot: datetime, last: datetime | None, next: datetime | None,
        version: int,
    ) -> list[Enqueued] | None:  # fmt: skip
        """Enqueue what is due and go on to ``next``, in one transaction; ``last`` is the newest slot of ``jobs``.

        None, and nothing done, unless the schedule still waits for ``slot`` at this version, is not paused, and all of
        it is due by the database's clock.
        """
        ...


@dataclass(frozen=True, slots=True)
class Probing:
    """A circuit by the database's clock ``now``, and the jobs that were claimed and started as its probes."""

    now: datetime
    circuit: Circuit
    jobs: list[ClaimedJob]


class CircuitPort(Protocol):
    """What a worker does about the breakers of its types."""

    def circuit_states(self, names: Sequence[str]) -> tuple[datetime, dict[str, Circuit]]:
        """The database's clock, and those of the circuits that are there, with the permits that are in force."""
        ...

    def observe(self, name: str, breaker: Breaker, ends: Sequence[Seen]) -> tuple[Circuit, Circuit]:
        """Let a circuit know how runs ended; its state before and after. To be sent before the runs are settled.

        Sending the same ends again is safe for probes; a failure may count twice then.
        """
        ...

    def probe(self, name: str, breaker: Breaker, request: ClaimRequest) -> Probing:
        """Claim and start jobs of ``request.start_types`` as probes, as many as the circuit has permits left.

        One transaction under the circuit's lock: over all workers no more permits are in force than are allowed.
        """
        ...

    def bury_kept_off(
        self, name: str, max_ages: Mapping[str, float], *, every: float, worker_id: str, build: str, slot: int
    ) -> int:
        """Bury pending jobs whose lifetime ended while their circuit kept them off, up to ``BATCH``; how many.

        ``max_ages`` is seconds by type. Whoever asks within ``every`` seconds after somebody did gets 0 for an answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class MarkClaim:
    """A run, by job id and lease, that wants the completion marker ``key`` of ``scope``."""

    id: bytes
    lease: int
    scope: str
    key: str


@dataclass(frozen=True, slots=True)
class MarkAnswer:
    """Whether the run has its marker now; else which job has completed it (``done``) or holds it.

    Neither: the run's lease is gone.
    """

    granted: bool
    holder: UUID | None = None
    done: bool = False


class MarkPort(Protocol):
    """Completion markers. They are completed, or let go, by the settle that ends their run, or by its rescue."""

    def claim_marks(self, wanted: Sequence[MarkClaim]) -> list[MarkAnswer]:
        """Give each run its marker unless it is completed, or held by another run; answers in the order given.

        Sending the same claims again is safe.
        """
        ...

    def prune_marks(self) -> int:
        """Delete up to ``BATCH`` markers whose completion has expired; how many."""
        ...


class WorkerPort(SchedulePort, CircuitPort, MarkPort, Protocol):
    """What a worker process does all day."""

    def register(self, worker: WorkerInfo) -> int:
        """Announce the worker, its queues and types; the answer is its slot, 0 to 15, which shards its counters."""
        ...

    def seen(self, worker_id: str, *, waiting: bool, condition: Condition | None = None) -> Orders | None:
        """The worker lives; what operators want of it. None: its row is gone, register.

        ``waiting``: it has room, so an enqueue shall notify. ``condition`` None leaves what was said before.
        """
        ...

    def unregister(self, worker_id: str) -> None:
        """The worker ends in order."""
        ...

    def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Take pending jobs of queues that are not paused, highest priority first, then by due time.

        A queue's limits hold over all workers: ``max_running`` for what is taken, ``rate`` for what is started. Jobs
        with a lock key come back fetched: ``start`` sees whether the key is free.
        """
        ...

    def reclaim(self, worker_id: str, known: Collection[Pair]) -> list[ClaimedJob]:
        """Up to ``BATCH`` jobs taken in this worker's name that are not among ``known``, their leases renewed.

        They were taken by a claim whose answer was lost. Those that claim started are started.
        """
        ...

    def held_back(self, request: ClaimRequest) -> float | None:
        """Seconds until a limit lets another waiting job start, after that claim came back short.

        Infinite when one must end first; None when no limit stands in the way of anything.
        """
        ...

    def start(self, queues: Sequence[str], pairs: Sequence[Pair], guarded: Guarded = ()) -> frozenset[Pair]:
        """Start fetched jobs; those not in the answer are no longer ours, their queue is paused or their circuit open.

        Nor are those for which a limit of their queue has no room, or whose lock key another job holds. The latter wait
        for it then, pending and blocked.

        Sending the same pairs again is safe: what an earlier call started is in the answer, its attempt counted once.
        """
        ...

    def give_back(self, moves: Sequence[Release | PutOff]) -> None:
        """Return fetched jobs, and tell who waits for work. One whose lease is gone is somebody else's: no error."""
        ...

    def settle(self, moves: Sequence[SettleMove], *, worker_id: str, build: str, slot: int) -> list[Settled]:
        """Apply the ends of runs, each if its lease still holds; answers in the order given.

        Successes are one transaction, those with a completion marker another, the failing ends a third. A stale
        success or failure is noted in the ledger once, and counted.
        Sending the same moves again is safe.
        """
        ...

    def heartbeat(self, pairs: Sequence[Pair], *, progress: Mapping[Pair, str] | None = None) -> Pulse:
        """Renew leases; never waits for a locked row, whose lease waits for the next beat.

        ``progress`` is what handlers said since the last beat: storable text, up to 200 characters.
        """
        ...

    def promote(self, limit: int = BATCH) -> Promoted:
        """Make due scheduled jobs pending, by the database's clock."""
        ...

    def rescue(
        self, *, zombie_timeout: float, fetched_timeout: float, rules: Callable[[str], TypeRules | None], slot: int,
        as_of: datetime | None = None, within: float = 0.0, types: Collection[str] | None = None,
        orphaned: float = 600.0,
    ) -> list[Rescued]:  # fmt: skip
        """Take jobs whose lease was not renewed for that many seconds, up to ``BATCH``; ``rules`` judges by type.

        Runs of other types than ``types`` (None: of all) are left to rescuers that know them, unless nobody has renewed
        them for ``orphaned`` seconds more and no live worker announces the type: those are buried. One rescuer at a
        time: whoever finds another at it takes nothing.

        A queue's own timeouts beat the given ones. With ``as_of``, the database's clock as the caller has just read it,
        nothing is taken once that clock is further than ``within`` seconds from there: the caller had to wait, and so
        had the others, who could not renew their leases; or the clock was set. A lease renewed in the future, by more
        than the timeout, has expired too: the clock was set back, and nobody has renewed it since.
        """
        ...

    def bury_unserved(self, pairs: Sequence[Pair], *, worker_id: str, build: str, slot: int) -> None:
        """Bury fetched jobs as fatal: their type was unknown for too long and no live worker announces it."""
        ...

    def announced(self, types: Sequence[str], *, alive_within: float) -> frozenset[str]:
        """Which of ``types`` are served by a worker seen within that many seconds."""
        ...

    def now(self) -> datetime:
        """The database's clock."""
        ...

    def awaited(self, worker_id: str) -> frozenset[str]:
        """The types served by other workers that wait for work, and were seen within a minute."""
        ...

    def listen(self, queues: Sequence[str]) -> Listener:
        """Subscribe to new work and to mailboxes. Where the database cannot notify, ``wait`` waits in short steps."""
        ...


# -- operators ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueChange:
    """New settings of a queue; ``None`` fields stay. ``clear`` names settings that go back to their default.

    ``max_running``: jobs of the queue that may run at a time, over all workers. ``rate``: starts per time, such as
    ``"100/min"`` (also /s, /hour and /day), over all workers. Both have no default: unlimited. Timeouts in seconds.
    """

    paused: bool | None = None
    max_running: int | None = None
    rate: str | None = None
    zombie_timeout: float | None = None
    fetched_timeout: float | None = None
    owner: str | None = None
    clear: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue: its settings (None: default) and what is in it.

    ``oldest_pending``: seconds since the pending job that waits longest was due: what grows when a queue is not worked
    off, or when jobs of a low priority never get their turn. ``blocked`` are those of the pending jobs that wait for
    their lock key. ``next_start``: seconds until the rate lets another job start.
    """

    name: str
    paused: bool = False
    max_running: int | None = None
    rate: str | None = None
    zombie_timeout: float | None = None
    fetched_timeout: float | None = None
    owner: str | None = None
    version: int = 0
    scheduled: int = 0
    pending: int = 0
    fetched: int = 0
    processing: int = 0
    dead: int = 0
    oldest_pending: float | None = None
    blocked: int = 0
    next_start: float = 0.0
    succeeded_total: int = 0
    failed_total: int = 0
    retried_total: int = 0
    purged_total: int = 0

    @property
    def full(self) -> bool:
        """Whether as many of its jobs are taken as may run."""
        return self.max_running is not None and self.fetched + self.processing >= self.max_running

    @property
    def held_back(self) -> tuple[str, ...]:
        """What keeps its pending jobs from starting, apart from a lack of workers: in words, the weightiest first."""
        said = []
        if not self.pending:
            return ()
        if self.paused:
            said.append("paused")
        if self.full:
            said.append(f"{self.fetched + self.processing} of {self.max_running} running")
        if self.rate is not None and self.next_start > 0:
            said.append(f"rate {self.rate}: next in {self.next_start:.3g} s")
        if self.blocked:
            said.append(f"{self.blocked} wait for a lock key")
        return tuple(said)


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule as operators see it. ``declared``: a live worker has this very declaration.

    ``late`` is how many seconds ago its next slot was, ``ahead`` how many its last one lies in the future: the clock
    was set back.
    """

    name: str
    spec: Mapping[str, Any]
    paused: bool
    last_slot: datetime | None
    next_slot: datetime | None
    version: int
    declared: bool
    late: float = 0.0
    ahead: float = 0.0

    @property
    def state(self) -> str:
        """In a word: paused, undeclared, ended, late or waiting."""
        if self.paused:
            return "paused"
        if not self.declared:
            return "undeclared"
        if self.next_slot is None:
            return "ended"
        return "late" if self.overdue else "waiting"

    @property
    def overdue(self) -> bool:
        """Whether its next slot should have been enqueued, and was not."""
        return not self.paused and self.late > ON_TIME.total_seconds()


@dataclass(frozen=True, slots=True)
class CircuitView:
    """A circuit as operators see it.

    ``types`` are those that workers announced with it, ``breaker`` is what was declared last. ``opened_for`` is since
    when it keeps jobs off, ``probe_in`` when an open one probes, in seconds by the database's clock. ``probing`` is
    how many probes are under way.
    """

    name: str
    state: CircuitState
    types: tuple[str, ...]
    breaker: Mapping[str, Any]
    failures: int
    reason: str | None
    opened_at: datetime | None
    opened_for: float | None
    probe_in: float | None
    probing: int
    version: int

    @property
    def blocks(self) -> bool:
        """Whether it keeps jobs off."""
        return self.state is not CircuitState.CLOSED


@dataclass(frozen=True, slots=True)
class ImportedJob:
    """A dead job from an export file: head fields as exported, payload bytes, and its ledger."""

    record: JobRecord


class OperatorPort(Protocol):
    """What people do to jobs. The audit entry commits with the action, or neither does."""

    def operate(self, wish: Wish, targets: Sequence[tuple[UUID, int | None]], audit: AuditDraft) -> list[Answered]:
        """Apply one wish to up to ``BATCH`` jobs, given as (id, version or None), in one transaction.

        Each row is locked, judged by ``lifecycle.operate`` and moved, or skipped with the reason; answers are in the
        order given. One audit entry for each job touched; nothing is written when none is.
        """
        ...

    def copy(self, job_id: UUID, new_id: UUID, audit: AuditDraft, *, drop_key: bool) -> Answered:
        """Enqueue what an archived job carried as the new job ``new_id``, its key included unless it is dropped.

        The ledger of each names the other; both get an audit entry.
        """
        ...

    def purge_archive(self, older_than: datetime, audit: AuditDraft, *, limit: int = BATCH) -> int:
        """Delete up to ``limit`` archived jobs finished before ``older_than``, with trails; returns how many."""
        ...

    def set_queue(self, name: str, change: QueueChange, audit: AuditDraft, *, version: int | None) -> QueueInfo:
        """Change a queue. A pause is effective when this returns: no start commits afterwards."""
        ...

    def set_worker(self, worker_id: str, concurrency: int | None, audit: AuditDraft) -> WorkerView:
        """Have a live worker run so many jobs at a time, from its next heartbeat; None: what it was started with."""
        ...

    def pause_schedule(self, name: str, paused: bool, audit: AuditDraft, *, version: int | None) -> ScheduleView:
        """Pause a schedule or let it go on. When a pause returns, no slot is enqueued any more."""
        ...

    def reset_circuit(self, name: str, audit: AuditDraft) -> CircuitView:
        """Close a circuit, whatever its state. One that is closed and counts no failure is left as it is."""
        ...

    def import_dead(self, jobs: Sequence[ImportedJob], audit: AuditDraft) -> list[Answered]:
        """Insert exported dead jobs, up to ``BATCH``; an id that exists anywhere is skipped."""
        ...

    def seal_audit(self, *, limit: int = BATCH) -> int:
        """Chain audit entries that no seal covers yet; returns how many. One sealer at a time."""
        ...


# -- insight -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobPage:
    """A page of heads; ``next_cursor`` None on the last page."""

    jobs: tuple[JobHead, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as operators see it. ``silent`` is seconds since it was last seen, by the database's clock."""

    id: str
    slot: int
    host: str
    pid: int
    build: str
    queues: tuple[str, ...]
    types: tuple[str, ...]
    concurrency: int
    waiting: bool
    started_at: datetime
    silent: float
    holding: int
    mode: str = "serving"
    stuck: int = 0
    wanted_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class TypeView:
    """A type as last announced under one build."""

    type: str
    build: str
    queue: str
    schema: Mapping[str, Any]
    idempotent: bool
    on_zombie: str
    retry: Mapping[str, Any]
    timeout: float | None
    owner: str | None
    seen_at: datetime
    breaker: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """Dead jobs with one cause."""

    id: str
    number: int
    title: str
    type: str
    state: str
    owner: str | None
    first_seen: datetime
    last_seen: datetime
    deaths: int
    version: int


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """One promise checked on the data: ``number`` counts offences, so 0 is kept."""

    promise: str
    title: str
    query: str
    number: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The audit chain checked: entries and seals read, and what is wrong, worst first."""

    entries: int
    seals: int
    unsealed: int
    problems: tuple[str, ...] = field(default=())


class InsightPort(Protocol):
    """Reading. Lists never load payloads or tracebacks."""

    def find(self, job_id: UUID) -> JobRecord | None:
        """One job wherever it is, with its trail; None when no place has it."""
        ...

    def head(self, job_id: UUID) -> JobHead | None:
        """One job's head wherever it is."""
        ...

    def list_jobs(self, job_filter: JobFilter, page: PageRequest) -> JobPage:
        """A keyset page of one place."""
        ...

    def count_jobs(self, job_filter: JobFilter) -> Count:
        """How many match, counted up to ``COUNT_CAP``."""
        ...

    def dead_by_reason(self, queue: str | None = None) -> dict[str, int]:
        """Rows of the dlq by reason."""
        ...

    def queues(self) -> list[QueueInfo]:
        """Every queue that has settings, jobs or counters, by name."""
        ...

    def lock_holder(self, lock_key: str) -> UUID | None:
        """The job that is running under a lock key."""
        ...

    def types(self) -> list[TypeView]:
        """Announced types, by name, newest announcement first."""
        ...

    def workers(self) -> list[WorkerView]:
        """Registered workers, longest silent last."""
        ...

    def schedules(self, *, alive_within: float = 60.0) -> list[ScheduleView]:
        """Schedules by name; workers silent for longer declare nothing."""
        ...

    def circuits(self) -> list[CircuitView]:
        """Circuits by name."""
        ...

    def incidents(self, *, limit: int = 100) -> list[IncidentView]:
        """Incidents, last seen first."""
        ...

    def audit_entries(
        self, *, limit: int = 100, before: int | None = None, target: str | None = None, actor: str | None = None
    ) -> list[AuditEntry]:
        """Audit entries, newest first; ``before`` is the last id of the previous page."""
        ...

    def verify_audit(self) -> AuditVerdict:
        """Recompute every content hash and the chain of seals."""
        ...

    def promises(self, *, examples: int = 5) -> list[PromiseResult]:
        """Check the promises on the data, each statement over one snapshot."""
        ...

    def now(self) -> datetime:
        """The database's clock."""
        ...


# -- schema ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The database's schema version and the newest this code knows; equal when all is well."""

    current: str | None
    head: str

    @property
    def ready(self) -> bool:
        """Whether the schema is the one this code was written for."""
        return self.current == self.head


class SchemaPort(Protocol):
    """Making and checking the schema."""

    def schema_state(self) -> SchemaState:
        """Where the database's schema stands."""
        ...

    def upgrade(self) -> None:
        """Bring the schema to the newest version; safe when several processes start at once."""
        ...

    def upgrade_sql(self) -> str:
        """The statements ``upgrade`` would run on an empty database."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Facts for ``doctor``: database, version, location, journal mode or server settings, clock difference."""
        ...


class Store(EnqueuePort, WorkerPort, OperatorPort, PlanPort, OperationPort, InsightPort, SchemaPort, Protocol):
    """All of it. ``close`` lets go of every connection."""

    def close(self) -> None:
        """Close every connection; the store opens new ones when used again."""
        ...
