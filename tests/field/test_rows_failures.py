"""Field reports about failing: whatever a handler does, its run is recorded, the worker lives, and no job is lost."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redrive import Reason, Redrive, RetryPolicy, Spot
from tests.faults.evidence import Evidence
from tests.faults.nursery import Nursery
from tests.faults.scene import Scene, patience
from tests.faults.serving import serving
from tests.field.draining import drain

TWICE = RetryPolicy(max_attempts=2, base=0, jitter=0)


@pytest.mark.parametrize("cap", [3600, timedelta(days=36_500)])
def test_row_38_every_wait_is_a_wait(cap: Any):
    """An exponential wait ran past the largest date after some retries, and the job was never seen again."""
    policy = RetryPolicy(max_attempts=2000, base=5, cap=cap)
    waits = [policy.delay(attempt, 1.0) for attempt in range(1, 2001)]
    longest = cap.total_seconds() if isinstance(cap, timedelta) else cap
    assert waits == sorted(waits)
    assert waits[0] == 6.0
    assert waits[-1] == longest


def test_row_38_a_job_far_beyond_any_exponent_is_scheduled(database_url: str):
    """The 1,500th failure of a job with 2,000 attempts, a cap of nearly a century, and a life as long as there is."""
    app = Redrive(database_url)
    longest = timedelta(days=36_500)

    @app.job("patient.v1", retry=RetryPolicy(2000, base=5, cap=longest - timedelta(days=1), max_age=longest))
    async def patient() -> None:
        raise ConnectionError("away")

    job = patient.enqueue()
    Evidence(database_url).change("UPDATE {s}jobs_hot SET spent = 1499, attempt = 1499")
    drain(app)
    head = app.desk("reader").get(job.id).head
    assert (head.spot, head.spent, head.attempt) == (Spot.SCHEDULED, 1500, 1500)
    assert head.due_at - app.store.now() > timedelta(days=36_000)
    app.close()


def test_row_38_a_backoff_function_that_raises(app: Redrive):
    """Its error came from the retry code; here the job is dead as fatal, with both errors."""

    def backoff(charged: int) -> float:
        raise ZeroDivisionError(f"after {charged}")

    @app.job("own.v1", backoff=backoff)
    async def own() -> None:
        raise ConnectionError("the peer is away")

    job = own.enqueue()
    drain(app)
    record = app.desk("reader").get(job.id)
    assert record.head.reason is Reason.FATAL
    (line,) = record.ledger
    for text in (line.error_message, line.traceback):
        assert text is not None
        assert "the peer is away" in text
        assert "after 1" in text


class Picky(Exception):
    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"{code}: {hint}")


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unpickled(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("stays here")


def circle() -> Exception:
    first, second = LookAway("first"), LookAway("second")
    first.__cause__, second.__cause__ = second, first
    return first


class LookAway(Exception):
    pass


def test_row_39_exceptions_that_cannot_be_rebuilt(app: Redrive):
    """An exception that cannot be rebuilt after pickling crashed the worker when it was used for a retry."""
    makers: dict[str, Any] = {
        "Picky": lambda: Picky(7, hint="both arguments"),
        "Locked": Locked,
        "Mute": Mute,
        "Unpickled": lambda: Unpickled("cannot be copied"),
        "LookAway": circle,
    }
    runs: list[str] = []

    @app.job("raise.v1", retry=TWICE)
    async def fail(name: str) -> None:
        runs.append(name)
        raise makers[name]()

    @app.job("good.v1")
    async def good() -> None: ...

    jobs = {name: fail.enqueue(name=name) for name in makers}
    last = good.enqueue()
    drain(app)
    assert last.status() is Spot.ARCHIVE
    assert sorted(runs) == sorted([*makers, *makers])
    for name, job in jobs.items():
        record = app.desk("reader").get(job.id)
        assert record.head.reason is Reason.RETRIES_EXHAUSTED
        assert [line.attempt for line in record.ledger] == [1, 2]
        for line in record.ledger:
            assert line.error_type is not None
            assert line.error_type.endswith(name)
            assert line.error_message
            assert line.traceback is not None
            assert "raise makers[name]()" in line.traceback


def leavers() -> list[BaseException]:
    return [asyncio.CancelledError(), SystemExit(0), KeyboardInterrupt(), GeneratorExit()]


def test_row_41_errors_outside_exception(app: Redrive):
    """Errors outside Exception left the worker in an invalid state; SystemExit(0) even counted as success."""
    runs: list[str] = []

    @app.job("loop.v1", retry=TWICE)
    async def on_loop(number: int) -> None:
        runs.append(f"loop {number}")
        raise leavers()[number]

    @app.job("thread.v1", retry=TWICE)
    def in_thread(number: int) -> None:
        runs.append(f"thread {number}")
        raise leavers()[number]

    @app.job("good.v1")
    async def good() -> None: ...

    jobs = [handler.enqueue(number=number) for handler in (on_loop, in_thread) for number in range(4)]
    drain(app)
    last = good.enqueue()
    drain(app)
    assert last.status() is Spot.ARCHIVE
    assert len(runs) == 16
    for number, job in enumerate(jobs):
        record = app.desk("reader").get(job.id)
        assert record.head.reason is Reason.RETRIES_EXHAUSTED
        assert [line.attempt for line in record.ledger] == [1, 2]
        assert {type(leavers()[number % 4]).__name__} == {
            (line.error_type or "").rpartition(".")[2] for line in record.ledger
        }


@pytest.mark.slow
def test_row_41_a_real_signal_still_ends_the_worker(database_url: str, nursery: Nursery, tmp_path: Path):
    """While it works off handlers that raise KeyboardInterrupt of their own."""
    with Scene(database_url, nursery, tmp_path) as scene:
        worker = scene.start(**patience(1, 30))
        job = scene.enqueue("interrupting", ms=1)
        assert job.wait(30) is Spot.DLQ
        assert not worker.ended.is_set()
        assert worker.finish() == 0
        assert "worker-stopped" in worker.text()
        scene.promises()


def test_row_89_a_task_that_is_gone_and_a_payload_that_does_not_parse(database_url: str):
    """Jobs whose class was missing, or whose arguments did not parse, were dropped without a trace."""
    settings: Any = {"worker": {"poll": 0.02, "unserved_timeout": 0.1}}
    old = Redrive(database_url, **settings)

    async def send(to: str) -> None:
        sent.append(to)

    sent: list[str] = []
    handler = old.job("mail.v1")(send)
    gone = handler.enqueue(to="a@example.com")
    broken = old.enqueue_raw("kept.v1", b'{"to": "b@example.com"')

    new = Redrive(database_url, **settings)
    new.job("kept.v1")(send)
    desk = new.desk("operator")
    with serving(new):
        assert broken.wait(30) is Spot.DLQ
        while gone.status() is not Spot.DLQ:
            desk.run_now(gone.id)  # it was put off, for longer each time
    record = desk.get(gone.id)
    assert (record.head.reason, record.head.attempt) == (Reason.FATAL, 0)
    assert record.payload == b'{"to":"a@example.com"}'
    assert "mail.v1" in (record.head.error_message or "")
    record = desk.get(broken.id)
    assert (record.head.reason, record.payload) == (Reason.FATAL, b'{"to": "b@example.com"')
    (queue,) = [queue for queue in new.store.queues() if queue.name == "default"]
    assert (queue.dead, queue.failed_total) == (2, 2)
    assert sent == []

    desk.resurrect(gone.id, note="its handler is deployed again")
    drain(old)
    desk.resurrect(broken.id, payload=b'{"to": "b@example.com"}', note="brace added")
    drain(new)
    assert sent == ["a@example.com", "b@example.com"]
    assert [gone.status(), broken.status()] == [Spot.ARCHIVE, Spot.ARCHIVE]
    assert {found.promise: found.examples for found in new.store.promises() if found.number} == {}
    new.close()
    old.close()
