"""The worker's side of circuit breakers: what it knows of them, its probes, and what it tells them.

The database decides: a claim and a start pass by what an open circuit blocks, whatever this worker believes. What is
known here only saves work: queues that hold nothing but blocked types are left out of claims, and ends that would
change nothing are not reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from redrive.domain.circuit import CLOSED, Breaker, Circuit, CircuitState, Said, Seen, heard, observe, probe_in
from redrive.domain.job import ClaimedJob
from redrive.store.port import BATCH, ClaimRequest, Guarded, WorkerPort

from .handler import Handler, Kind
from .options import WorkerOptions
from .registry import Registry
from .runner import End

log = structlog.get_logger("redrive.worker")

REFRESH = 1.0
"""Seconds after which the states are read again, or the poll interval if that is shorter."""
LOOK = 5.0
"""Seconds after which a queue of blocked types is looked through all the same: it may hold jobs of another type."""

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)

Reports = dict[str, list[Seen]]
"""Ends of runs by the name of their circuit."""


class Circuits:
    """The breakers of one worker's handlers. All but ``look``, ``tell`` and ``sweep`` is for the loop's thread."""

    def __init__(
        self, store: WorkerPort, registry: Registry, options: WorkerOptions, *, worker_id: str, slot: int
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._build = options.build
        self._slot = slot
        self._refresh = min(options.poll, REFRESH)
        self._sweep_every = options.heartbeat
        self._breakers: dict[str, Breaker] = {}
        self._served: dict[str, list[tuple[str, Handler]]] = {}
        self._in_queue: dict[str, set[str | None]] = {}
        for job_type in registry.types:
            handler = registry.get(job_type)
            assert handler is not None
            name = None if handler.breaker is None else handler.breaker.name
            self._in_queue.setdefault(handler.queue, set()).add(name)
            if handler.breaker is not None and name is not None:
                self._breakers[name] = handler.breaker
                self._served.setdefault(name, []).append((job_type, handler))
        self.guarded: Guarded = tuple((t, name) for name, served in self._served.items() for t, _ in served)
        self._known: dict[str, Circuit] = {}
        self._due: dict[str, float] = {}
        self._try_at: dict[str, float] = {}
        self._read_at = -math.inf
        self._look_at = -math.inf

    # -- claims --------------------------------------------------------------------------------------------------------

    def queues(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """The queues to claim from: not those whose types are all blocked, except every so often."""
        blocked = {queue for queue in queues if self._is_blocked(queue)}
        if not blocked:
            return queues
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK
            return queues
        return tuple(queue for queue in queues if queue not in blocked)

    def _is_blocked(self, queue: str) -> bool:
        names = self._in_queue.get(queue)
        return bool(names) and all(name is not None and self._blocks(name) for name in names or ())

    def _blocks(self, name: str) -> bool:
        return self._known.get(name, CLOSED).blocks

    # -- probes --------------------------------------------------------------------------------------------------------

    def wait(self) -> float:
        """Seconds until ``look`` has something to do; endless without breakers."""
        if not self._breakers:
            return math.inf
        return max(0.0, min(self._read_at + self._refresh, *map(self._next, self._breakers)) - time.monotonic())

    def _next(self, name: str) -> float:
        """When to try a probe next, on the monotonic clock."""
        circuit = self._known.get(name, CLOSED)
        if not circuit.blocks or len(circuit.permits) >= self._breakers[name].probes:
            return math.inf
        return max(self._due.get(name, 0.0), self._try_at.get(name, 0.0))

    def look(self, queues: tuple[str, ...], free: Mapping[Kind, int]) -> list[ClaimedJob]:
        """Read the states again when it is time; claim and start the probes that may begin, as far as slots go."""
        if time.monotonic() >= self._read_at + self._refresh:
            self._read()
        now = time.monotonic()
        jobs: list[ClaimedJob] = []
        left = dict(free)
        for name in self._breakers:
            if self._next(name) <= now:
                self._try_at[name] = now + self._refresh
                jobs += self._probe(name, queues, left)
        return jobs

    def _read(self) -> None:
        clock, found = self._store.circuit_states(tuple(self._breakers))
        self._read_at = time.monotonic()
        for name in self._breakers:
            circuit = found.get(name, CLOSED)
            self._due[name] = self._read_at + probe_in(circuit, clock)
            self._learn(name, circuit)

    def _probe(self, name: str, queues: tuple[str, ...], left: dict[Kind, int]) -> list[ClaimedJob]:
        kinds = {job_type: handler.kind for job_type, handler in self._served[name] if left[handler.kind] > 0}
        if not kinds:
            return []
        limit = min(left[kind] for kind in kinds.values())
        answer = self._store.probe(
            name, self._breakers[name], ClaimRequest(self._worker_id, queues, limit, tuple(kinds))
        )
        self._due[name] = time.monotonic() + probe_in(answer.circuit, answer.now)
        for job in answer.jobs:
            left[kinds[job.type]] -= 1
        if answer.jobs:
            log.info("circuit-probes", circuit=name, jobs=len(answer.jobs))
        self._learn(name, answer.circuit)
        return answer.jobs

    # -- ends of runs --------------------------------------------------------------------------------------------------

    def reports(self, ends: Sequence[End]) -> Reports:
        """What these ends have to say to circuits; nothing where it would change nothing."""
        found: Reports = {}
        if not self._breakers:
            return found
        now = time.monotonic()
        for run, outcome, _ in ends:
            breaker = run.handler.breaker
            if breaker is None or breaker.name is None:
                continue
            said, why, stated = heard(outcome)
            if said is not Said.NOTHING:  # a probe's permit ends with its lease, without a word
                ran = now - run.began if run.began else 0.0
                found.setdefault(breaker.name, []).append(Seen(run.pair, said, ran, why, stated))
        return {name: seen for name, seen in found.items() if self._matters(name, seen)}

    def _matters(self, name: str, seen: list[Seen]) -> bool:
        """Whether a closed circuit without failures would be another one after it. Others are always told."""
        known = self._known.get(name)
        if known is None or known.blocks or known.failures:
            return True
        fresh = replace(known, changed_at=None)
        return observe(fresh, self._breakers[name], seen, _ANY_TIME) != fresh

    def tell(self, reports: Reports) -> None:
        """Report ends of runs, before they are settled: a permit is in force until then.

        What cannot be reported is lost: an uncounted failure is better than an end that waits.
        """
        for name, seen in reports.items():
            try:
                before, after = self._store.observe(name, self._breakers[name], seen)
            except Exception as error:
                log.warning("circuit-not-told", circuit=name, ends=len(seen), error=repr(error))
                continue
            if before.state is not after.state:
                self._read_at = -math.inf  # when it probes is by the database's clock
            self._try_at[name] = 0.0
            self._learn(name, after)

    def _learn(self, name: str, circuit: Circuit) -> None:
        """Keep what is known now; a change is one line in this worker's log."""
        before = self._known.get(name, CLOSED)
        if circuit.version < before.version:
            return  # another thread has learnt better meanwhile
        self._known[name] = circuit
        if circuit.changed_at == before.changed_at or circuit.state is CircuitState.HALF_OPEN:
            return
        if circuit.blocks:
            log.warning("circuit-opened", circuit=name, reason=circuit.reason, types=[t for t, _ in self._served[name]])
        elif before.blocks:
            log.info("circuit-closed", circuit=name, reason=circuit.reason)

    # -- a chore -------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Bury what lived its life out behind an open circuit."""
        for name, served in self._served.items():
            if not self._blocks(name):
                continue
            ages = {job_type: handler.rules.retry.max_age_seconds for job_type, handler in served}
            every, buried = self._sweep_every, BATCH
            while buried >= BATCH:
                buried = self._store.bury_kept_off(
                    name, ages, every=every, worker_id=self._worker_id, build=self._build, slot=self._slot
                )
                every = 0.0
                if buried:
                    log.warning("jobs-dead", circuit=name, jobs=buried, reason="circuit_open")
