"""A burst ends when nothing is left to do, not a moment earlier."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from redrive import Place, Redrive, RetryPolicy, Spot
from tests.faults.waiting import until


@pytest.mark.slow
def test_a_retry_that_is_settled_during_the_last_claim_is_still_run(database_url: str, monkeypatch: Any):
    """The claim found nothing while the job was running; when it answered, the job was due again."""
    app = Redrive(database_url)
    gate = threading.Event()
    runs: list[int] = []

    @app.job("flaky.v1", retry=RetryPolicy(max_attempts=2, base=0, jitter=0))
    def flaky() -> None:
        runs.append(1)
        if len(runs) == 1:
            assert gate.wait(30)
            raise ConnectionError("away")

    store, promoted = app.store, False
    promote, claim = store.promote, store.claim

    def promoting() -> Any:
        nonlocal promoted
        promoted = True
        return promote()

    def claiming(request: Any) -> Any:
        nonlocal promoted
        jobs = claim(request)
        if not jobs and promoted and not gate.is_set():
            gate.set()
            until(lambda: job.status() is Spot.SCHEDULED and not worker.runner.held)
        promoted = False
        return jobs

    monkeypatch.setattr(store, "promote", promoting)
    monkeypatch.setattr(store, "claim", claiming)
    with contextlib.closing(app):
        worker = app.worker()
        job = flaky.enqueue()
        asyncio.run(worker.serve(asyncio.Event(), burst=True))
        assert app.desk("reader").get(job.id).head.place is Place.ARCHIVE
        assert len(runs) == 2
