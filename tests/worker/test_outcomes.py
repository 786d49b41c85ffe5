"""From enqueue to the last place of a job, through a worker: each outcome, and the failures of others."""

import asyncio
import threading
from typing import Any

import pytest

from redrive.domain.errors import Cancel, Fatal, Snooze, Throttled
from redrive.domain.failures import Reason
from redrive.domain.moves import Answer
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import HotState, Place, Spot, Verb
from redrive.worker.context import JobContext

from .make import until
from .shop import Shop, in_loop
from .test_run_one import Malicious, Unpicklable, Unprintable, circle


def test_success_is_archived_with_its_result(shop: Shop):
    @shop.on("loop.v1")
    async def in_loop(ctx: JobContext, n: int):
        return {"n": n, "attempt": ctx.attempt, "tags": ctx.tags}

    @shop.on("thread.v1")
    def in_thread(n: int):
        return n

    first = shop.enqueue({"n": 1}, "loop.v1", tags=("a",))
    second = shop.enqueue({"n": 2}, "thread.v1")
    shop.drain()
    assert shop.record(first).result == b'{"n":1,"attempt":1,"tags":["a"]}'
    assert shop.record(second).result == b"2"
    for job_id in (first, second):
        head = shop.head(job_id)
        assert (head.place, head.attempt, head.outcome) == (Place.ARCHIVE, 1, "succeeded")
        assert head.duration_ms is not None
        assert head.duration_ms >= 0


def test_a_payload_that_does_not_parse_dies_fatal_with_its_place_and_its_bytes(shop: Shop):
    calls = []

    @shop.on()
    async def handle(to: str, subject: str):
        calls.append(1)

    broken = b'{"to": "a@example.com"\n  "subject": "Hi"}'
    job_id = shop.enqueue(broken)
    shop.drain()
    record = shop.record(job_id)
    assert record.head.reason is Reason.FATAL
    assert "line 2, column 3" in (record.head.error_message or "")
    assert record.payload == broken
    assert not calls
    (entry,) = record.ledger
    assert (entry.kind, entry.reason, entry.attempt, entry.life) == ("failed", "fatal", 1, 1)


@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_exactly_the_budget_is_used_in_each_life(shop: Shop, kind):
    calls = []

    def fail(ctx):
        calls.append((ctx.life, ctx.attempt))
        raise ConnectionError("no route")

    async def in_loop(ctx: JobContext):
        fail(ctx)

    def in_thread(ctx: JobContext):
        fail(ctx)

    shop.on()(in_loop if kind == "loop" else in_thread)
    job_id = shop.enqueue()
    for life in range(1, 6):
        calls.clear()
        shop.drain()
        assert calls == [(life, 1), (life, 2), (life, 3)]
        head = shop.head(job_id)
        assert (head.place, head.reason, head.spent) == (Place.DLQ, Reason.RETRIES_EXHAUSTED, 3)
        if life < 5:
            shop.operate(Verb.RESURRECT, job_id)
    told = [(entry.life, entry.attempt) for entry in shop.record(job_id).ledger]
    assert told == [(life, attempt) for life in range(1, 6) for attempt in (1, 2, 3)]


def test_arguments_changed_in_place_do_not_spoil_the_evidence_or_the_next_attempt(shop: Shop):
    seen = []

    @shop.on()
    async def handle(rows: list[str]):
        seen.append(list(rows))
        rows.append("\ud800")
        raise OSError(f"cannot send {rows}")

    job_id = shop.enqueue(b'{"rows": ["a"]}')
    shop.drain()
    record = shop.record(job_id)
    assert seen == [["a"]] * 3
    assert record.payload == b'{"rows": ["a"]}'
    assert record.head.reason is Reason.RETRIES_EXHAUSTED
    assert len(record.ledger) == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loop", "thread"])
