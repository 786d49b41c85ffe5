"""The application: declares handlers, accepts work, hands out the desk and the worker.

Importing this loads no SQLAlchemy and no pydantic: settings are read and the database is opened when they are first
needed, so that a module with handlers can be imported anywhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypeVar, Unpack, cast, overload

from uuid_utils.compat import uuid7

from redrive.domain.edits import check_key, check_name, check_word
from redrive.domain.errors import InvalidField, PayloadError
from redrive.domain.job import JSON, NewJob
from redrive.domain.schedule import CatchUp, Rhythm, Schedule, check_schedule
from redrive.handles import Given, Item, JobFunction, JobHandle, Keys, Options, R, always, check_options, new_job
from redrive.ops.inputs import exact
from redrive.ops.inputs import payload as payload_bytes

if TYPE_CHECKING:
    from redrive.config import Settings
    from redrive.domain.audit import Actor
    from redrive.domain.circuit import Breaker
    from redrive.domain.classify import Errors, Hook
    from redrive.domain.lifecycle import OnZombie
    from redrive.domain.once import Once
    from redrive.domain.policy import RetryPolicy, Seconds
    from redrive.ops.insight import Insight
    from redrive.ops.service import Desk
    from redrive.store.port import Store
    from redrive.worker.context import JobContext
    from redrive.worker.handler import Handler
    from redrive.worker.middleware import Middleware
    from redrive.worker.process import Worker
    from redrive.worker.registry import Registry

F = TypeVar("F", bound="JobFunction[..., ..., Any]")
M = TypeVar("M", bound="Middleware")


class Decorator(Protocol):
    """Makes a job of a function; the ``JobContext`` it may take first is no argument of an enqueue."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, Given], R], /
    ) -> JobFunction[Concatenate[JobContext, Given], Given, R]: ...
    @overload
    def __call__(self, function: Callable[Given, R], /) -> JobFunction[Given, Given, R]: ...


