"""Claim, run, settle: the straight line of a worker.

One turn: make due jobs pending, start what waits in the buffer, claim as many jobs as there is room for, hand them to
the runner. Ends are settled by ``settler`` on a thread of its own, so that claims and settles overlap.

**Room.** A claim asks for as many jobs as the roomiest pool has free slots. Types whose pool has room for all of them
start in the claim's own statement; others come back fetched and wait in the ``buffer`` until it has a slot for them.
While it holds some, claims ask for little.

**Batches.** While jobs run and more are waiting, half of a pool must be free before the next claim, or ``CRUMBS``
must have passed: many claims of single jobs cost more than they bring.

**Doubt.** After a claim or start that failed, or whose answer took half as long as a lease lasts, what was taken is not
known, or may be somebody else's by now. What is taken in this worker's name and is not in its hands is then taken up.
Whatever is not found so (the server may carry a claim out later) expires: heartbeats renew only what is in hand.

**Limits.** A claim that comes back short says for how long a limit of its queues holds jobs back: the next claim comes
when that is over, or after the next settle, which may have made room. A drain waits for such jobs.

**Idle.** When a claim comes back short, the worker says that it waits, so that an enqueue notifies; an enqueue that
read "nobody waits" a moment before is found by polling again after ``AGAIN``; the poll interval is the net below.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from redrive.domain.errors import RedriveError, Retryable, Unavailable
from redrive.domain.job import ClaimedJob
from redrive.store.port import BATCH, ClaimRequest, WorkerPort

from . import moments
from .backoff import Backoff
from .buffer import BUFFER, Buffer
from .circuits import Circuits
from .elsewhere import Elsewhere
from .handler import Kind
from .hop import Hop
from .once import Gate
from .options import WorkerOptions
from .outages import Outage
from .registry import Registry
from .rest import rest
from .runner import Runner
from .running import Running
from .strangers import Strangers

log = structlog.get_logger("redrive.worker")

CRUMBS = 0.005
AGAIN = (0.005, 0.02, 0.1)
PROMOTE_BUSY, PROMOTE_SOONEST = 0.25, 0.005


class Loop:
    """Feeds the runner until it is told to stop or, with ``burst``, until there is nothing left to do."""

    def __init__(
        self,
        store: WorkerPort,
        registry: Registry,
        runner: Runner,
        circuits: Circuits,
        options: WorkerOptions,
        hop: Hop,
        *,
        worker_id: str,
        queues: tuple[str, ...],
        slot: int,
        burst: bool = False,
        outage: Outage,
    ) -> None:
        self._store = store
        self._registry = registry
        self._runner = runner
        self._circuits = circuits
        self._hop = hop
        self._poll = options.poll
        self._patience = min(options.zombie_timeout, options.fetched_timeout) / 2
        self._outage = outage
        self._doubtful = False
        self._worker_id = worker_id
        self._queues = queues
        self._burst = burst
        self._gate = Gate(store, runner, hop)
        self._elsewhere = Elsewhere(store, hop, worker_id=worker_id, interval=options.poll)
        self._strangers = Strangers(store, options, worker_id, slot)
        kinds = {handler.kind for handler in registry}
        self._types: dict[Kind, tuple[str, ...]] = {
            kind: tuple(t for t in registry.types if (h := registry.get(t)) is not None and h.kind == kind)
            for kind in kinds
        }
        self._buffer = Buffer(
            store, runner, self._gate, self._elsewhere, hop, kinds=kinds, queues=queues, guarded=circuits.guarded
        )
        self._nudge = asyncio.Event()
        self._stopped = asyncio.Event()
        self._crumbs = False
        self._useful = 0
        self._quiet = 0
        self._promote_at = 0.0
        self._drained = False
        self._held_back: float | None = None
        self.waiting = False
        self.claims: Counter[int] = Counter()
        runner.freed = self._nudge.set

    # -- from outside --------------------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """Something happened: look again now."""
        self._nudge.set()

    def stop(self) -> None:
        """Claim nothing more."""
        self.waiting = False
        self._stopped.set()
        self._nudge.set()

    def due_in(self, delay: float) -> None:
        """A job was scheduled ``delay`` seconds from now."""
        at = time.monotonic() + delay
        if at < self._promote_at:
            self._promote_at = at
            self._nudge.set()

    def settled(self) -> None:
        """A batch was settled: a limit may let others start; when draining, the last one is the end."""
        if self._held_back is not None or (self._burst and not self._runner.held):
            self._nudge.set()

    # -- the line ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until stopped or drained; fetched jobs are given back at the end."""
        backoff = Backoff()
        while not (self._stopped.is_set() or self._drained):
            self._nudge.clear()
            try:
                pause = await self._turn()
                backoff.reset()
                self._outage.succeeded("claim")
                if pause > 0:
                    await rest(self._nudge, pause)
            except Unavailable as error:
                self._outage.failed("claim", error)
                await rest(self._stopped, backoff.next())
            except Retryable as error:
                await self._away(backoff.next(), "claim-waits", str(error))
            except RedriveError:
                raise  # wrong schema, wrong settings: no waiting helps
            except Exception as error:
                await self._away(backoff.next(), "claim-failed", repr(error))
        with suppress(Unavailable, Retryable):  # without heartbeats their leases run out
            await self._buffer.empty()

    async def _away(self, seconds: float, event: str, error: str) -> None:
        log.warning(event, seconds=round(seconds, 2), error=error)
        await rest(self._stopped, seconds)

    async def _turn(self) -> float:
        """One turn; the answer is how long to rest before the next, unless nudged."""
        if self._doubtful:
            await self._take_up()
        at_rest = not self._runner.held  # else an end could bring back what the looks below have missed
        promoted = await self._promote()
        await self._buffer.start()
        if (probes := await self._look()) is None:
            return 0.0
        limit, types = self._appetite()
        runner = self._runner
        if limit == 0:
            return self._until_promote(self._poll)
        if (left := self._elsewhere.rest_until - time.monotonic()) > 0 and self._choked():
            return self._until_promote(left)
        scant = all(runner.free[kind] < runner.half[kind] for kind in self._types)
        if scant and runner.hungry and runner.running and not self._crumbs:
            self._crumbs = True
            return CRUMBS
        self._crumbs = False
        queues = self._queues if self._burst else self._circuits.queues(self._queues)
        request = ClaimRequest(self._worker_id, queues, limit, types, self._circuits.guarded)
        if (jobs := await self._claim(partial(self._ask, request))) is None:
            return 0.0
        self.claims[len(jobs)] += 1
        await self._take(jobs)
        if self._buffer:
            # What has a lock key is never started by its claim, and need not wait for a turn.
            await self._buffer.start()
        full = len(jobs) == limit
        runner.hungry = full or bool(self._buffer)
        if full:
            return await self._busy()
        drained = at_rest and not jobs and not probes and promoted == 0 and self._held_back is None
        return await self._idle(drained=drained)

    def _ask(self, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim; when few jobs came, ask for how long a limit holds others back. In the store's thread."""
        jobs = self._store.claim(request)
        self._held_back = None if len(jobs) == request.limit else self._store.held_back(request)
        return jobs

    async def _claim(self, claim: Callable[[], list[ClaimedJob]]) -> list[ClaimedJob] | None:
        """What a call took; None when it answered so late that somebody may have judged these jobs by now."""
        self._doubtful, began = True, time.monotonic()
        jobs = await self._hop(claim)
        self._doubtful = time.monotonic() - began > self._patience
        return None if self._doubtful else jobs

    async def _promote(self) -> int | None:
        """Make due jobs pending when it is time; how many, or None when it was not time."""
        now = time.monotonic()
        if now < self._promote_at:
            return None
        answer = await self._hop(self._store.promote)
        soonest = 0.0 if answer.count >= BATCH else PROMOTE_SOONEST
        wait = PROMOTE_BUSY if self._runner.hungry else self._poll
        if answer.next_due is not None:
            wait = min(wait, answer.next_due)
        self._promote_at = time.monotonic() + max(soonest, wait)
        return answer.count

    async def _look(self) -> list[ClaimedJob] | None:
        """Begin what circuits let through as probes; None as ``_claim`` says."""
        if self._circuits.wait() > 0:
            return []
        if jobs := await self._claim(partial(self._circuits.look, self._queues, self._runner.free.copy())):
            await self._take(jobs)
        return jobs

    def _appetite(self) -> tuple[int, tuple[str, ...]]:
        """How many jobs to claim, and the types that start at once."""
        free = {kind: max(0, self._runner.free[kind]) for kind in self._types}
        room = max(free.values())
        if held := len(self._buffer):
            room = min(room, max(1, 2 * self._useful), max(0, BUFFER - held))
        types = [t for kind, number in free.items() if number >= room for t in self._types[kind]]
        return room, tuple(types)

    async def _take(self, jobs: list[ClaimedJob]) -> None:
        """Run what was started, keep what was fetched, refuse what nobody here knows."""
        self._useful = 0
        if not jobs:
            return
        now = time.monotonic()
        started: list[Running] = []
        strangers: list[ClaimedJob] = []
        for job in jobs:
            job.claimed_at = now
            handler = self._registry.get(job.type)
            if handler is None:
                strangers.append(job)
                continue
            run = Running(job, handler)
            self._runner.held[job.id, job.lease] = run
            if job.started:
                started.append(run)
            else:
                self._buffer.add(run)
        if moments.hook is not None:
            moments.hook("claimed")
        self._useful = len(started)
        await self._gate.begin(started)
        if strangers:
            await self._hop(partial(self._strangers.refuse, strangers))

    async def _take_up(self) -> None:
        """Run what earlier claims took and did not tell, and what is still this worker's after an answer came late."""
        began = time.monotonic()
        known = set(self._runner.held) | self._runner.let_go
        jobs = await self._hop(partial(self._store.reclaim, self._worker_id, known))
        if time.monotonic() - began > self._patience:
            return  # once more
        self._doubtful = False
        if jobs:
            log.info("claims-taken-up", jobs=len(jobs))
        await self._take(jobs)

    # -- between turns -------------------------------------------------------------------------------------------------

    async def _busy(self) -> float:
        """The claim came back full: go on at once, or when jobs held for a full pool leave nothing useful, soon."""
        if self.waiting:
            await self._say_waiting(False)
        return 0.0 if self._useful or not self._buffer else self._until_promote(self._poll)

    async def _idle(self, *, drained: bool) -> float:
        """The claim came back short: there is nothing more to take just now."""
        if self._burst:
            if drained:
                self._drained = True
                return 0.0
            if not self._runner.held and self._held_back is None:
                self._promote_at = 0.0
                return 0.0
        if not self.waiting and not self._stopped.is_set():
            self._quiet = 0
            await self._say_waiting(True)
        pause = AGAIN[self._quiet] if self._quiet < len(AGAIN) else self._poll
        self._quiet += 1
        return self._until_promote(pause if self._held_back is None else min(pause, self._held_back))

    def _choked(self) -> bool:
        """Whether a pool has no room, so that jobs for it would come back fetched."""
        return any(free <= 0 for free in self._runner.free.values())

    def _until_promote(self, seconds: float) -> float:
        sooner = min(self._circuits.wait(), self._buffer.wait())
        return max(0.0, min(seconds, self._promote_at - time.monotonic(), sooner))

    async def _say_waiting(self, waiting: bool) -> None:
        # First here, then in the database: a heartbeat between the two says it again rather than taking it back.
        self.waiting = waiting
        try:
            await self._hop(partial(self._store.seen, self._worker_id, waiting=waiting))
        except BaseException:
            self.waiting = not waiting
            raise
