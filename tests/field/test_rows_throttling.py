"""Field reports about peers that say when to come again: what they said is kept, and nothing they say can hurt."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
import requests

from redrive import Reason, Redrive, RetryPolicy, Spot
from redrive.domain.filters import JobFilter, PageRequest
from redrive.domain.states import Place
from tests.field.draining import drain

POLICY = RetryPolicy(max_attempts=5, base=3, jitter=20)
TEN_YEARS = 10 * 365 * 86400


def told_by_httpx(status: int, retry_after: str) -> None:
    request = httpx.Request("GET", "http://peer.example/")
    httpx.Response(status, headers={"Retry-After": retry_after}, request=request).raise_for_status()


def told_by_requests(status: int, retry_after: str) -> None:
    response = requests.Response()
    response.status_code = status
    response.headers["Retry-After"] = retry_after
    response.raise_for_status()


TOLD_BY = {"httpx": told_by_httpx, "requests": told_by_requests}


def in_seconds(seconds: int) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


USUAL = (3, 23)
"""Seconds that the policy waits after the first attempt, jitter included."""
SAID = {
    "60": (60, 80),
    "a date in a minute": (58, 80),  # a date has whole seconds, and some time passes until it is read
    "a date that has passed": USUAL,
    "0": USUAL,
    "-5": USUAL,
    "soon": USUAL,
    "1e9": USUAL,
    "": USUAL,
}


def test_row_43_what_was_stated_is_never_shortened(app: Redrive):
    """Jitter was applied to the stated time and could shorten it. Past and garbage are the usual backoff."""

    @app.job("call.v1", retry=POLICY)
    async def call(client: str, said: str) -> None:
        dates = {"a date in a minute": in_seconds(60), "a date that has passed": in_seconds(-3600)}
        TOLD_BY[client](429, dates.get(said, said))

    jobs = {(client, said): call.enqueue(client, said).id for client in TOLD_BY for said in SAID}
    drain(app)
    for (client, said), job_id in jobs.items():
        record = app.desk("reader").get(job_id)
        wait = (record.head.due_at - record.ledger[0].ended_at).total_seconds()
        least, most = SAID[said]
        assert least <= wait <= most + 0.001, (client, said)
        assert (record.head.spot, record.head.attempt, record.head.spent) == (Spot.SCHEDULED, 1, 1)


@pytest.mark.slow
def test_row_43_a_thousand_jobs_with_the_same_value(app: Redrive):
    @app.job("call.v1", retry=POLICY)
    async def call(n: int) -> None:
        told_by_httpx(503, "60")

    app.enqueue_many([call.job(n) for n in range(1000)])
    drain(app)
    waiting = app.store.list_jobs(JobFilter(place=Place.HOT, type="call.v1"), PageRequest(1000)).jobs
    assert len(waiting) == 1000
    waits = [(head.due_at - head.updated_at).total_seconds() for head in waiting]
    assert min(waits) >= 60
    assert max(waits) <= 80.001
    assert max(waits) - min(waits) > 10, "they do not come all at once"


@pytest.mark.parametrize("said", [str(TEN_YEARS), "a date"])
def test_row_43_beyond_the_lifetime_of_the_job(app: Redrive, said: str):
    @app.job("call.v1", retry=POLICY)
    async def call() -> None:
        told_by_httpx(429, in_seconds(TEN_YEARS) if said == "a date" else said)

    job = call.enqueue()
    drain(app)
    assert app.desk("reader").get(job.id).head.reason is Reason.RETRY_LIFETIME_EXPIRED


@pytest.mark.slow
def test_row_43_told_to_slow_down_until_the_budget_is_used(app: Redrive):
    @app.job("call.v1", retry=RetryPolicy(max_attempts=2, base=0, jitter=0))
    async def call() -> None:
        told_by_httpx(429, "0")

    job = call.enqueue()
    drain(app)
    head = app.desk("reader").get(job.id).head
    assert (head.reason, head.attempt) == (Reason.THROTTLED, 2)
