"""``once=`` of a handler: a run begins only when it holds the completion marker of its work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog

from redrive.domain.errors import Retryable, Unavailable
from redrive.domain.outcome import Skipped
from redrive.store.port import MarkAnswer, MarkClaim, MarkPort

from .backoff import Backoff
from .hop import Hop
from .run_one import raised
from .runner import Runner
from .running import Running

log = structlog.get_logger("redrive.worker")


class Gate:
    """Lets runs through that need no marker or get theirs; ends those whose work another job has done, or is doing."""

    def __init__(self, store: MarkPort, runner: Runner, hop: Hop) -> None:
        self._store = store
        self._runner = runner
        self._hop = hop

    async def begin(self, runs: Sequence[Running]) -> None:
        """Begin these runs, whose jobs are started: at once, or when their markers are there."""
        wanted = [run for run in runs if run.handler.once is not None and self._mark(run)]
        if not wanted:
            self._runner.begin(run for run in runs if not run.over)
            return
        self._runner.begin(run for run in runs if run.mark is None and not run.over)
        claims = [MarkClaim(*run.pair, run.mark.scope, run.mark.key) for run in wanted if run.mark is not None]
        for run, answer in zip(wanted, await self._claim(claims), strict=True):
            self._judge(run, answer)
        self._runner.begin(run for run in wanted if not run.over)

    def _mark(self, run: Running) -> bool:
        """Whether the run wants a marker, which is then on it."""
        handler = run.handler
        assert handler.once is not None
        try:
            arguments = handler.binding.bind(run.job.payload, run.job.content_type)
        except BaseException:
            return False  # the run finds that out as well, and says it better
        try:
            run.mark = handler.once(arguments)
        except BaseException as error:  # the application's function may raise anything
            self._runner.finish(run, raised(run, error))
        return run.mark is not None

    async def _claim(self, claims: Sequence[MarkClaim]) -> list[MarkAnswer]:
        """The store's answers, however long it is away: heartbeats go on, and these jobs are started already."""
        backoff = Backoff()
        while True:
            try:
                return await self._hop(partial(self._store.claim_marks, claims))
            except (Unavailable, Retryable) as error:
                wait = backoff.next()
                log.warning("markers-wait", runs=len(claims), seconds=round(wait, 2), error=str(error))
                await asyncio.sleep(wait)

    def _judge(self, run: Running, answer: MarkAnswer) -> None:
        if answer.granted:
            return
        mark, run.mark = run.mark, None
        if answer.holder is None or mark is None:
            self._runner.lose(run.pair)
            return
        why = f"{mark.key!r} {'was completed' if answer.done else 'is in progress'} by job {answer.holder}"
        log.info("job-skipped", job_id=str(run.job.uuid), type=run.job.type, why=why)
        self._runner.finish(run, Skipped(why))
