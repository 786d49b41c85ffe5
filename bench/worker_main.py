"""A real worker process at default settings, which says afterwards how long it took: `URL KIND [forever]`.

It is `redrive work --burst` with four lines around the store's claim and settle, which cost once per batch:

- the drain lasts from the first claim that brought jobs to the last settle that was answered;
- CPU is counted between the same two moments, all threads;
- `over` is by how many jobs the started ones ever exceeded the slots.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import structlog

from bench.child import answer, cpu, wait
from bench.jobs import Tally, application


class Watch:
    """Notes when the first job was taken and the last one settled."""

    def __init__(self, store: Any, tally: Tally) -> None:
        self.first: tuple[float, float] | None = None
        self.last = (0.0, 0.0)
        self.claims = self.settles = self.started = self.ahead = 0
        self._tally = tally
        self._claim, self._start, self._settle = store.claim, store.start, store.settle
        store.claim, store.start, store.settle = self.claim, self.start, self.settle

    def claim(self, request: Any) -> Any:
        before = (time.time(), cpu())
        jobs = self._claim(request)
        if jobs:
            self.first = self.first or before
            self.claims += 1
            self._begun(sum(job.started for job in jobs))
        return jobs

    def start(self, queues: Any, pairs: Any) -> Any:
        started = self._start(queues, pairs)
        self._begun(len(started))
        return started

    def settle(self, moves: Sequence[Any], **identity: Any) -> Any:
        answers = self._settle(moves, **identity)
        self.last = (time.time(), cpu())
        self.settles += 1
        return answers

    def _begun(self, number: int) -> None:
        self.started += number
        self.ahead = max(self.ahead, self.started - len(self._tally.ends))


def main(url: str, kind: str, *, forever: bool = False) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # as `redrive work` does
    tally = Tally()
    app, _ = application(url, kind, tally)
    store = app.store
    watch = Watch(store, tally)
    worker = app.worker()
    store.now()
    wait()
    worker.run(burst=not forever)
    first = watch.first or watch.last
    slots = sum(worker.runner.slots.values())
    answer(
        {
            "first": first[0],
            "last": watch.last[0],
            "cpu": watch.last[1] - first[1],
            "jobs": len(tally.ends),
            "slots": slots,
            "over": max(0, watch.ahead - slots, tally.peak - slots),
            "claims": watch.claims,
            "settles": watch.settles,
            "delays": tally.delays,
        }
    )
    sys.stdout.flush()
    os._exit(0)  # the idle connections end with it


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], forever=sys.argv[3:] == ["forever"])
