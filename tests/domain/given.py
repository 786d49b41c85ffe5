"""Plain values for the tests of the domain, with what does not matter filled in."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from redrive.domain.errors import PayloadError
from redrive.domain.job import JobHead
from redrive.domain.lifecycle import Run
from redrive.domain.outcome import ErrorReport
from redrive.domain.states import HotState, Place, Spot

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
JOB = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
HOLDER = UUID("01890a5d-ac96-774b-bcce-b302099a8058")
ERROR = ErrorReport("builtins.ValueError", "no such customer", "Traceback ...", "0123456789abcdef", 1)


def a_run(**but: Any) -> Run:
    """The first run of a job, just due, without a budget of its own."""
    return replace(Run(id=JOB.bytes, lease=7, spent=0, max_attempts=None, duration_ms=12, age=0.0), **but)


def a_job(spot: Spot = Spot.DLQ, **but: Any) -> JobHead:
    """A job at ``spot``, at version 5, in its first life."""
    hot = spot.value in set(HotState)
    head = JobHead(
        id=JOB,
        place=Place.HOT if hot else Place(spot.value),
        state=HotState(spot.value) if hot else None,
        type="email.send.v1",
        queue="default",
        priority=10,
        version=5,
        revision=1,
        life=1,
        attempt=0,
        spent=0,
        max_attempts=None,
        content_type="application/json",
        payload_size=2,
        tags=(),
        labels={},
        idempotency_key=None,
        lock_key=None,
        worker_id=None,
        due_at=NOW,
        created_at=NOW - timedelta(minutes=1),
        updated_at=NOW,
        life_started_at=NOW,
        created_by=None,
        modified_by=None,
    )
    return replace(head, **but)


def refusal_of(function, argument) -> Any:
    """The ``PayloadError`` with which ``function`` answers, or None when it does not refuse."""
    try:
        function(argument)
    except PayloadError as error:
        return error
    return None
