"""A worker: everything put together, started, and stopped in order.

**How it stops**, on a signal (``signals``), on its stop event or at the end of ``async with`` (embedded):

1. It claims nothing more. A claim that is under way is answered first: its started jobs must run, somebody counts them.
2. Fetched jobs are given back at once, unchanged: another worker can start them now rather than after a timeout.
3. Running handlers may finish, for ``grace`` seconds. Heartbeats go on, ends are settled as they come.
4. What still runs is told to stop (``ctx.cancelled``; async handlers are cancelled) and has ``UNWIND`` seconds to clean
   up. Then it is left behind. Either way its job is buried as zombie, with the reason, rather than found by a rescuer.
5. Every end is settled; while the database is away, for one zombie timeout, after which a rescuer has judged the jobs.
6. Heartbeats stop only now, when no lease is held, and the worker signs off.

A second signal ends the process at once with exit code 1. What it held is rescued by others when its leases run out.

Quiet (``standing``) is 1 and 2 of this, and then it waits to be stopped.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import structlog

from redrive.domain.errors import ConfigError
from redrive.domain.schedule import Schedule
from redrive.store.port import WorkerPort

from . import announce, moments
from .children import Children
from .chores import Chore
from .circuits import Circuits
from .handler import Kind
from .helpers import SIGN_OFF, Helper, let_go, tidying
from .hop import Hop
from .leases import Leases
from .loop import Loop
from .operations import Round
from .options import WorkerOptions
from .outages import Outage
from .registry import Registry
from .rest import rest
from .runner import Runner
from .schedules import Scheduler
from .settler import Settler
from .signals import DEGRADED, Signals
from .standing import Standing
from .wakeup import Wakeup

log = structlog.get_logger("redrive.worker")

UNWIND = 2.0
SWITCH_INTERVAL = 0.0005
"""Two store threads and the event loop take turns; at the interpreter's 5 ms they wait for each other."""


