"""One run of a handler while the worker holds its job: what its parts need to know of each other."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from redrive.domain.job import ClaimedJob
from redrive.domain.once import Mark

if TYPE_CHECKING:
    from .handler import Handler


class Stop(Enum):
    """Why the engine told a run to stop. The first reason stands."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    SHUTDOWN = "shutdown"


class Running:
    """A held job and its handler. ``began`` is on the monotonic clock, 0.0 until the handler is started.

    ``entered`` is set when the run's first line is reached: a task that is cancelled before it would never run at all,
    and its end be lost. ``over`` is set when the end is decided; what the handler does later changes nothing. ``mark``
    is the completion marker the run holds.
    """

    __slots__ = ("began", "entered", "handler", "job", "mark", "over", "progress", "stop", "task", "tries")

    def __init__(self, job: ClaimedJob, handler: Handler) -> None:
        self.job = job
        self.handler = handler
        self.began = 0.0
        self.stop: Stop | None = None
        self.entered = False
        self.over = False
        self.task: asyncio.Task[None] | None = None
        self.tries = 0
        self.progress: str | None = None
        self.mark: Mark | None = None

    @property
    def pair(self) -> tuple[bytes, int]:
        """The proof of ownership."""
        return self.job.id, self.job.lease