def test_whatever_is_raised_the_worker_goes_on(shop: Shop, kind):
    errors = [
        SystemExit(0), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Unprintable(), Malicious("x"),
        Unpicklable(1, threading.Lock()), circle(), OSError("\ud800\x00"), MemoryError(), RecursionError("deep"),
    ]  # fmt: skip

    def fail(n):
        if n < len(errors):
            raise errors[n]
        return "fine"

    async def in_loop(n: int):
        return fail(n)

    def in_thread(n: int):
        return fail(n)

    shop.on(retry=RetryPolicy(max_attempts=1))(in_loop if kind == "loop" else in_thread)
    ids = shop.enqueue_many(len(errors) + 1)
    shop.drain(async_slots=2, threads=2)
    for job_id, error in zip(ids, errors, strict=False):
        record = shop.record(job_id)
        assert record.head.place is Place.DLQ
        (entry,) = record.ledger
        assert entry.error_type is not None
        assert entry.error_type.rpartition(".")[2] == type(error).__name__
        assert "raise errors[n]" in (entry.traceback or "")
    assert shop.head(ids[-1]).place is Place.ARCHIVE


def test_a_backoff_function_that_raises_makes_it_fatal_and_both_errors_are_kept(shop: Shop):
    def backoff(charged: int) -> float:
        raise ZeroDivisionError("in the backoff")

    @shop.on(backoff=backoff)
    async def handle():
        raise OSError("no route")

    job_id = shop.enqueue()
    shop.drain()
    record = shop.record(job_id)
    assert record.head.reason is Reason.FATAL
    assert "no route" in (record.head.error_message or "")
    assert "in the backoff" in (record.head.error_message or "")
    assert "in backoff" in (record.ledger[0].traceback or "")


@pytest.mark.slow
def test_odd_delays_never_lose_a_job(shop: Shop):
    answers: list[Any] = [float("nan"), float("inf"), -5, "soon", None, 10**300]
    now = []

    @shop.on("odd.v1", retry=RetryPolicy(max_attempts=2, max_age=1e9), backoff=lambda _: answers[now[-1]])
    async def handle(n: int):
        now.append(n)
        raise OSError("no route")

    @shop.on("grows.v1", retry=RetryPolicy(max_attempts=3000, base=5, factor=10, cap=0.0, jitter=0))
    async def grows(ctx: JobContext):
        raise OSError("no route")

    ids = shop.enqueue_many(6, "odd.v1")
    far = shop.enqueue(type="grows.v1", max_attempts=60)
    shop.drain(async_slots=1)
    for job_id in ids:
        assert shop.head(job_id).place is Place.DLQ
    assert shop.head(far).attempt == 60


def test_signals_of_the_handler(shop: Shop):
    @shop.on("snooze.v1")
    async def snooze():
        raise Snooze(3600)

    @shop.on("cancel.v1")
    def cancel():
        raise Cancel("not wanted")

    @shop.on("throttled.v1")
    async def throttled():
        raise Throttled(3600)

    @shop.on("fatal.v1", transient=(OSError,))
    async def fatal():
        raise Fatal("never")

    snoozed, cancelled, slowed, dead = (
        shop.enqueue(type=f"{name}.v1") for name in ("snooze", "cancel", "throttled", "fatal")
    )
    shop.drain()
    head = shop.head(snoozed)
    assert (head.state, head.attempt, head.spent) == (HotState.SCHEDULED, 1, 0)
    head = shop.head(slowed)
    assert (head.state, head.attempt, head.spent) == (HotState.SCHEDULED, 1, 1)
    assert (head.due_at - shop.store.now()).total_seconds() > 3500
    assert shop.head(cancelled).reason is Reason.CANCELLED
    assert shop.head(dead).reason is Reason.FATAL


def test_a_snooze_costs_no_attempt_of_the_budget(shop: Shop):
    calls = []

    @shop.on()
    async def handle(ctx: JobContext):
        calls.append(ctx.attempt)
        if len(calls) <= 5:
            raise Snooze(0)
        raise OSError("no route")

    job_id = shop.enqueue()
    shop.drain()
    assert calls == [1, 2, 3, 4, 5, 6, 7, 8]
    assert shop.head(job_id).reason is Reason.RETRIES_EXHAUSTED


