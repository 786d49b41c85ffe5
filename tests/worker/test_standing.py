"""Quiet, degraded, and another concurrency while it works."""

import asyncio
import threading

import pytest
import structlog

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.failures import Reason
from redrive.domain.states import HotState, Place, Spot
from redrive.worker.process import Worker
from redrive.worker.threads import Threads

from .make import run_of, until
from .shop import Shop, in_loop

DRAFT = AuditDraft(Actor("ann"), "set-worker")


@pytest.mark.slow
@in_loop
async def test_a_quiet_worker_finishes_what_runs_gives_back_the_rest_and_claims_nothing(shop: Shop):
    entered, gate = threading.Event(), threading.Event()

    @shop.on("thread.v1")
    def in_thread(n: int):
        entered.set()
        gate.wait(30)

    @shop.on("loop.v1")  # its free slots make the claims ask for more than the one thread can run
    async def in_loop(): ...

    jobs = [shop.enqueue({"n": n}, "thread.v1") for n in range(3)]
    stop = asyncio.Event()
    worker = shop.worker(threads=1)
    serving = asyncio.create_task(worker.serve(stop))
    await until(entered.is_set)
    await until(lambda: [shop.head(i).state for i in jobs].count(HotState.FETCHED) == 2)
    worker.standing.quiet()
    await until(lambda: [shop.head(i).state for i in jobs[1:]] == [HotState.PENDING] * 2)
    await until(lambda: [(view.mode, view.waiting) for view in shop.store.workers()] == [("quiet", False)])
    gate.set()
    await shop.is_in(jobs[0], Spot.ARCHIVE)
    claims, beats = shop.port.calls.count("claim"), shop.port.calls.count("seen")
    later = shop.enqueue({"n": 9}, "thread.v1")
    await until(lambda: shop.port.calls.count("seen") > beats + 2)  # it lives on
    assert not serving.done()
    assert shop.port.calls.count("claim") == claims
    assert [shop.head(i).attempt for i in (*jobs[1:], later)] == [0, 0, 0]
    stop.set()
    await serving
    assert shop.store.workers() == []


@in_loop
async def test_a_worker_that_is_quiet_before_it_begins_claims_nothing_and_a_quiet_burst_ends(lite_shop: Shop):
    @lite_shop.on()
    async def handle(): ...

    job_id = lite_shop.enqueue()
    worker = lite_shop.worker()
    worker.standing.quiet()
    await worker.serve(asyncio.Event(), burst=True)
    assert lite_shop.head(job_id).attempt == 0
    assert "claim" not in lite_shop.port.calls


@pytest.mark.slow
@in_loop
async def test_concurrency_follows_an_operator_both_ways_and_kills_nothing(shop: Shop):
    running, most = 0, 0
    gates: list[asyncio.Event] = []

    @shop.on()
    async def handle(n: int):
        nonlocal running, most
        running += 1
        most = max(most, running)
        gates.append(gate := asyncio.Event())
        await gate.wait()
        running -= 1

    async def order(worker: Worker, number: int | None) -> None:
        shop.store.set_worker(worker.id, number, DRAFT)
        wanted = 4 if number is None else number
        await until(lambda: shop.store.workers()[0].concurrency == wanted)

    ids = shop.enqueue_many(40)
    async with shop.worker(async_slots=4) as worker:
        await until(lambda: running == 4)
        await order(worker, 9)
        await until(lambda: running == 9)
        await order(worker, 2)
        assert running == 9  # nothing is killed
        for gate in gates[:8]:
            gate.set()
        await until(lambda: running == 2)  # 1 of the 9, and 1 more
        most = 0
        for n in range(8, 20):
            await until(lambda: len(gates) > n)  # noqa: B023
            gates[n].set()
        await until(lambda: len(gates) > 20)
        assert most == 2
        await order(worker, None)
        await until(lambda: running == 4)
        while len(gates) < 40 or running:
            for gate in gates:
                gate.set()
            await asyncio.sleep(0)
        await until(lambda: not worker.runner.held)
        assert worker.runner.free == {"async": 4}
    assert {shop.head(i).place for i in ids} == {Place.ARCHIVE}
    assert [shop.head(i).attempt for i in ids] == [1] * 40


