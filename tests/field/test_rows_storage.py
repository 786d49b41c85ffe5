"""Field reports about storing: keys under races, sizes, and wake-ups. Row 62, many writers, is in ``tests/faults``."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from redrive import JobFilter, JobHandle, Place, Redrive, Spot
from tests.faults.evidence import Evidence
from tests.faults.serving import serving
from tests.faults.waiting import until

CALLERS, ROUNDS = 12, 8


def test_row_49_one_key_enqueued_by_many_at_once(database_url: str):
    """Two processes passed the check together, and both enqueued."""
    race(database_url, callers=CALLERS, rounds=ROUNDS, apps=3)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_row_49_one_key_enqueued_by_fifty_at_once(database_url: str):
    """The report's own numbers: 50 callers, 200 rounds."""
    race(database_url, callers=50, rounds=200, apps=50)


def race(url: str, *, callers: int, rounds: int, apps: int) -> None:
    """Each round one key, at a barrier; half of the callers with bulks. Applications share no connection."""
    all_apps = [Redrive(url) for _ in range(apps)]
    barrier = threading.Barrier(callers)

    def call(number: int) -> list[JobHandle]:
        app, answers = all_apps[number % apps], []
        for turn in range(rounds):
            barrier.wait(60)
            if number % 2:
                answers.append(app.enqueue("keyed.v1", {"n": number}, idempotency_key=f"key {turn}"))
            else:
                item = app.item("keyed.v1", {"n": number}, idempotency_key=f"key {turn}")
                answers.append(app.enqueue_many([item])[0])
        return answers

    with ThreadPoolExecutor(callers) as pool:
        answers = list(pool.map(call, range(callers)))
    for turn in range(rounds):
        handles = [of[turn] for of in answers]
        assert len({handle.id for handle in handles}) == 1
        assert sorted(handle.duplicate for handle in handles) == [False] + [True] * (callers - 1)
    assert all_apps[0].insight().count(JobFilter(place=Place.HOT)).number == rounds
    for app in all_apps:
        app.close()


@pytest.mark.slow
def test_row_61_payloads_around_eight_thousand_bytes_and_ten_thousand_jobs(database_url: str):
    """The notification carried the row, and a payload above 8,000 bytes failed the insert."""
    app = Redrive(database_url, limits={"payload": 6_000_000}, worker={"poll": 30.0})
    other = Redrive(database_url, limits={"payload": 6_000_000})
    sizes: list[int] = []

    @app.job("big.v1")
    async def big(text: str) -> None:
        sizes.append(len(text))

    with serving(app):
        until(lambda: any(worker.waiting for worker in app.store.workers()))
        for size in (7_999, 8_001, 5_000_000):
            job = other.enqueue("big.v1", {"text": "x" * size})
            assert job.wait(10) is Spot.ARCHIVE
            assert app.desk("reader").get(job.id).payload == b'{"text":"' + b"x" * size + b'"}'
            until(lambda: any(worker.waiting for worker in app.store.workers()))
            head = app.desk("reader").get(job.id).head
            assert head.started_at is not None
            assert (head.started_at - head.created_at).total_seconds() < 1, "an idle worker wakes"
        assert sizes == [7_999, 8_001, 5_000_000]
        handles = other.enqueue_many(other.item("small.v1", {}, queue="later") for _ in range(10_000))
        places = Evidence(database_url).places()
        assert {handle.id.hex for handle in handles} == {job for job, at in places.items() if at == ["hot"]}
        assert len(places) == 10_003
    app.close()
    other.close()