# -- timeouts ----------------------------------------------------------------------------------------------------------


def test_an_async_handler_is_stopped_at_its_timeout(shop: Shop):
    cleaned = []

    @shop.on(timeout=0.05)
    async def handle(n: int):
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(n)
            if n:
                raise OSError("while cleaning up")

    plain, failing = shop.enqueue_many(2)
    shop.drain()
    for job_id in (plain, failing):
        record = shop.record(job_id)
        assert record.head.reason is Reason.TIMEOUT
        assert record.head.error_type == "redrive.Overran"
        assert len(record.ledger) == 3
    assert sorted(cleaned) == [0, 0, 0, 1, 1, 1]


@pytest.mark.slow
@in_loop
async def test_stuck_threads_are_given_up_and_replaced(shop: Shop):
    leave, entered = threading.Event(), []

    @shop.on("stuck.v1", timeout=0.1)
    def stuck(n: int):
        entered.append(n)
        leave.wait(30)

    @shop.on("idempotent.v1", timeout=0.1, idempotent=True)
    def idempotent(n: int):
        entered.append(n)
        leave.wait(30)

    @shop.on("quick.v1")
    def quick(n: int): ...

    async with shop.worker(threads=2) as worker:
        dead = shop.enqueue_many(3, "stuck.v1")
        (again,) = shop.enqueue_many(1, "idempotent.v1")
        for job_id in dead:
            record = await shop.is_in(job_id, Spot.DLQ)
            assert record.head.reason is Reason.TIMEOUT
            assert len(record.ledger) == 1
            assert "may still be going on" in (record.head.error_message or "")
        assert len((await shop.is_in(again, Spot.DLQ)).ledger) == 3
        assert (worker.runner.pools["thread"].stuck, worker.runner.pools["thread"].alive) == (6, 2)
        for job_id in shop.enqueue_many(6, "quick.v1"):
            await shop.is_in(job_id, Spot.ARCHIVE)
        leave.set()
        await until(lambda: worker.runner.pools["thread"].stuck == 0)
        assert worker.runner.free == {"thread": 2}
    assert all(shop.head(job_id).place is Place.DLQ for job_id in dead)


@in_loop
async def test_an_async_handler_that_will_not_stop_is_left_behind(lite_shop: Shop, monkeypatch):
    from redrive.worker import runner

    monkeypatch.setattr(runner, "INSIST_EVERY", 0.02)
    told, leave, left = [], asyncio.Event(), asyncio.Event()

    @lite_shop.on(timeout=0.05, idempotent=True, retry=RetryPolicy(max_attempts=1))
    async def handle():
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                told.append(1)
        left.set()

    job_id = lite_shop.enqueue()
    async with lite_shop.worker(async_slots=1) as worker:
        record = await lite_shop.is_in(job_id, Spot.DLQ)
        assert record.head.reason is Reason.TIMEOUT
        assert "may still be going on" in (record.head.error_message or "")
        assert len(told) == 4
        leave.set()
        await left.wait()
        await asyncio.sleep(0)
        assert (worker.runner.free, worker.runner.running) == ({"async": 1}, 0)  # its late end counts for nothing
        await until(lambda: not worker.runner.held)
    assert worker.settler.answers == {Answer.APPLIED: 1}


# -- the engine's own trouble ------------------------------------------------------------------------------------------


def test_an_error_in_our_own_reporting_buries_as_unknown(lite_shop: Shop, monkeypatch):
    from redrive.worker import run_one

    monkeypatch.setattr(run_one, "classify", lambda *_, **__: 1 / 0)

    @lite_shop.on()
    async def handle():
        raise OSError("the job's own")

    job_id = lite_shop.enqueue()
    lite_shop.drain()
    record = lite_shop.record(job_id)
    assert record.head.reason is Reason.UNKNOWN
    assert "the job's own" in (record.ledger[0].traceback or "")
