"""The stop, in its order."""

import asyncio
import threading
import time

import pytest

from redrive.domain.failures import Reason
from redrive.domain.states import HotState, Place, Spot
from redrive.worker import process
from redrive.worker.context import JobContext

from .make import until
from .shop import Shop, in_loop


@in_loop
async def test_running_handlers_finish_fetched_jobs_go_back_nothing_is_claimed(shop: Shop):
    entered, gate, async_gate = threading.Event(), threading.Event(), asyncio.Event()

    @shop.on("thread.v1")
    def in_thread(n: int):
        entered.set()
        gate.wait(30)

    @shop.on("loop.v1")
    async def in_loop(n: int):
        await async_gate.wait()

    jobs = [shop.enqueue({"n": n}, "thread.v1") for n in range(4)] + [shop.enqueue({"n": 9}, "loop.v1")]
    worker = shop.worker(async_slots=10, threads=1)
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(stop))
    await until(entered.is_set)
    await until(lambda: worker.runner.running == 2)
    await until(lambda: [shop.head(i).state for i in jobs].count(HotState.FETCHED) == 3)
    later = shop.enqueue({"n": 10}, "loop.v1")
    claims = None
    stop.set()
    await until(lambda: [shop.head(i).state for i in jobs[1:4]] == [HotState.PENDING] * 3)
    claims = shop.port.calls.count("claim")
    beats = shop.port.calls.count("heartbeat")
    await until(lambda: shop.port.calls.count("heartbeat") > beats + 1)  # they go on while handlers run
    assert not serving.done()
    gate.set()
    async_gate.set()
    await serving
    assert shop.port.calls.count("claim") == claims
    assert [shop.head(i).place for i in (jobs[0], jobs[4])] == [Place.ARCHIVE] * 2
    assert [shop.head(i).attempt for i in jobs[1:4]] == [0, 0, 0]
    assert shop.head(later).attempt in (0, 1)  # it may have been taken before the stop
    assert shop.store.workers() == []
    calls = shop.port.calls
    assert max(n for n, name in enumerate(calls) if name == "settle") < calls.index("unregister")


@in_loop
async def test_what_outlasts_the_grace_period_is_buried_at_once_with_the_reason(shop: Shop, monkeypatch):
    monkeypatch.setattr(process, "UNWIND", 0.2)
    entered, told, leave = [], [], threading.Event()

    @shop.on("hangs.v1")
    async def hangs(ctx: JobContext):
        entered.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            told.append(ctx.cancelled)

    @shop.on("stuck.v1")
    def stuck(ctx: JobContext):
        entered.append(1)
        leave.wait(30)
        told.append(ctx.cancelled)

    @shop.on("stubborn.v1")
    async def stubborn():
        entered.append(1)
        while not leave.is_set():
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                told.append(True)

    @shop.on("finishes.v1")
    async def finishes():
        entered.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "just in time"

    ids = [shop.enqueue(type=f"{name}.v1") for name in ("hangs", "stuck", "stubborn", "finishes")]
    async with shop.worker(grace=0.1) as worker:
        await until(lambda: len(entered) == 4)
        began = time.monotonic()
    assert time.monotonic() - began < 15
    assert worker.runner.pools["thread"].stuck == 1
    assert told == [True, True]
    leave.set()
    for job_id in ids[:3]:
        record = shop.record(job_id)
        assert record.head.reason is Reason.ZOMBIE
        assert "grace period" in (record.head.error_message or "")
        assert [entry.kind for entry in record.ledger] == ["failed"]
    assert shop.head(ids[3]).place is Place.ARCHIVE
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


@in_loop
async def test_ends_are_settled_before_the_worker_signs_off_even_when_the_database_comes_back_late(lite_shop: Shop):
    from redrive.domain.errors import Unavailable

    away = threading.Event()
    away.set()

    def refuse(*_, **__):
        if away.is_set():
            raise Unavailable("away")

    @lite_shop.on()
    async def handle(): ...

    lite_shop.port.before["settle"] = refuse
    job_id = lite_shop.enqueue()
    worker = lite_shop.worker()
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(stop))
    await until(lambda: "settle" in lite_shop.port.calls)
    stop.set()
    tries = lite_shop.port.calls.count("settle")
    await until(lambda: lite_shop.port.calls.count("settle") > tries)
    away.clear()
    await serving
    assert lite_shop.head(job_id).place is Place.ARCHIVE


@pytest.mark.slow
@in_loop
async def test_it_does_not_wait_for_ever_for_a_database_that_is_gone(lite_shop: Shop):
    from redrive.domain.errors import Unavailable

    def refuse(*_, **__):
        raise Unavailable("gone")

    @lite_shop.on()
    async def handle(): ...

    lite_shop.port.before["settle"] = refuse
    job_id = lite_shop.enqueue()
    async with lite_shop.worker(heartbeat=0.1, zombie_timeout=0.5, fetched_timeout=0.5):
        await until(lambda: "settle" in lite_shop.port.calls)
    assert lite_shop.head(job_id).place is Place.HOT


@pytest.mark.slow
@in_loop
async def test_a_claim_that_hangs_does_not_keep_it(lite_shop: Shop, monkeypatch):
    monkeypatch.setattr(process, "SIGN_OFF", 0.1)
    silence = threading.Event()

    @lite_shop.on()
    async def handle(): ...

    lite_shop.port.before["claim"] = lambda *_: silence.wait(60)
    async with lite_shop.worker(heartbeat=0.1, zombie_timeout=0.5, fetched_timeout=0.5):
        await until(lambda: "claim" in lite_shop.port.calls)
    assert not silence.is_set()
    silence.set()


@in_loop
async def test_a_worker_can_be_started_and_stopped_many_times(lite_shop: Shop):
    before = threading.active_count()

    @lite_shop.on("loop.v1")
    async def in_loop(): ...

    @lite_shop.on("thread.v1")
    def in_thread(): ...

    for n in range(15):
        job_id = lite_shop.enqueue(type=("loop.v1", "thread.v1")[n % 2])
        async with lite_shop.worker():
            if n % 3:
                await lite_shop.is_in(job_id, Spot.ARCHIVE)
    await until(lambda: threading.active_count() <= before + 2)
    assert lite_shop.store.workers() == []


@pytest.mark.slow
@in_loop
async def test_stopping_a_busy_worker_loses_nothing(shop: Shop):
    done = []

    @shop.on()
    async def handle(n: int):
        done.append(n)

    ids = shop.enqueue_many(400)
    async with shop.worker(async_slots=10):
        await until(lambda: len(done) > 50)
    spots = [shop.head(job_id) for job_id in ids]
    assert {head.spot.value for head in spots} <= {"archive", "pending"}
    assert sum(head.place is Place.ARCHIVE for head in spots) == len(done)
