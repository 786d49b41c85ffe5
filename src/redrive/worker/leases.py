"""Heartbeats: keep the leases of everything the worker holds, learn what was lost and what somebody cancelled.

They run on a thread with a connection of its own, so that a handler that blocks the event loop or burns CPU does not
look dead. When no beat has come through for longer than the zombie timeout, the leases must be presumed lost: some
other worker may have judged the jobs by now, so their runs are given up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from redrive.store.port import BATCH, Condition, Orders, Pair, WorkerPort

from .chores import Chore
from .outages import Outage
from .runner import Runner


class Leases:
    """The heartbeat of one worker."""

    def __init__(
        self,
        store: WorkerPort,
        runner: Runner,
        loop: asyncio.AbstractEventLoop,
        *,
        worker_id: str,
        interval: float,
        patience: float,
        waiting: Callable[[], bool],
        condition: Callable[[], Condition],
        ordered: Callable[[Orders], None],
        register: Callable[[], object],
        outage: Outage,
    ) -> None:
        self._store = store
        self._runner = runner
        self._loop = loop
        self._worker_id = worker_id
        self._interval = interval
        self._patience = patience
        self._waiting = waiting
        self._condition = condition
        self._ordered = ordered
        self._register = register
        self._told: dict[Pair, str] = {}
        self._renewed = time.monotonic()
        self.chore = Chore("heartbeat", interval, self.beat, outage)

    def beat(self) -> None:
        """Renew every lease held now. Sent from when it was begun: a lease is as old as the moment before the call."""
        pairs = list(self._runner.held)
        progress = self._news(pairs)
        began = time.monotonic()
        for first in range(0, len(pairs), BATCH):
            batch = pairs[first : first + BATCH]
            said = {pair: progress[pair] for pair in batch if pair in progress}
            pulse = self._store.heartbeat(batch, progress=said or None)
            self._told.update(said)
            if pulse.lost or pulse.cancel:
                self._loop.call_soon_threadsafe(self._runner.pulse, pulse)
        self._renewed = began
        self._say()

    def _say(self) -> None:
        """That the worker lives, and how it is; once more if that changed meanwhile, or the old word stands."""
        said = None
        while said != (now := (self._waiting(), self._condition())):
            waiting, condition = said = now
            orders = self._store.seen(self._worker_id, waiting=waiting, condition=condition)
            if orders is None:
                self._register()  # somebody took us for dead and tidied up
            else:
                self._loop.call_soon_threadsafe(self._ordered, orders)

    def _news(self, pairs: list[Pair]) -> dict[Pair, str]:
        """What handlers said of their progress since the last beat."""
        said = {pair: run.progress for pair in pairs if (run := self._runner.held.get(pair)) is not None}
        self._told = {pair: text for pair, text in self._told.items() if pair in said}
        return {pair: text for pair, text in said.items() if text is not None and self._told.get(pair) != text}

    async def watch(self) -> None:
        """Presume leases lost that no beat renewed in time. In the loop: a beat may hang in the database for long.

        To the moment: whoever waited for the next interval would learn of it after another worker has begun.
        """
        while True:
            now, first = time.monotonic(), self._interval
            for pair, run in list(self._runner.held.items()):
                left = max(self._renewed, run.job.claimed_at) + self._patience - now
                if left <= 0:
                    self._runner.lose(pair)
                else:
                    first = min(first, left)
            await asyncio.sleep(first)
