"""Fetched jobs in a worker's hands that wait for a free slot, or go back.

Jobs are claimed by queue, not by type, so jobs for a full pool can stand in front of others: a few are held so that the
rest gets through, but not longer than ``HOLD``. When handlers are slow and another worker waits for such jobs, they go
back at once (``elsewhere``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from redrive.domain.moves import PutOff, Release
from redrive.store.port import Guarded, WorkerPort

from . import moments
from .elsewhere import Elsewhere
from .handler import Kind
from .hop import Hop
from .once import Gate
from .runner import Runner
from .running import Running, Stop

HOLD = 5.0
BUFFER = 500
"""Fetched jobs in the buffer at most; none are claimed beyond."""


class Buffer:
    """What was fetched, by the pool it waits for. Every run in it is also among the runner's held ones."""

    def __init__(
        self,
        store: WorkerPort,
        runner: Runner,
        gate: Gate,
        elsewhere: Elsewhere,
        hop: Hop,
        *,
        kinds: Iterable[Kind],
        queues: Sequence[str],
        guarded: Guarded,
    ) -> None:
        self._store = store
        self._runner = runner
        self._gate = gate
        self._elsewhere = elsewhere
        self._hop = hop
        self._queues = queues
        self._guarded = guarded
        self._pools: dict[Kind, list[Running]] = {kind: [] for kind in kinds}

    def __len__(self) -> int:
        return sum(map(len, self._pools.values()))

    def __iter__(self) -> Iterator[Running]:
        for runs in self._pools.values():
            yield from runs

    def add(self, run: Running) -> None:
        """Keep a fetched job."""
        self._pools[run.handler.kind].append(run)

    def wait(self) -> float:
        """Seconds until ``start`` may let go of something; endless when nothing is held."""
        return self._elsewhere.wait(list(self))

    async def start(self) -> None:
        """Start jobs for which there are slots; let go of those that waited too long."""
        for kind, runs in self._pools.items():
            if not runs:
                continue
            for run in [run for run in runs if run.stop is Stop.LOST]:
                runs.remove(run)
                self._forget(run)
            number = min(len(runs), self._runner.free[kind])
            if number > 0:
                batch = runs[:number]
                start = partial(self._store.start, self._queues, [run.pair for run in batch], self._guarded)
                answer = await self._hop(start)
                del runs[:number]
                if moments.hook is not None:
                    moments.hook("started")
                for run in batch:
                    run.job.attempt += run.pair in answer
                await self._gate.begin([run for run in batch if run.pair in answer])
                await self._give_back([run for run in batch if run.pair not in answer])
            overdue = time.monotonic() - HOLD
            late = [run for run in runs if run.job.claimed_at < overdue] or await self._elsewhere.wanted(runs)
            if late:
                runs[:] = [run for run in runs if run not in late]
                await self._give_back(late)

    async def empty(self) -> None:
        """Give everything back."""
        runs = list(self)
        for pool in self._pools.values():
            pool.clear()
        await self._give_back(runs)

    async def _give_back(self, runs: list[Running]) -> None:
        """Release fetched jobs: somebody else may have a slot, or their queue is paused."""
        if not runs:
            return
        for run in runs:
            self._forget(run)  # also when giving back fails: without heartbeats the leases run out
        moves: list[Release | PutOff] = [Release(run.job.id, run.job.lease) for run in runs]
        await self._hop(partial(self._store.give_back, moves))

    def _forget(self, run: Running) -> None:
        self._runner.held.pop(run.pair, None)
