"""How a worker makes itself known: what it says of itself, and the patience with which it says so first."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

from redrive.domain.errors import Unavailable
from redrive.domain.schedule import Schedule, digest
from redrive.store.port import WorkerInfo

from .backoff import Backoff
from .hop import Hop
from .outages import Outage
from .registry import Registry
from .rest import rest


def info(
    worker_id: str,
    build: str,
    queues: tuple[str, ...],
    registry: Registry,
    concurrency: int,
    schedules: Sequence[Schedule],
) -> WorkerInfo:
    """What this process says of itself."""
    return WorkerInfo(
        id=worker_id,
        host=socket.gethostname(),
        pid=os.getpid(),
        build=build,
        queues=queues,
        types=registry.announcements(),
        concurrency=concurrency,
        schedules={schedule.name: digest(schedule.spec) for schedule in schedules},
    )


async def register(
    call: Callable[[], int], hop: Hop, stop: asyncio.Event, outage: Outage, *, patient: bool
) -> int | None:
    """The worker's slot; None when it was stopped while it waited for the database.

    A database that is away is an error, or with ``patient`` waited for.
    """
    backoff = Backoff()
    while True:
        try:
            slot = await hop(call)
        except Unavailable as error:
            if not patient:
                raise
            outage.failed("register", error)
            await rest(stop, backoff.next())
            if stop.is_set():
                return None
        else:
            outage.succeeded("register")
            return slot
