"""What an application holds of its work: the decorated function, options of an enqueue, and the handle it answers."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack
from uuid import UUID

from redrive.domain.edits import check_key, check_labels, check_name, check_priority, check_tags, check_word
from redrive.domain.errors import Conflict, InvalidField, NotFound, PayloadError, RedriveError
from redrive.domain.failures import Reason
from redrive.domain.job import JSON, PRIORITY_DEFAULT, NewJob
from redrive.domain.states import Place, Spot
from redrive.ops.inputs import due
from redrive.store.port import Store


class NotFinished(Conflict):
    """The job has no result yet."""

    code = "not-finished"


class JobDied(RedriveError):
    """The job is in the dead letter queue, so there is no result; ``reason`` says why."""

    code = "job-died"

    def __init__(self, job_id: UUID, reason: Reason | None, error: str) -> None:
        self.reason = reason
        super().__init__(f"job {job_id} is dead ({reason}): {error}")


class Options(TypedDict, total=False):
    """What can be said about one enqueue. ``run_after``: seconds, a timedelta, or a datetime with a time zone."""

    queue: str
    priority: int
    run_after: datetime | timedelta | float
    idempotency_key: str | None
    lock_key: str | None
    tags: Sequence[str]
    labels: Mapping[str, str]
    max_attempts: int | None
    created_by: str | None


def check_options(options: Options) -> Options:
    """The options with every value checked and in the form that is stored."""
    unknown = sorted(options.keys() - Options.__annotations__.keys())
    if unknown:
        raise TypeError(f"{unknown[0]!r} is no option of an enqueue; there are {', '.join(Options.__annotations__)}")
    checked: Options = {}
    if "queue" in options:
        checked["queue"] = check_name("queue", options["queue"])
    if "priority" in options:
        checked["priority"] = check_priority(options["priority"])
    if (moment := due(options.get("run_after"))) is not None:
        checked["run_after"] = moment
    if "idempotency_key" in options:  # None is said, too: no key, whatever the handler's ``key=`` would make
        key = options["idempotency_key"]
        checked["idempotency_key"] = None if key is None else check_key(key)
    if "lock_key" in options:  # the same
        lock = options["lock_key"]
        checked["lock_key"] = None if lock is None else check_key(lock, "lock_key")
    if "tags" in options:
        checked["tags"] = check_tags(options["tags"])
    if "labels" in options:
        checked["labels"] = check_labels(options["labels"])
    if (budget := _budget(options.get("max_attempts"))) is not None:
        checked["max_attempts"] = budget
    if (creator := options.get("created_by")) is not None:
        checked["created_by"] = check_word("created_by", creator)
    return checked


def _budget(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000):
        return value
    raise InvalidField("max_attempts", f"{value!r}", expected="a whole number from 0 to 1000000, or None")


def new_job(
    identity: UUID, job_type: str, queue: str, payload: bytes, content_type: str, options: Options, *, limit: int
) -> NewJob:
    """A job to accept. ``options`` were checked; ``limit`` is the most bytes a payload may have."""
    if len(payload) > limit:
        raise PayloadError(
            f"{len(payload)} bytes", code="payload-too-large", expected=f"at most {limit} bytes (limits.payload)",
            offset=limit,
        )  # fmt: skip
    moment = options.get("run_after")
    return NewJob(
        id=identity,
        type=job_type,
        queue=options.get("queue", queue),
        payload=payload,
        content_type=content_type,
        priority=options.get("priority", PRIORITY_DEFAULT),
        due=moment if isinstance(moment, datetime | timedelta) else None,
        tags=tuple(options.get("tags", ())),
        labels=options.get("labels", {}),
        idempotency_key=options.get("idempotency_key"),
        lock_key=options.get("lock_key"),
        max_attempts=options.get("max_attempts"),
        created_by=options.get("created_by"),
    )


class JobHandle:
    """One piece of accepted work. ``duplicate``: a live job held the idempotency key, and ``id`` is that job's."""

    __slots__ = ("_store", "duplicate", "id")

    def __init__(self, job_id: UUID, duplicate: bool, store: Callable[[], Store]) -> None:
        self.id = job_id
        self.duplicate = duplicate
        self._store = store

    def __repr__(self) -> str:
        return f"JobHandle({self.id}{', duplicate' if self.duplicate else ''})"

    def status(self) -> Spot:
        """Where the job is now; ``nowhere`` when it was purged (or its transaction has not committed)."""
        head = self._store().head(self.id)
        return Spot.NOWHERE if head is None else head.spot

    async def astatus(self) -> Spot:
        """``status`` without blocking the loop."""
        return await asyncio.to_thread(self.status)

    def wait(self, timeout: float | None = None) -> Spot:
        """Block until the job succeeded (``archive``) or died (``dlq``); ``TimeoutError`` after ``timeout`` seconds."""
        for pause in self._pauses(timeout):
            if (spot := self._ended()) is not None:
                return spot
            time.sleep(pause)
        raise TimeoutError(f"job {self.id} has not ended within {timeout:g} seconds")

    async def await_end(self, timeout: float | None = None) -> Spot:
        """``wait`` without blocking the loop."""
        for pause in self._pauses(timeout):
            if (spot := await asyncio.to_thread(self._ended)) is not None:
                return spot
            await asyncio.sleep(pause)
        raise TimeoutError(f"job {self.id} has not ended within {timeout:g} seconds")

    def result(self) -> object:
        """What the handler returned, if the job succeeded; raises ``NotFinished``, ``JobDied`` or ``NotFound``."""
        record = self._store().find(self.id)
        if record is None:
            raise NotFound("job", self.id)
        if record.head.place is Place.DLQ:
            raise JobDied(self.id, record.head.reason, record.head.error_message or "")
        if record.head.place is Place.HOT:
            raise NotFinished(f"job {self.id} is {record.head.spot}: wait() for it first")
        return None if record.result is None else json.loads(record.result)

    async def aresult(self) -> object:
        """``result`` without blocking the loop."""
        return await asyncio.to_thread(self.result)

    def _ended(self) -> Spot | None:
        spot = self.status()
        if spot is Spot.NOWHERE:
            raise NotFound("job", self.id)
        return spot if spot in (Spot.ARCHIVE, Spot.DLQ) else None

    def _pauses(self, timeout: float | None) -> Iterator[float]:
        """Waits that grow from 10 ms to a second, and a last look when the time is over."""
        end = None if timeout is None else time.monotonic() + timeout
        pause = 0.01
        while end is None or (left := end - time.monotonic()) > 0:
            yield pause if end is None else min(pause, left)
            pause = min(1.0, pause * 1.5)
        yield 0.0