class Redrive:
    """One application. ``url`` and ``settings`` (tables, such as ``worker={"concurrency": 50}``) beat file and
    environment; ``config`` is the settings file, else REDRIVE_CONFIG or redrive.toml in the current folder.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        config: str | Path | None = None,
        classify: Hook | None = None,
        **settings: Mapping[str, Any],
    ) -> None:
        self._url = url
        self._config = config
        self._arguments = settings
        self._lock = threading.RLock()
        self._lent = False
        self._settings: Settings | None = None
        self._store: Store | None = None
        self._registry: Registry | None = None
        self._schedules: dict[str, Schedule] = {}
        self.classify = classify
        self.creates = True
        """Whether opening the store may make a new SQLite file; commands that only look say no."""
        if settings:
            from redrive.config import check

            check(settings)  # a wrong argument is reported where it is written

    # -- what it stands on ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in force, read when first asked for."""
        with self._lock:
            if self._settings is None:
                from redrive import config

                self._settings = config.load(self._url, self._arguments, file=self._config)
            return self._settings

    @property
    def store(self) -> Store:
        """The store, opened when first asked for."""
        with self._lock:
            if self._store is None:
                from redrive import wiring

                self._store = wiring.open_store(self.settings, create=self.creates)
            return self._store

    @property
    def registry(self) -> Registry:
        """The handlers. Made when the first is declared, which reads the settings: they hold the default policy."""
        with self._lock:
            if self._registry is None:
                from redrive.worker.registry import Registry

                settings = self.settings
                self._registry = Registry(settings.retry.policy(), settings.timeouts.handler, settings.limits.result)
            return self._registry

    def _open(self) -> Store:
        return self.store

    def override(self, *, url: str | None = None, config: str | Path | None = None, **settings: Any) -> None:
        """Settings that beat those of the constructor: for whoever starts the application, such as a command line."""
        with self._lock:
            self.close()
            self._url = url or self._url
            self._config = config or self._config
            merged = {table: {**self._arguments.get(table, {}), **keys} for table, keys in settings.items()}
            self._arguments = {**self._arguments, **merged}
            self._settings = None

    def stand_on(self, store: Store | None) -> Store | None:
        """Use this open store instead of that of the settings; the answer is the one before. None: as the settings say.

        For tests; see ``redrive.testing``. Isolated handlers run in threads then: no other process could use it.
        """
        with self._lock:
            before, self._store = self._store, store
            self._lent = store is not None
            return before

    def adopt(self, job_type: str, word: Any) -> Handler:
        """The handler of a type, in a process whose worker's application has the settings ``word``."""
        with self._lock:
            if word != (self._url, self._config, self._arguments):
                self.close()
                self._url, self._config, self._arguments = word
                self._settings = None
        handler = self.registry.get(job_type)
        assert handler is not None, "a job function is made when its handler is registered"
        return handler

    def close(self) -> None:
        """Let go of the database; it is opened again when needed."""
        with self._lock:
            if self._store is not None:
                self._store.close()
                self._store = None

    # -- handlers ------------------------------------------------------------------------------------------------------

    def job(
        self,
        type: str,
        *,
        queue: str = "default",
        retry: RetryPolicy | None = None,
        timeout: Seconds | None = None,
        idempotent: bool = False,
        on_zombie: OnZombie = "bury",
        aliases: Sequence[str] = (),
        fatal: Errors = (),
        transient: Errors = (),
        classify: Hook | None = None,
        backoff: Callable[[int], Seconds] | None = None,
        isolation: str | None = None,
        keep_result: bool = True,
        owner: str | None = None,
        key: Callable[..., str | None] | None = None,
        breaker: Breaker | None = None,
        once: Once | Callable[..., str | None] | None = None,
        lock_key: str | Callable[..., str | None] | None = None,
    ) -> Decorator:
        """Declare the function below as the handler of ``type``, the stable key that stored jobs carry.

        ``backoff`` answers the wait after so many charged attempts; ``fatal`` and ``transient`` are exception classes,
        ``classify`` is asked before them; ``owner`` is who to ask about its dead jobs. ``isolation="process"`` runs a
        ``def`` handler in a process of its own, where a timeout and a crash hit nothing else.
        ``key`` makes the idempotency key of an enqueue from (some of) its arguments, such as
        ``key=lambda order_id: f"order-{order_id}"``. ``once``
        makes the key of a completion marker at each run: work that another job has completed, or is doing, is skipped;
        ``Once(key, keep=..., scope=...)`` says for how long, 7 days by default.
        ``breaker`` keeps its jobs off while a dependency fails; see ``Breaker``.
        ``lock_key`` is text or made likewise: of all jobs with one lock key, whatever their types, at most one runs.
        """
        if not isinstance(type, str):  # @app.job without its parentheses
            raise InvalidField("type", "a function, not a name", expected='@app.job("email.send.v1")')
        declared: dict[str, Any] = {
            "queue": queue,
            "retry": retry,
            "timeout": timeout,
            "idempotent": idempotent,
            "on_zombie": on_zombie,
            "aliases": aliases,
            "fatal": fatal,
            "transient": transient,
            "classify": classify or self.classify,
            "backoff": backoff,
            "isolation": isolation,
            "keep_result": keep_result,
            "owner": owner,
            "breaker": breaker,
            "once": once,
        }

        def decorate(function: Callable[..., Any]) -> JobFunction[..., ..., Any]:
            handler = self.registry.register(function, type, **declared)
            from redrive.worker.keys import Key

            made = lock = None
            if key is not None:
                made = Key(function, handler.binding.context, key)
            if isinstance(lock_key, str):
                lock = always(check_key(lock_key, "lock_key"))
            elif lock_key is not None:
                lock = Key(function, handler.binding.context, lock_key, "lock_key")
            keys = Keys(made, lock)
            return JobFunction(function, self, handler.type, handler.queue, handler.binding.dump, keys)

        return cast("Decorator", decorate)

    def middleware(self, function: M) -> M:
        """Let the generator function below stand around every run of every handler.

        It is given the run's ``JobContext`` and yields once: ``def timed(ctx): ...; yield; ...``. The handler's error
        comes out of the ``yield``; it may be replaced by another, which is then classified, but not be kept: the run
        has failed. The first declared is the outermost. It runs where the handler runs: for ``async def`` handlers in
        the event loop, so it must not block; for ``def`` handlers in their thread, or their process.
        """
        from redrive.worker.middleware import check_middleware

        self.registry.around.append(check_middleware(function))
        return function

    # -- schedules -----------------------------------------------------------------------------------------------------

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        catch_up: CatchUp = "latest",
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Callable[[F], F]:
        """Enqueue the job function below when a clock in ``tz`` shows what ``expression`` says, in five fields.

        ``name`` is the type where none is given. ``catch_up`` says what becomes of slots that were missed: the
        "latest" is enqueued, "none" is, or "all" are, up to 100. ``arguments`` are the handler's; its job carries the
        labels ``schedule`` and ``slot``. Put it above ``@app.job``.
        """
        from redrive.worker import crontab

        return self._periodic(crontab.cron(expression, tz), name, catch_up, arguments, options)

    def every(
        self,
        interval: timedelta | float,
        *,
        name: str | None = None,
        catch_up: CatchUp = "latest",
        arguments: Mapping[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> Callable[[F], F]:
        """``cron`` by an interval (whole seconds): at its multiples since 1970-01-01 00:00 UTC, an hour on the hour."""
        from redrive.worker import crontab

        return self._periodic(crontab.every(interval), name, catch_up, arguments, options)

    def _periodic(
        self,
        rhythm: tuple[Rhythm, Mapping[str, Any]],
        name: str | None,
        catch_up: CatchUp,
        arguments: Mapping[str, Any] | None,
        options: Options,
    ) -> Callable[[F], F]:
        def decorate(function: F) -> F:
            if not isinstance(function, JobFunction):
                raise InvalidField("handler", f"{function!r} is no job", expected="a schedule above its @app.job")
            template = function.using(**options).job(**(arguments or {})).job
            made = check_schedule(Schedule(name or function.type, *rhythm, catch_up, template))
            if made.name in self._schedules:
                raise InvalidField("name", f"{made.name} is taken", expected="a name of its own for each schedule")
            self._schedules[made.name] = made
            return function

        return decorate

    # -- accepting work ------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        type: str,
        payload: Mapping[str, Any],
        *,
        connection: object | None = None,
        **options: Unpack[Options],
    ) -> JobHandle:
        """Accept one job by its type, without the handler's code; ``payload`` is what JSON can hold exactly."""
        return self.send([self.item(type, payload, **options).job], connection)[0]

    async def aenqueue(
        self, type: str, payload: Mapping[str, Any], *, connection: object | None = None, **options: Unpack[Options]
    ) -> JobHandle:
        """``enqueue`` without blocking the loop."""
        return (await self.asend([self.item(type, payload, **options).job], connection))[0]

    def enqueue_raw(
        self,
        type: str,
        payload: bytes | str,
        *,
        content_type: str = JSON,
        connection: object | None = None,
        **options: Unpack[Options],
    ) -> JobHandle:
        """Accept one job whose payload is stored as these very bytes, readable or not."""
        return self.send([self._raw(type, payload, content_type, options)], connection)[0]

    async def aenqueue_raw(
        self,
        type: str,
        payload: bytes | str,
        *,
        content_type: str = JSON,
        connection: object | None = None,
        **options: Unpack[Options],
    ) -> JobHandle:
        """``enqueue_raw`` without blocking the loop."""
        return (await self.asend([self._raw(type, payload, content_type, options)], connection))[0]

    def item(self, type: str, payload: object, **options: Unpack[Options]) -> Item:
        """One job for ``enqueue_many``, by its type; checked and written down now."""
        if not isinstance(payload, Mapping):
            raise InvalidField("payload", f"a {payload.__class__.__name__}", expected="names with values")
        return Item(self.prepare(type, self._queue(type), exact(payload), JSON, check_options(options)))

    def enqueue_many(
        self, items: Iterable[Item | tuple[str, Mapping[str, Any]]], *, connection: object | None = None
    ) -> list[JobHandle]:
        """Accept all jobs or none. Items come from a handler's ``.job(...)``, from ``item``, or are (type, payload)."""
        return self.send(self._many(items), connection)

    async def aenqueue_many(
        self, items: Iterable[Item | tuple[str, Mapping[str, Any]]], *, connection: object | None = None
    ) -> list[JobHandle]:
        """``enqueue_many`` without blocking the loop."""
        return await self.asend(self._many(items), connection)

    def _many(self, items: Iterable[object]) -> list[NewJob]:
        jobs: list[NewJob] = []
        for number, item in enumerate(items):
            try:
                if isinstance(item, Item):
                    jobs.append(item.job)
                elif isinstance(item, tuple) and len(item) == 2:
                    jobs.append(self.item(*item).job)
                else:
                    raise InvalidField("item", repr(item)[:60], expected="job(...), item(...) or (type, payload)")
            except InvalidField as error:
                raise _within(f"items[{number}]", error) from None
        seen: dict[object, int] = {}
        for number, job in enumerate(jobs):
            if (first := seen.setdefault(job.id, number)) != number:
                raise InvalidField(f"items[{number}]", f"is items[{first}] again", expected="each item once")
        return jobs

    def _raw(self, type: str, payload: object, content_type: str, options: Options) -> NewJob:
        if not isinstance(payload, bytes | bytearray | memoryview | str):
            raise InvalidField("payload", f"a {payload.__class__.__name__}", expected="bytes, or text")
        kind = check_word("content_type", content_type)
        return self.prepare(type, self._queue(type), payload_bytes(payload), kind, check_options(options))

    def _queue(self, type: str) -> str:
        handler = None if self._registry is None else self._registry.get(check_name("type", type))
        return "default" if handler is None else handler.queue

    # -- for decorated functions (``handles.Outlet``) ------------------------------------------------------------------

    def prepare(self, job_type: str, queue: str, payload: bytes, content_type: str, options: Options) -> NewJob:
        """A job with a fresh id; the options were checked."""
        limit = self.settings.limits.payload
        return new_job(uuid7(), check_name("type", job_type), queue, payload, content_type, options, limit=limit)

    def send(self, jobs: Sequence[NewJob], connection: object | None) -> list[JobHandle]:
        """Hand jobs to the store: all of them or none."""
        if not jobs:
            return []
        accepted = self.store.enqueue(jobs, connection=connection)
        return [JobHandle(one.id, one.duplicate, self._open) for one in accepted]

    async def asend(self, jobs: Sequence[NewJob], connection: object | None) -> list[JobHandle]:
        """``send`` with one thread hop; with a ``connection`` without, for that belongs to this thread or loop."""
        if connection is not None:
            accepted = await self.store.aenqueue(jobs, connection=connection)
            return [JobHandle(one.id, one.duplicate, self._open) for one in accepted]
        return await asyncio.to_thread(self.send, jobs, None)

    # -- services ------------------------------------------------------------------------------------------------------

    def desk(self, actor: Actor | str) -> Desk:
        """The operator service, acting in the name of ``actor``."""
        from redrive import wiring

        return wiring.build_desk(self.store, self.settings, actor)

    def insight(self) -> Insight:
        """What faces read."""
        from redrive import wiring

        return wiring.build_insight(self.store)

    def worker(self, *, queues: Sequence[str] | None = None, concurrency: int | None = None) -> Worker:
        """A worker for this application's handlers: ``run()`` it in the main thread, or ``async with`` it."""
        from redrive import wiring

        return wiring.build_worker(
            self.store, self.registry, self.settings,
            queues=queues, concurrency=concurrency, schedules=tuple(self._schedules.values()),
            word=(self._url, self._config, self._arguments), in_process=not self._lent,
        )  # fmt: skip


def _within(where: str, error: InvalidField) -> InvalidField:
    """The same refusal, said of one item of many."""
    field = f"{where}.{error.field}" if error.field != "item" else where
    if isinstance(error, PayloadError):
        return PayloadError(
            error.problem, field=field, expected=error.expected, code=error.code,
            offset=error.offset, line=error.line, column=error.column,
        )  # fmt: skip
    return InvalidField(field, error.problem, expected=error.expected, code=error.code)