class Worker:
    """Runs the jobs of a registry, and enqueues those of ``schedules`` when they are due.

    ``word`` is given to the handlers' ``adopt`` in processes for isolated ones, and ``in_process`` False runs these in
    threads. ``seal`` is called now and then, to seal the audit log; ``operations`` to carry on with bulk operations.
    """

    def __init__(
        self,
        store: WorkerPort,
        registry: Registry,
        options: WorkerOptions | None = None,
        *,
        seal: Callable[[], object] | None = None,
        schedules: Sequence[Schedule] = (),
        operations: Round | None = None,
        word: Any = None,
        in_process: bool = True,
    ) -> None:
        if not len(registry):
            raise ConfigError("no handler is registered: import the modules that declare them before the worker starts")
        self.options = WorkerOptions() if options is None else options
        self.registry = registry
        self.id = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.queues = self.options.queues or registry.queues
        self._store = store
        self._seal = seal
        self._operations = operations
        self._schedules = tuple(schedules)
        self._word = word
        self._in_process = in_process
        self._setup: Callable[[], object] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._started = asyncio.Event()
        self._begun: Callable[[], None] = lambda: None
        self.standing = Standing(self.options.stuck_limit)
        self.runner: Runner
        self.settler: Settler
        self.line: Loop
        self.outage: Outage

    # -- as a process --------------------------------------------------------------------------------------------------

    def run(self, *, burst: bool = False, setup: Callable[[], object] | None = None) -> int:
        """Serve until a signal comes or, with ``burst``, until nothing is left to do. For the main thread.

        ``setup`` is called first in each process for isolated handlers; it must be found by its name. The answer is the
        exit code: 0, or 3 when it left because it is degraded.
        """
        moments.arm()
        self._setup = setup
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            asyncio.run(self._run(burst))
        finally:
            sys.setswitchinterval(interval)
        return DEGRADED if self.standing.mode == "degraded" else 0

    async def _run(self, burst: bool) -> None:
        stop = asyncio.Event()
        signals = Signals(stop, quiet=self.standing.quiet, held=lambda: len(self.runner.held), grace=self.options.grace)
        signals.listen()
        self._begun = signals.serving
        await self.serve(stop, burst=burst, patient=not burst, leave=True)

    # -- embedded in an application ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Worker:
        """Serve in the running loop; back when the worker is registered."""
        self._stop.clear()
        self._started.clear()
        started = asyncio.create_task(self._started.wait())
        self._serving = asyncio.create_task(self.serve(self._stop), name="redrive-worker")
        await asyncio.wait((started, self._serving), return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            await self._serving  # raises why
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order."""
        self._stop.set()
        if self._serving is not None:
            await self._serving

    # -- serving -------------------------------------------------------------------------------------------------------

    async def serve(
        self, stop: asyncio.Event, *, burst: bool = False, patient: bool = False, leave: bool = False
    ) -> None:
        """Register, work until ``stop`` is set (or drained), stop in order.

        A database that is away at the start is an error, or with ``patient`` waited for. With ``leave`` it stops when
        it is degraded.
        """
        loop = asyncio.get_running_loop()
        options = self.options
        claims, settles = Hop("redrive-claim"), Hop("redrive-settle")
        kinds: dict[Kind, int] = {
            "async": options.async_slots,
            "thread": options.threads,
            "process": options.isolated,
        }
        used = {handler.kind for handler in self.registry}
        outage = self.outage = Outage()
        children = Children(self.registry, loop, word=self._word, setup=self._setup) if self._kills(used) else None
        slots = {kind: number for kind, number in kinds.items() if kind in used}
        runner = self.runner = Runner(slots, loop, children)
        self.standing.begin(runner, stop if leave else None)
        try:
            said = announce.info(
                self.id, options.build, self.queues, self.registry, sum(runner.slots.values()), self._schedules
            )
            if children is not None:
                await claims(children.check)
            register = partial(self._store.register, said)
            slot = await announce.register(register, claims, stop, outage, patient=patient)
            if slot is None:
                return
            circuits = Circuits(self._store, self.registry, options, worker_id=self.id, slot=slot)
            settler = self.settler = Settler(
                self._store, runner, circuits, settles,
                worker_id=self.id, build=options.build, slot=slot, outage=outage,
            )  # fmt: skip
            line = self.line = Loop(
                self._store, self.registry, runner, circuits, options, claims,
                worker_id=self.id, queues=self.queues, slot=slot, burst=burst, outage=outage,
            )  # fmt: skip
            self.standing.hush = line.stop
            settler.settled, settler.scheduled = line.settled, line.due_in
            settler.told = line.nudge
            leases = Leases(
                self._store, runner, loop,
                worker_id=self.id, interval=options.heartbeat, patience=options.zombie_timeout,
                waiting=lambda: line.waiting, condition=self.standing.condition, ordered=self.standing.ordered,
                register=register, outage=outage,
            )  # fmt: skip
            nudge = partial(_nudge, loop, line.nudge)
            helpers: list[Helper] = [
                *tidying(
                    self._store,
                    self.registry,
                    options,
                    outage,
                    slot=slot,
                    seal=self._seal,
                    operations=self._operations,
                ),
                Wakeup(self._store, self.id, self.queues, nudge, leases.chore.hurry, outage),
                leases.chore,
            ]
            if circuits.guarded:
                helpers.append(Chore("sweep", options.heartbeat, circuits.sweep, outage))
            if self._schedules:
                scheduler = self._scheduler(nudge, outage)
                await claims(scheduler.tick)  # declared, and what is due enqueued, before it claims
                helpers.append(scheduler)
            if unknown := set(self.queues) - set(self.registry.queues):
                log.warning("queue-without-handler", queues=sorted(unknown), handlers_are_for=self.registry.queues)
            log.info("worker-started", worker=self.id, queues=self.queues, slots=runner.slots, slot=slot)
            for helper in helpers:
                helper.start()
            self._started.set()
            self._begun()
            watching = asyncio.create_task(leases.watch(), name="redrive-leases")
            try:
                await self._work(stop, runner, settler, line, burst=burst)
            finally:
                watching.cancel()
                await let_go(helpers)
                with suppress(Exception):
                    async with asyncio.timeout(SIGN_OFF):
                        await claims(partial(self._store.unregister, self.id))
                log.info("worker-stopped", worker=self.id, unsettled=len(runner.held), stuck=runner.stuck)
        finally:
            runner.close()
            claims.close()
            settles.close()

    def _kills(self, used: set[Kind]) -> bool:
        return self._in_process and "process" in used

    async def _work(self, stop: asyncio.Event, runner: Runner, settler: Settler, line: Loop, *, burst: bool) -> None:
        if self.standing.mode == "quiet":
            line.stop()
        feeding = asyncio.create_task(line.run(), name="redrive-claim")
        settling = asyncio.create_task(settler.run(), name="redrive-settle")
        stopping = asyncio.create_task(stop.wait(), name="redrive-stop")
        try:
            await asyncio.wait((feeding, settling, stopping), return_when=asyncio.FIRST_COMPLETED)
            if self.standing.mode == "quiet" and not burst and not _failed(feeding):
                await asyncio.wait((settling, stopping), return_when=asyncio.FIRST_COMPLETED)
            self.standing.stopping()
            line.stop()
            await asyncio.wait((feeding,), timeout=self.options.zombie_timeout)
            if not feeding.cancel():
                feeding.result()  # raises what ended it, if something did
        finally:
            stopping.cancel()
            await self._finish(runner, settler, settling)

    async def _finish(self, runner: Runner, settler: Settler, settling: asyncio.Task[None]) -> None:
        await rest(runner.idle, self.options.grace)
        if runner.running:
            log.warning("grace-ended", running=runner.running)
            runner.shut_down()
            await rest(runner.idle, UNWIND)
            runner.abandon()
        settler.close()
        try:
            async with asyncio.timeout(self.options.zombie_timeout):
                await settling
        except TimeoutError:
            log.error("ends-not-settled", jobs=len(runner.held))

    def _scheduler(self, wake: Callable[[], None], outage: Outage) -> Scheduler:
        options = self.options
        return Scheduler(
            self._store, self._schedules,
            interval=options.heartbeat, alive_within=options.zombie_timeout, wake=wake, outage=outage,
        )  # fmt: skip


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and task.exception() is not None


def _nudge(loop: asyncio.AbstractEventLoop, nudge: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the worker has ended
        loop.call_soon_threadsafe(nudge)
