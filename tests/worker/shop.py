"""A worker at work on a real store, with the steps of a test in one word each."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine
from typing import Any, cast
from uuid import UUID

from uuid_utils.compat import uuid7

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.job import JobHead, JobRecord, NewJob
from redrive.domain.lifecycle import Wish
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Spot, Verb
from redrive.store.port import Store, WorkerPort
from redrive.worker.options import WorkerOptions
from redrive.worker.process import Worker
from redrive.worker.registry import Registry

from .make import TYPE, until


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An ``async def`` test."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Tampered:
    """A store whose calls a test can watch, delay or fail, before they are made or after they have had their effect."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: dict[str, Callable[..., object]] = {}
        self.after: dict[str, Callable[..., object]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if name in self.before:
                self.before[name](*args, **kwargs)
            answer = real(*args, **kwargs)
            if name in self.after:
                self.after[name](answer, *args, **kwargs)
            return answer

        return call


class Shop:
    """An application without its surface: handlers, a store, workers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.port = Tampered(store)
        self.registry = Registry(RetryPolicy(base=0, jitter=0))

    def on(self, type: str = TYPE, **declared: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the function below."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.registry.register(function, type, **declared)
            return function

        return register

    def worker(self, registry: Registry | None = None, **options: Any) -> Worker:
        """A worker whose rescues come only when a test wants them."""
        known: dict[str, Any] = {"heartbeat": 0.1, "poll": 0.05, "grace": 20.0, "async_slots": 10, "threads": 3}
        return Worker(
            cast(WorkerPort, self.port),
            self.registry if registry is None else registry,
            WorkerOptions(**(known | options)),
        )

    def drain(self, **options: Any) -> Worker:
        """Work until there is nothing left to do."""
        worker = self.worker(**options)
        asyncio.run(worker.serve(asyncio.Event(), burst=True))
        return worker

    def job(self, payload: bytes | dict[str, Any] = b"{}", type: str = TYPE, **but: Any) -> NewJob:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        known: dict[str, Any] = {"id": uuid7(), "type": type, "queue": "default", "payload": data}
        return NewJob(**(known | but))

    def enqueue(self, payload: bytes | dict[str, Any] = b"{}", type: str = TYPE, **but: Any) -> UUID:
        """Accept one job."""
        return self.store.enqueue([self.job(payload, type, **but)])[0].id

    def enqueue_many(self, number: int, type: str = TYPE, **but: Any) -> list[UUID]:
        return [one.id for one in self.store.enqueue([self.job({"n": n}, type, **but) for n in range(number)])]

    def head(self, job_id: UUID) -> JobHead:
        head = self.store.head(job_id)
        assert head is not None
        return head

    def record(self, job_id: UUID) -> JobRecord:
        record = self.store.find(job_id)
        assert record is not None
        return record

    async def is_in(self, job_id: UUID, spot: Spot) -> JobRecord:
        """The job, once it is in that spot."""
        await until(lambda: self.head(job_id).spot is spot)
        return self.record(job_id)

    def operate(self, verb: Verb, *ids: UUID) -> None:
        """An operator's action."""
        answers = self.store.operate(Wish(verb), [(i, None) for i in ids], AuditDraft(Actor("ann"), verb.value))
        assert all(answer.ok for answer in answers), answers

    def kept(self) -> bool:
        """Whether every promise is kept."""
        broken = [(result.title, result.number) for result in self.store.promises() if result.number]
        assert broken == []
        return True
