"""An application on a private database, and what a test wants to know of it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from redrive.domain.errors import InvalidField
from redrive.domain.filters import JobFilter, PageRequest
from redrive.domain.states import Place
from redrive.handles import Item, JobFunction

from .clock import Clock

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.domain.job import JobRecord
    from redrive.ops.service import Desk
    from redrive.worker.running import Running

Job = JobFunction[..., ..., Any] | str
"""A decorated handler, or a type."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What a ``drain`` has brought about: jobs that succeeded, jobs that died, and jobs that are still to be run."""

    succeeded: int
    died: int
    waiting: int


class Kit:
    """``with Kit(app) as kit:`` puts ``app`` on an empty SQLite database of its own, in memory, with ``kit.clock``.

    Afterwards the application stands where it stood. ``now`` is where the clock begins.
    """

    def __init__(self, app: Redrive, *, now: datetime | None = None) -> None:
        self.app = app
        self.clock = Clock(now)

    def __enter__(self) -> Kit:
        from redrive import wiring

        self._folder = _folder()
        path = Path(self._folder.name) / "redrive.db"
        path.write_bytes(_template())
        self._store = wiring.private_store(path, self.clock.micros)
        self._before = self.app.stand_on(self._store)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.app.stand_on(self._before)
        self._store.close()
        self._folder.cleanup()

    # -- running -------------------------------------------------------------------------------------------------------

    def drain(self) -> Drained:
        """Run everything that is due, and what it enqueues, by the real worker; jobs that wait for the clock wait.

        In async code: ``await adrain()``.
        """
        return asyncio.run(self.adrain())

    async def adrain(self) -> Drained:
        """``drain`` in the running loop."""
        before = self._count(Place.ARCHIVE), self._count(Place.DLQ)
        await self.app.worker().serve(asyncio.Event(), burst=True)
        after = self._count(Place.ARCHIVE), self._count(Place.DLQ)
        return Drained(after[0] - before[0], after[1] - before[1], self._count(Place.HOT))

    def call(self, item: Item, *, attempt: int = 1, life: int = 1) -> Any:
        """Run a handler here and now with a real ``JobContext``; its answer comes back and its errors come out.

        ``item`` is what ``send_email.job(...)`` makes, or ``send_email.using(tags=["a"]).job(...)``. The arguments go
        through the payload, as they would. In async code: ``await acall(...)``.
        """
        run = self._run(item, attempt, life)
        if run.handler.kind == "async":
            return asyncio.run(_awaited(run))
        with _entered(run) as answer:
            return answer()

    async def acall(self, item: Item, *, attempt: int = 1, life: int = 1) -> Any:
        """``call`` in the running loop."""
        run = self._run(item, attempt, life)
        if run.handler.kind == "async":
            return await _awaited(run)
        with _entered(run) as answer:
            return answer()

    def _run(self, item: Item, attempt: int, life: int) -> Running:
        from redrive.domain.job import ClaimedJob
        from redrive.domain.marks import pack
        from redrive.worker.running import Running

        job = item.job
        handler = self.app.registry.get(job.type)
        if handler is None:
            raise InvalidField("item", f"nothing handles {job.type}", expected="a job of a handler of this application")
        claimed = ClaimedJob(
            id=job.id.bytes, lease=1, type=job.type, queue=job.queue, payload=job.payload,
            content_type=job.content_type, attempt=attempt, spent=attempt - 1, max_attempts=job.max_attempts, life=life,
            revision=1, priority=job.priority, marks=pack(job.tags, job.labels), trace_context=None, started=True,
            age=0.0, unserved=None,
        )  # fmt: skip
        return Running(claimed, handler)

    # -- asking --------------------------------------------------------------------------------------------------------

    @property
    def desk(self) -> Desk:
        """The operator service, as the actor ``test``."""
        return self.app.desk("test")

    def jobs(self, job: Job | None = None, place: Place = Place.HOT) -> list[JobRecord]:
        """The jobs of a place, of one type or of all, oldest first: up to 1,000."""
        wanted = JobFilter(place=place, type=None if job is None else _type(job))
        found: list[JobRecord] = []
        page = PageRequest(limit=200)
        while len(found) < 1000:
            answer = self.app.insight().jobs(wanted, page)
            found += [self.desk.get(head.id) for head in answer.jobs]
            if answer.next_cursor is None:
                break
            page = PageRequest(limit=200, cursor=answer.next_cursor)
        return sorted(found, key=lambda record: record.head.id)

    def assert_enqueued(
        self, job: Job, payload: Mapping[str, Any] | None = None, *, times: int | None = None, **head: Any
    ) -> list[JobRecord]:
        """The waiting jobs of a type that carry (at least) ``payload``; ``AssertionError`` where there is none.

        ``head`` are fields of ``JobHead``, such as ``queue="mail"`` or ``tags=("a",)``. ``times`` is how many there
        must be.
        """
        waiting = self.jobs(job)
        found = [record for record in waiting if _fits(record, payload or {}, head)]
        if bool(found) if times is None else len(found) == times:
            return found
        wanted = {**({} if payload is None else {"payload": dict(payload)}), **head}
        told = "".join(f"\n  {record.payload.decode(errors='replace')} {_shown(record, head)}" for record in waiting)
        raise AssertionError(
            f"{len(found)} jobs {_type(job)} with {wanted} wait, not {'any' if times is None else times};"
            f" of this type wait {len(waiting)}:{told}"
        )

    def refute_enqueued(self, job: Job, payload: Mapping[str, Any] | None = None, **head: Any) -> None:
        """``AssertionError`` if such a job waits."""
        self.assert_enqueued(job, payload, times=0, **head)

    def _count(self, place: Place) -> int:
        return self.app.insight().count(JobFilter(place=place)).number


def _folder() -> tempfile.TemporaryDirectory[str]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="redrive-test-", dir=memory)


@functools.cache
def _template() -> bytes:
    """An empty database, migrated once in this process."""
    from redrive import wiring

    with _folder() as folder:
        path = Path(folder) / "redrive.db"
        wiring.private_store(path, Clock().micros).close()
        return path.read_bytes()


@contextmanager
def _entered(run: Running) -> Iterator[Callable[[], Any]]:
    """The handler's function with its arguments, inside the application's middleware."""
    from redrive.worker.context import JobContext
    from redrive.worker.middleware import within

    binding, ctx = run.handler.binding, JobContext(run)
    given = () if binding.context is None else (ctx,)
    arguments = binding.bind(run.job.payload, run.job.content_type)
    with within(run.handler.around, ctx):
        yield functools.partial(run.handler.function, *given, **arguments)


async def _awaited(run: Running) -> Any:
    with _entered(run) as answer:
        return await answer()


def _type(job: Job) -> str:
    return job if isinstance(job, str) else job.type


def _fits(record: JobRecord, payload: Mapping[str, Any], head: Mapping[str, Any]) -> bool:
    if any(getattr(record.head, name) != value for name, value in head.items()):
        return False
    if not payload:
        return True
    try:
        carried = json.loads(record.payload)
    except ValueError:
        return False
    return isinstance(carried, dict) and all(name in carried and carried[name] == payload[name] for name in payload)


def _shown(record: JobRecord, head: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={getattr(record.head, name)!r}" for name in head)
