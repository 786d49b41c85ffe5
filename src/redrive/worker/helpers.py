"""The threads beside a worker's line: what each worker has, what some have, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redrive.store.port import WorkerPort

from .chores import Chore
from .hop import Hop
from .operations import OperationsChore, Round
from .options import WorkerOptions
from .outages import Outage
from .registry import Registry
from .rescue import Rescuer
from .wakeup import Wakeup

SIGN_OFF = 5.0
"""Seconds a helper has for its end, and a worker for telling the database that it is gone."""


Helper = Chore | Wakeup
"""A thread of a worker's."""


def tidying(
    store: WorkerPort,
    registry: Registry,
    options: WorkerOptions,
    outage: Outage,
    *,
    slot: int,
    seal: Callable[[], object] | None,
    operations: Round | None,
) -> list[Helper]:
    """What a worker does for all of them: rescue, and where it is wanted sealing, markers and bulk operations."""
    helpers: list[Helper] = []
    if seal is not None:
        helpers.append(Chore("sealer", options.heartbeat, seal, outage))
    helpers.append(Rescuer(store, registry.rules, options, outage, slot=slot, types=registry.types).chore)
    if any(handler.once is not None for handler in registry):
        helpers.append(Chore("markers", options.heartbeat, store.prune_marks, outage))
    if operations is not None:
        helpers.append(OperationsChore(operations, outage))
    return helpers


async def let_go(helpers: Sequence[Helper]) -> None:
    """End the helpers. Whoever hangs in the database is left behind: a daemon thread."""

    def join() -> None:
        for helper in helpers:
            helper.join(SIGN_OFF)

    for helper in helpers:
        helper.stop()
    goodbye = Hop("redrive-goodbye")
    await goodbye(join)
    goodbye.close()
