"""Settle: ends of runs become moves, moves are sent in batches that grow by themselves.

No end is dropped. While the database is away the same moves are sent again, which is safe: what was applied is answered
"already applied". A move the store cannot take is found by halving its batch; it is buried as unknown with the store's
error, and if even that fails its lease is let go, so that a rescue buries it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import structlog

from redrive.domain.classify import report
from redrive.domain.errors import ConfigError, NotMigrated, Retryable, Unavailable
from redrive.domain.failures import FailureClass, Reason
from redrive.domain.lifecycle import Run, settle
from redrive.domain.moves import Answer, Bury, Retry, Settled, SettleMove, SnoozeFor
from redrive.domain.outcome import ErrorReport, Failed
from redrive.store.port import WorkerPort

from . import moments
from .backoff import Backoff
from .circuits import Circuits
from .hop import Hop
from .outages import Outage
from .runner import End, Runner

log = structlog.get_logger("redrive.worker")

FULL = 500
"""Ends in one transaction; more gain nothing."""
LINGER = 0.003
"""How long ends are collected while other handlers run."""


class Settler:
    """Sends what ``runner.ends`` holds until it is closed and everything is answered."""

    def __init__(
        self,
        store: WorkerPort,
        runner: Runner,
        circuits: Circuits,
        hop: Hop,
        *,
        worker_id: str,
        build: str,
        slot: int,
        outage: Outage | None = None,
    ) -> None:
        self._store = store
        self._circuits = circuits
        self._runner = runner
        self._hop = hop
        self._outage = Outage() if outage is None else outage
        self._identity = (worker_id, build, slot)
        self._ended = asyncio.Event()
        self._closed = False
        runner.ended = self._ended.set
        self.answers: Counter[Answer] = Counter()
        self.batches: Counter[int] = Counter()
        self.settled: Callable[[], None] = lambda: None
        self.told: Callable[[], None] = lambda: None
        self.scheduled: Callable[[float], None] = lambda _: None

    def close(self) -> None:
        """No further ends will come: finish when those there are have been answered."""
        self._closed = True
        self._ended.set()

    async def run(self) -> None:
        """Settle until closed."""
        runner = self._runner
        while True:
            if not runner.ends:
                if self._closed:
                    return
                self._ended.clear()
                await self._ended.wait()
                continue
            if runner.running and len(runner.ends) < FULL:
                await asyncio.sleep(LINGER)  # others still run: collect a little; otherwise at once
            batch = runner.ends[:FULL]
            del runner.ends[: len(batch)]
            await self._settle(batch)

    async def _settle(self, batch: list[End]) -> None:
        moves = [decide(end) for end in batch]
        if reports := self._circuits.reports(batch):
            await self._hop(partial(self._circuits.tell, reports))
            self.told()
        answers = await self._send(moves)
        self.batches[len(batch)] += 1
        for end, move, settled in zip(batch, moves, answers, strict=True):
            self._runner.held.pop(end.run.pair, None)
            if settled is None:
                self._runner.let_go.add(end.run.pair)
            else:
                self._note(end, move, settled)
        self.settled()

    async def _send(self, moves: Sequence[SettleMove]) -> list[Settled | None]:
        """The store's answers; None for a move that it cannot take."""
        backoff = Backoff()
        while True:
            try:
                answers = await self._hop(partial(self._call, moves))
                self._outage.succeeded("settle")
                return [*answers]
            except Unavailable as error:
                self._outage.failed("settle", error)
                await asyncio.sleep(backoff.next())
            except (Retryable, NotMigrated, ConfigError) as error:  # not the fault of any move
                wait = backoff.next()
                log.warning("settle-waits", moves=len(moves), seconds=round(wait, 2), error=str(error))
                await asyncio.sleep(wait)
            except Exception as error:
                if len(moves) > 1:
                    half = len(moves) // 2
                    return [*await self._send(moves[:half]), *await self._send(moves[half:])]
                return [await self._last_resort(moves[0], error)]

    def _call(self, moves: Sequence[SettleMove]) -> list[Settled]:
        worker_id, build, slot = self._identity
        if moments.hook is None:
            return self._store.settle(moves, worker_id=worker_id, build=build, slot=slot)
        moments.hook("settle-sending")
        with moments.during_settle():
            answers = self._store.settle(moves, worker_id=worker_id, build=build, slot=slot)
        moments.hook("settled")
        return answers

    async def _last_resort(self, move: SettleMove, error: Exception) -> Settled | None:
        run = self._runner.held.get((move.id, move.lease))
        job_type = "" if run is None else run.job.type
        log.error("settle-refused", job_id=move.id.hex(), type=job_type, error=repr(error), move=type(move).__name__)
        if isinstance(move, Bury) and move.reason is Reason.UNKNOWN:
            return None
        kept = report(error, job_type=job_type)
        budget = move.max_attempts if isinstance(move, Retry | Bury) else 1
        bury = Bury(move.id, move.lease, move.duration_ms, Reason.UNKNOWN, kept, budget)
        return (await self._send([bury]))[0]

    def _note(self, end: End, move: SettleMove, settled: Settled) -> None:
        self.answers[settled.answer] += 1
        if settled.answer is Answer.APPLIED and settled.reason is None and not isinstance(move, Retry | SnoozeFor):
            return
        job = end.run.job
        said = {"job_id": str(job.uuid), "type": job.type, "life": job.life, "attempt": job.attempt}
        if settled.answer is Answer.STALE:
            log.warning("settle-stale", move=type(move).__name__, **said)
        elif settled.reason is not None:
            error = move.error if isinstance(move, Bury | Retry) else None
            shown = {} if error is None else {"error": error.error_type, "message": error.message}
            log.warning("job-dead", reason=settled.reason.value, **shown, **said)
        elif isinstance(move, Retry | SnoozeFor):
            self.scheduled(move.delay)
            if isinstance(move, Retry):
                log.info("job-retries", seconds=round(move.delay, 2), error=move.error.error_type, **said)


def decide(end: End) -> SettleMove:
    """The move for an end. A backoff function that raises makes the failure fatal, with both errors kept."""
    run, outcome, at = end
    job, handler = run.job, run.handler
    facts = Run(
        job.id,
        job.lease,
        job.spent,
        job.max_attempts,
        max(0, int((at - run.began) * 1000)),
        job.age + time.monotonic() - job.claimed_at,
        run.mark,
    )
    try:
        return settle(facts, outcome, handler.rules, jitter=random.random(), backoff=handler.backoff)
    except BaseException as broken:  # only the application's function can raise here, and it may raise anything
        first = getattr(outcome, "error", None)
        both = _both(first, report(broken, job_type=job.type))
        return settle(facts, Failed(FailureClass.FATAL, both), handler.rules, jitter=0.0)


def _both(first: ErrorReport | None, second: ErrorReport) -> ErrorReport:
    if first is None:
        return second
    return replace(
        first,
        message=f"{first.message}; and its backoff function failed: {second.error_type}: {second.message}"[:1000],
        traceback=f"{first.traceback}\nIts backoff function failed as well:\n\n{second.traceback}",
    )
