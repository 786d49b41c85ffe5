"""How a worker is, as it tells operators, and what they may change about it while it runs.

==========  ==========================================================================================================
serving     it claims and runs jobs
quiet       what runs is finished, the rest was given back, nothing more is claimed; it waits to be stopped
degraded    ``stuck_limit`` runs that were given up still go on; a process stops and exits with 3, to be started anew
stopping    it stops in order
==========  ==========================================================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from redrive.store.port import Condition, Orders

from .handler import Kind
from .room import share
from .runner import Runner

log = structlog.get_logger("redrive.worker")


class Standing:
    """Everything in the event loop's thread but ``condition``, which only reads."""

    def __init__(self, stuck_limit: int) -> None:
        self.mode = "serving"
        self.hush: Callable[[], None] = lambda: None
        """Called when the worker becomes quiet."""
        self._stuck_limit = stuck_limit
        self._runner: Runner | None = None
        self._configured: dict[Kind, int] = {}
        self._wanted: int | None = None
        self._leave: asyncio.Event | None = None

    def begin(self, runner: Runner, leave: asyncio.Event | None) -> None:
        """Look at this runner from now on. ``leave`` is set when the worker is better replaced."""
        self._runner, self._leave = runner, leave
        self._configured = dict(runner.slots)
        self._wanted = None
        if self.mode != "quiet":  # said before it began
            self.mode = "serving"
        runner.given_up = self._given_up

    def condition(self) -> Condition:
        """What it tells."""
        runner = self._runner
        assert runner is not None
        return Condition(self.mode, runner.stuck, sum(runner.slots.values()))

    def quiet(self) -> None:
        """Claim nothing more."""
        if self.mode == "serving":
            self.mode = "quiet"
            log.info("worker-quiet", held=0 if self._runner is None else len(self._runner.held))
            self.hush()

    def stopping(self) -> None:
        """It stops; that it does so because it is degraded stays the news."""
        if self.mode != "degraded":
            self.mode = "stopping"

    def ordered(self, orders: Orders) -> None:
        """What operators want, as each heartbeat brings it."""
        if self._runner is not None and orders.concurrency != self._wanted:
            self._wanted = orders.concurrency
            self._runner.resize(share(self._configured, orders.concurrency))
            log.info("worker-resized", slots=self._runner.slots, wanted=orders.concurrency)

    def _given_up(self) -> None:
        stuck = self.condition().stuck
        if stuck >= self._stuck_limit and self.mode != "degraded":
            self.mode = "degraded"
            log.error("worker-degraded", stuck=stuck, limit=self._stuck_limit, leaves=self._leave is not None)
            if self._leave is not None:
                self._leave.set()