@in_loop
async def test_threads_too_many_leave_when_they_are_done_and_more_come():
    ends: list[object] = []
    gates = [threading.Event() for _ in range(6)]

    def handle(n: int):
        gates[n].wait(20)

    threads = Threads(3, lambda *end: ends.append(end), asyncio.get_running_loop())
    for n in range(3):
        threads.submit(run_of(handle, {"n": n}))
    threads.resize(1)
    assert (threads.alive, len(ends)) == (3, 0)
    for gate in gates[:3]:
        gate.set()
    await until(lambda: len(ends) == 3)
    await until(lambda: threads.alive == 1)
    threads.resize(3)
    for n in range(3, 6):
        threads.submit(run_of(handle, {"n": n}))
        gates[n].set()
    await until(lambda: len(ends) == 6)
    assert threads.alive == 3
    threads.close()
    await until(lambda: threads.alive == 0)


@in_loop
async def test_stuck_runs_are_counted_and_shown_and_past_the_limit_it_is_degraded(shop: Shop):
    leave = threading.Event()

    @shop.on("stuck.v1", timeout=0.05)
    def stuck():
        leave.wait(30)

    @shop.on("quick.v1")
    def quick(): ...

    ids = [shop.enqueue(type="stuck.v1") for _ in range(2)]
    with structlog.testing.capture_logs() as logs:
        async with shop.worker(threads=2, stuck_limit=2) as worker:
            for job_id in ids:
                head = (await shop.is_in(job_id, Spot.DLQ)).head
                assert head.reason is Reason.TIMEOUT
                assert "its first run may still be going on" in (head.error_message or "")
            await until(lambda: [(v.mode, v.stuck) for v in shop.store.workers()] == [("degraded", 2)])
            quick_id = shop.enqueue(type="quick.v1")
            await shop.is_in(quick_id, Spot.ARCHIVE)  # embedded it works on: nobody would replace it
            leave.set()
            await until(lambda: worker.runner.stuck == 0)
    (said,) = [line for line in logs if line["event"] == "worker-degraded"]
    assert (said["stuck"], said["limit"], said["leaves"]) == (2, 2, False)
    assert [line["stuck"] for line in logs if line["event"] == "handler-stuck"] == [1, 2]


@in_loop
async def test_a_degraded_worker_that_may_leave_stops_in_order(lite_shop: Shop):
    leave, gate = threading.Event(), asyncio.Event()

    @lite_shop.on("stuck.v1", timeout=0.05)
    def stuck():
        leave.wait(30)

    @lite_shop.on("good.v1")
    async def good():
        await gate.wait()

    good_id, stuck_id = lite_shop.enqueue(type="good.v1"), lite_shop.enqueue(type="stuck.v1")
    worker = lite_shop.worker(threads=1, stuck_limit=1)
    serving = asyncio.create_task(worker.serve(asyncio.Event(), leave=True))
    await lite_shop.is_in(stuck_id, Spot.DLQ)
    await until(lambda: worker.line._stopped.is_set())
    assert not serving.done()
    gate.set()
    await serving
    assert worker.standing.mode == "degraded"
    assert lite_shop.head(good_id).place is Place.ARCHIVE
    leave.set()


@in_loop
async def test_an_async_handler_that_swallows_its_cancellation_counts_as_stuck(lite_shop: Shop, monkeypatch):
    monkeypatch.setattr("redrive.worker.runner.INSIST_EVERY", 0.01)
    leave = asyncio.Event()

    @lite_shop.on(timeout=0.02)
    async def stubborn():
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                continue

    job_id = lite_shop.enqueue()
    async with lite_shop.worker() as worker:
        await lite_shop.is_in(job_id, Spot.DLQ)
        assert worker.runner.stuck == 1
        leave.set()
        await until(lambda: worker.runner.stuck == 0)


@in_loop
async def test_a_queue_without_handler_is_warned_of(lite_shop: Shop):
    @lite_shop.on(queue="mail")
    async def handle(): ...

    with structlog.testing.capture_logs() as logs:
        async with lite_shop.worker(queues=("nosuch", "mail")):
            pass
    (warning,) = [line for line in logs if line["event"] == "queue-without-handler"]
    assert (warning["queues"], warning["handlers_are_for"]) == (["nosuch"], ("mail",))
