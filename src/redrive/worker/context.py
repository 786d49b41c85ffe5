"""What a handler may know of its job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from redrive.domain.errors import InvalidField
from redrive.domain.text import one_line

from .running import Running

PROGRESS_LIMIT = 200


class JobContext:
    """Given to a handler whose first parameter is annotated with it. Cheap: what is not asked for is not made."""

    __slots__ = ("_log", "_marks", "_run")

    def __init__(self, run: Running) -> None:
        self._run = run
        self._marks: tuple[tuple[str, ...], Mapping[str, str]] | None = None
        self._log: Any = None

    @property
    def id(self) -> UUID:
        """The job's id: the same in every attempt and every life."""
        return self._run.job.uuid

    @property
    def type(self) -> str:
        """The type it was enqueued under, which may be an alias of the handler's."""
        return self._run.job.type

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._run.job.queue

    @property
    def attempt(self) -> int:
        """Which start this is, from 1, within the present life."""
        return self._run.job.attempt

    @property
    def life(self) -> int:
        """Which life this is: 1 from enqueue, one more with each resurrection."""
        return self._run.job.life

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags, in order."""
        return self._read_marks()[0]

    @property
    def labels(self) -> Mapping[str, str]:
        """The job's labels."""
        return self._read_marks()[1]

    @property
    def cancelled(self) -> bool:
        """Whether the run should stop: cancelled by an operator, over its time, lease lost, or the worker ends.

        An ``async def`` handler is cancelled as well; a ``def`` handler must look here, and may raise ``Cancel``.
        """
        return self._run.stop is not None

    def progress(self, percent: float, note: str = "") -> None:
        """Say how far the run is, from 0 to 100. Operators see the newest at the next heartbeat."""
        if not 0 <= percent <= 100:
            raise InvalidField("percent", f"{percent!r} is out of range", expected="a number from 0 to 100")
        said = one_line(note, PROGRESS_LIMIT - 10)
        self._run.progress = f"{percent:.3g} % {said}".rstrip()

    @property
    def log(self) -> Any:
        """A structlog logger that names the job in every line."""
        if self._log is None:
            import structlog  # not needed to import a module with handlers

            job = self._run.job
            self._log = structlog.get_logger("redrive.job").bind(
                job_id=str(job.uuid), type=job.type, life=job.life, attempt=job.attempt
            )
        return self._log

    def _read_marks(self) -> tuple[tuple[str, ...], Mapping[str, str]]:
        if self._marks is None:
            self._marks = _unpack(self._run.job.marks)
        return self._marks

    def __repr__(self) -> str:
        job = self._run.job
        return f"<JobContext {job.type} {job.uuid} life {job.life} attempt {job.attempt}>"


def _unpack(marks: str | None) -> tuple[tuple[str, ...], Mapping[str, str]]:
    held = {} if marks is None else json.loads(marks)
    return tuple(held.get("tags", ())), dict(held.get("labels", {}))
