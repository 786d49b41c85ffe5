"""Jobs of a type that no handler here serves: put off, in the end buried."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from redrive.domain.job import ClaimedJob
from redrive.domain.lifecycle import put_off, unserved_is_dead
from redrive.store.port import WorkerPort

from .options import WorkerOptions

log = structlog.get_logger("redrive.worker")


class Strangers:
    """Sets unknown jobs aside for workers that know them, and gives up those that nobody has known for too long."""

    def __init__(self, store: WorkerPort, options: WorkerOptions, worker_id: str, slot: int) -> None:
        self._store = store
        self._timeout = options.unserved_timeout
        self._alive_within = options.zombie_timeout
        self._worker_id = worker_id
        self._build = options.build
        self._slot = slot

    def refuse(self, jobs: Sequence[ClaimedJob]) -> None:
        """Give fetched jobs of unknown types back, each for a while, or bury them."""
        waited = {job.type for job in jobs if unserved_is_dead(job.unserved, self._timeout, announced=False)}
        known = self._store.announced(sorted(waited), alive_within=self._alive_within) if waited else frozenset()
        dead = [job for job in jobs if unserved_is_dead(job.unserved, self._timeout, announced=job.type in known)]
        if dead:
            log.warning("type-unserved", types=sorted({job.type for job in dead}), jobs=len(dead), dead=True)
            self._store.bury_unserved(
                [(job.id, job.lease) for job in dead], worker_id=self._worker_id, build=self._build, slot=self._slot
            )
        gone = {job.id for job in dead}
        rest = [put_off(job.id, job.lease, job.unserved) for job in jobs if job.id not in gone]
        if rest:
            log.info("type-unserved", types=sorted({job.type for job in jobs if job.id not in gone}), jobs=len(rest))
            self._store.give_back(rest)