# -- the decorated function --------------------------------------------------------------------------------------------

Whole = ParamSpec("Whole")
"""Every parameter of the handler, the context included."""
Given = ParamSpec("Given")
"""Its parameters without the context: what an enqueue takes."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Item:
    """A job that is checked and ready for ``app.enqueue_many``; each item is one job, and is enqueued once."""

    job: NewJob


class Outlet(Protocol):
    """What a decorated function needs of its application."""

    def prepare(self, job_type: str, queue: str, payload: bytes, content_type: str, options: Options) -> NewJob:
        """A job with a fresh id; the options were checked."""
        ...

    def send(self, jobs: Sequence[NewJob], connection: object | None) -> list[JobHandle]:
        """Hand jobs to the store."""
        ...

    async def asend(self, jobs: Sequence[NewJob], connection: object | None) -> list[JobHandle]:
        """Hand jobs to the store without blocking the loop."""
        ...

    def adopt(self, job_type: str, word: Any) -> Any:
        """The handler, in a process for isolated ones; ``word`` is from the worker's application."""
        ...


Dump = Callable[[tuple[Any, ...], dict[str, Any]], bytes]
"""Arguments as a payload."""
MakeKey = Callable[[tuple[Any, ...], dict[str, Any]], str | None]
"""A key of arguments that were accepted."""


@dataclass(frozen=True, slots=True)
class Keys:
    """What a handler makes the keys of an enqueue with, where its options name none."""

    idempotency: MakeKey | None = None
    lock: MakeKey | None = None


NO_KEYS = Keys()


def always(key: str) -> MakeKey:
    """The same key whatever the arguments."""
    return lambda _args, _kwargs: key


class Using(Generic[Given]):
    """A handler's enqueue with options set."""

    def __init__(
        self,
        outlet: Outlet,
        job_type: str,
        queue: str,
        dump: Dump,
        options: Options,
        connection: object | None = None,
        keys: Keys = NO_KEYS,
    ) -> None:
        self._outlet = outlet
        self._type = job_type
        self._queue = queue
        self._dump = dump
        self._options = options
        self._connection = connection
        self._keys = keys

    def using(self, *, connection: object | None = None, **options: Unpack[Options]) -> Using[Given]:
        """The same with (more) options. ``connection`` makes the enqueue part of the caller's transaction.

        ``idempotency_key`` and ``lock_key`` beat the handler's ``key=`` and ``lock_key=``; None is no key.
        """
        merged: Options = {**self._options, **check_options(options)}
        connection = connection or self._connection
        return Using(self._outlet, self._type, self._queue, self._dump, merged, connection, self._keys)

    def enqueue(self, /, *args: Given.args, **kwargs: Given.kwargs) -> JobHandle:
        """Accept one job with these arguments."""
        return self._outlet.send([self._new(args, kwargs)], self._connection)[0]

    async def aenqueue(self, /, *args: Given.args, **kwargs: Given.kwargs) -> JobHandle:
        """``enqueue`` without blocking the loop."""
        return (await self._outlet.asend([self._new(args, kwargs)], self._connection))[0]

    def job(self, /, *args: Given.args, **kwargs: Given.kwargs) -> Item:
        """One job with these arguments for ``app.enqueue_many``; the arguments are checked and written down now."""
        return Item(self._new(args, kwargs))

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        payload, options = self._dump(args, kwargs), self._options
        keys = self._keys
        if keys.idempotency is not None and "idempotency_key" not in options:
            options = {**options, "idempotency_key": keys.idempotency(args, kwargs)}
        if keys.lock is not None and "lock_key" not in options:
            options = {**options, "lock_key": keys.lock(args, kwargs)}
        return self._outlet.prepare(self._type, self._queue, payload, JSON, options)


class JobFunction(Using[Given], Generic[Whole, Given, R]):
    """A handler: still callable as the plain function it was, and able to be enqueued."""

    __name__: str

    def __init__(
        self,
        function: Callable[Whole, R],
        outlet: Outlet,
        job_type: str,
        queue: str,
        dump: Dump,
        keys: Keys = NO_KEYS,
    ) -> None:
        super().__init__(outlet, job_type, queue, dump, {}, keys=keys)
        self._function = function
        self.type = job_type
        functools.update_wrapper(self, function)

    def adopt(self, word: Any) -> Any:
        """Its handler, for the process that runs it; ``word`` are the settings of the worker's application."""
        return self._outlet.adopt(self.type, word)

    def __call__(self, /, *args: Whole.args, **kwargs: Whole.kwargs) -> R:
        """Run the function here and now, without a job."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.type!r}: {getattr(self._function, '__qualname__', self._function)}>"
