"""Handlers, claimed jobs and runs with what does not matter filled in."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any

from uuid_utils.compat import uuid7

from redrive.domain.job import ClaimedJob
from redrive.domain.outcome import Outcome
from redrive.worker.handler import Handler
from redrive.worker.registry import Registry
from redrive.worker.run_one import run_async, run_sync
from redrive.worker.running import Running, Stop

TYPE = "work.v1"


def shown(item: object) -> str:
    """An id of a parameter that is the same in every process."""
    return re.sub(r" at 0x\w+", "", repr(item))[:50]


def handler(function: Callable[..., Any], **declared: Any) -> Handler:
    """A registered handler."""
    return Registry().register(function, declared.pop("type", TYPE), **declared)


def claimed(payload: bytes | dict[str, Any] = b"{}", **but: Any) -> ClaimedJob:
    """A job as a claim answers it, started."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    known: dict[str, Any] = {
        "id": uuid7().bytes, "lease": 7, "type": TYPE, "queue": "default", "payload": data,
        "content_type": "application/json", "attempt": 1, "spent": 0, "max_attempts": None, "life": 1, "revision": 1,
        "priority": 10, "marks": None, "trace_context": None, "started": True, "age": 0.0, "unserved": None,
        "claimed_at": time.monotonic(),
    }  # fmt: skip
    return ClaimedJob(**(known | but))


def run_of(function: Callable[..., Any], payload: bytes | dict[str, Any] = b"{}", **declared: Any) -> Running:
    """A run that has not begun."""
    return Running(claimed(payload), handler(function, **declared))


def outcome_of(function: Callable[..., Any], payload: bytes | dict[str, Any] = b"{}", **declared: Any) -> Outcome:
    """How one run of ``function`` ends, whichever kind of handler it is."""
    return outcome(run_of(function, payload, **declared))


def outcome(run: Running) -> Outcome:
    if run.handler.kind == "thread":
        return run_sync(run)
    ends: list[Outcome] = []

    async def main() -> None:
        await asyncio.create_task(run_async(run, lambda _, end: ends.append(end)))

    asyncio.run(main())
    (end,) = ends
    return end


def stopped_outcome(run: Running, reason: Stop, entered: Callable[[], bool]) -> Outcome:
    """How a run ends that the engine tells to stop once ``entered`` is true."""
    ends: list[Outcome] = []

    async def main() -> None:
        task = asyncio.create_task(run_async(run, lambda _, end: ends.append(end)))
        await until(entered)
        run.stop = reason
        task.cancel()
        await task

    asyncio.run(main())
    (end,) = ends
    return end


async def until(condition: Callable[[], Any], within: float = 30.0) -> None:
    """Until ``condition`` is true, looking again and again: for what has no event to wait for."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
