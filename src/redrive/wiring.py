"""The composition root: the only file that names concrete classes.

What a store or a worker stands on is imported where it is built: SQLAlchemy costs a quarter of a second, and neither a
module with handlers nor ``redrive --help`` needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from redrive.domain.errors import ConfigError

if TYPE_CHECKING:
    from redrive.config import Settings
    from redrive.domain.audit import Actor
    from redrive.domain.schedule import Schedule
    from redrive.ops.insight import Insight
    from redrive.ops.service import Desk
    from redrive.store.port import Store
    from redrive.worker.process import Worker
    from redrive.worker.registry import Registry


def open_store(settings: Settings, *, create: bool = True) -> Store:
    """The store of ``database.url``; ``create`` False where nobody means to make a new SQLite file."""
    url = settings.database.url
    if url is None:
        raise ConfigError(
            'database.url is not set: pass Redrive("sqlite:///redrive.db"), set REDRIVE_DATABASE_URL, '
            "or write it into redrive.toml under [database]"
        )
    from redrive.store.sql.store import open_store as open_sql

    database = settings.database
    return open_sql(url.reveal(), schema=database.schema_name, create=create, pooler=database.pooler)


def private_store(path: Path, micros: Callable[[], int]) -> Store:
    """The SQLite database at ``path``, made if need be, whose time is ``micros``, microseconds since 1970."""
    from redrive.store.sql.store import open_store as open_sql

    return open_sql(f"sqlite:///{path}", micros=micros)


def build_desk(store: Store, settings: Settings, actor: Actor | str) -> Desk:
    """The operator service."""
    from redrive.domain.lifecycle import shortest_lease
    from redrive.ops.service import Desk

    return Desk(
        store,
        actor,
        payload_limit=settings.limits.payload,
        shortest_timeout=shortest_lease(settings.worker.heartbeat),
        batch=settings.limits.batch,
    )


def build_insight(store: Store) -> Insight:
    """What faces read."""
    from redrive.ops.insight import Insight

    return Insight(store)


def build_worker(
    store: Store,
    registry: Registry,
    settings: Settings,
    *,
    queues: Sequence[str] | None = None,
    concurrency: int | None = None,
    schedules: Sequence[Schedule] = (),
    word: object = None,
    in_process: bool = True,
) -> Worker:
    """A worker of these handlers and schedules; ``queues`` and ``concurrency`` beat the settings.

    ``word`` is given to the handlers' ``adopt`` in the processes of isolated ones, if these are run ``in_process``.
    """
    from redrive.ops.operations import Runner
    from redrive.worker.options import WorkerOptions
    from redrive.worker.process import Worker

    given, recovery = settings.worker, settings.recovery
    options = WorkerOptions(
        queues=given.queues if queues is None else tuple(queues),
        async_slots=given.concurrency if concurrency is None else concurrency,
        threads=given.threads,
        isolated=given.isolated,
        heartbeat=given.heartbeat,
        zombie_timeout=recovery.zombie_timeout,
        fetched_timeout=recovery.fetched_timeout,
        poll=given.poll,
        grace=given.grace,
        unserved_timeout=given.unserved_timeout,
        stuck_limit=given.stuck_limit,
        build=given.build,
    )
    runner = Runner(store, batch=settings.limits.batch)
    return Worker(
        store, registry, options,
        seal=store.seal_audit, schedules=schedules, operations=runner.round, word=word, in_process=in_process,
    )  # fmt: skip
