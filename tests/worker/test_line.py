"""Claim, run, settle: slots are never exceeded, batches grow by themselves, nothing is forgotten."""

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from time import sleep
from typing import Any
from uuid import UUID

import pytest

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.errors import NotMigrated, Unavailable
from redrive.domain.moves import Answer
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import HotState, Place, Spot
from redrive.store.port import QueueChange, WorkerInfo
from redrive.worker import buffer, moments
from redrive.worker import loop as line
from redrive.worker.context import JobContext

from .make import until
from .shop import Shop, in_loop


class Gauge:
    """How many handlers are inside, and the most there ever were."""

    def __init__(self):
        self.inside = self.most = self.total = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.inside += 1
            self.total += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_):
        with self._lock:
            self.inside -= 1


def test_running_handlers_and_started_jobs_never_exceed_the_slots(shop: Shop):
    loop_gauge, thread_gauge = Gauge(), Gauge()
    over: list[Any] = []

    @shop.on("loop.v1")
    async def in_loop(n: int):
        with loop_gauge:
            await asyncio.sleep(0.001)

    @shop.on("thread.v1")
    def in_thread(n: int):
        with thread_gauge:
            sleep(0.001)

    def started(kinds):
        for kind, number in Counter(kinds).items():
            if number > worker.runner.free[kind]:
                over.append((kind, number))

    kind_of = {"loop.v1": "async", "thread.v1": "thread"}
    shop.port.after["claim"] = lambda jobs, _: started(kind_of[job.type] for job in jobs if job.started)
    shop.port.after["start"] = lambda pairs, *_: started(worker.runner.held[pair].handler.kind for pair in pairs)
    jobs = [shop.job({"n": n}, ("loop.v1", "thread.v1")[n % 2]) for n in range(120)]
    shop.store.enqueue(jobs)
    worker = shop.worker(async_slots=7, threads=3)
    asyncio.run(worker.serve(asyncio.Event(), burst=True))
    assert not over
    assert (loop_gauge.total, thread_gauge.total) == (60, 60)
    assert 1 < loop_gauge.most <= 7
    assert 1 < thread_gauge.most <= 3
    assert worker.settler.answers == {Answer.APPLIED: 120}
    assert all(shop.head(job.id).attempt == 1 for job in jobs)


def test_claims_start_what_has_room_in_one_statement(shop: Shop):
    """With one kind of handler no job is ever only fetched."""

    @shop.on()
    async def handle(n: int): ...

    shop.enqueue_many(50)
    shop.drain(async_slots=8)
    assert "start" not in shop.port.calls
    assert "give_back" not in shop.port.calls


def test_batches_grow_with_the_load_and_a_lone_job_is_settled_at_once(shop: Shop):
    @shop.on()
    async def handle(n: int): ...

    shop.enqueue_many(600)
    worker = shop.drain(async_slots=100)
    assert sum(worker.settler.batches.values()) < 60
    assert max(worker.line.claims) == 100
    shop.enqueue_many(1)
    worker = shop.drain(async_slots=100)
    assert worker.settler.batches == {1: 1}


@in_loop
async def test_jobs_that_end_one_by_one_do_not_cause_claims_one_by_one(shop: Shop, monkeypatch):
    monkeypatch.setattr(line, "PROMOTE_BUSY", 3600)
    monkeypatch.setattr(line, "CRUMBS", 1.0)  # long against five settles, and the net for a wake-up that came too early
    gates: list[asyncio.Event] = []

    @shop.on()
    async def handle(n: int):
        gate = asyncio.Event()
        gates.append(gate)
        await gate.wait()

    shop.enqueue_many(40)
    async with shop.worker(async_slots=10, poll=3600) as worker:
        await until(lambda: len(gates) == 10)
        claims = worker.line.claims.total()
        for settled, gate in enumerate(gates[:5], 1):
            gate.set()
            await until(lambda: worker.settler.answers.total() == settled)  # noqa: B023
        await until(lambda: len(gates) == 15)
        assert worker.line.claims.total() < claims + 5  # fewer than one for each end
        # Also what is less than half is claimed in the end: slots must not stay empty behind slow handlers.
        monkeypatch.setattr(line, "CRUMBS", 0.005)
        gates[5].set()
        await until(lambda: len(gates) == 16)
        while len(gates) < 40:
            gates[-1].set()
            for gate in gates:
                gate.set()
            await asyncio.sleep(0)
        for gate in gates:
            gate.set()


@in_loop
async def test_an_enqueue_wakes_an_idle_worker(shop: Shop):
    entered = asyncio.Event()

    @shop.on()
    async def handle():
        entered.set()

    async with shop.worker(poll=60.0) as worker:
        await until(lambda: worker.line._quiet > len(line.AGAIN))
        await asyncio.to_thread(shop.enqueue)
        async with asyncio.timeout(20):
            await entered.wait()


@in_loop
async def test_an_enqueue_that_saw_nobody_wait_is_found_by_looking_again(shop: Shop):
    """It looked a moment before the worker said that it waits, so it did not notify."""
    ids: list[UUID] = []

    def enqueue(*_: Any, waiting: bool):
        if waiting:
            ids.append(shop.enqueue())

    @shop.on()
    async def handle(n: int = 0): ...

    async with shop.worker(poll=3600, heartbeat=1000, zombie_timeout=3000, fetched_timeout=3000) as worker:
        await until(lambda: worker.line._quiet > len(line.AGAIN))
        shop.port.before["seen"] = enqueue
        shop.enqueue_many(10)  # a full claim: it does not wait any more, then it does again
        await until(lambda: ids)
        await shop.is_in(ids[0], Spot.ARCHIVE)


@in_loop
async def test_a_retry_starts_when_it_is_due_and_not_at_the_next_poll(shop: Shop):
    attempts = []

    @shop.on(retry=RetryPolicy(max_attempts=2, base=0.05, jitter=0))
    async def handle(ctx: JobContext):
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise OSError("no route")

    job_id = shop.enqueue()
    async with shop.worker(poll=60.0):
        await shop.is_in(job_id, Spot.ARCHIVE)
    assert attempts == [1, 2]


@in_loop
async def test_work_of_others_that_falls_due_is_seen_within_a_poll(shop: Shop):
    @shop.on()
    async def handle(): ...

    async with shop.worker(poll=0.1):
        job_id = shop.enqueue(due=timedelta(seconds=0.15))
        await shop.is_in(job_id, Spot.ARCHIVE)


def test_burst_ends_when_nothing_is_left_and_leaves_what_is_due_later(shop: Shop):
    done = []

    @shop.on("parent.v1")
    def parent():
        shop.enqueue({"n": 1}, "child.v1")

    @shop.on("child.v1")
    async def child(n: int):
        done.append(n)

    shop.enqueue(type="parent.v1")
    later = shop.enqueue({"n": 2}, "child.v1", due=timedelta(hours=1))
    shop.drain()
    assert done == [1]
    assert shop.head(later).state is HotState.SCHEDULED


def test_an_empty_burst_ends(shop: Shop):
    @shop.on()
    async def handle(): ...

    worker = shop.drain()
    assert worker.settler.answers == {}


@in_loop
async def test_a_paused_queue_starts_nothing_and_gets_its_fetched_jobs_back(shop: Shop):
    gate, entered = threading.Event(), threading.Event()
    runs = []

    @shop.on("slow.v1")
    def slow(n: int):
        runs.append(n)
        entered.set()
        gate.wait(30)

    @shop.on("other.v1")
    async def other(): ...

    audit = AuditDraft(Actor("ann"), "pause")
    ids = shop.enqueue_many(3, "slow.v1")
    async with shop.worker(async_slots=10, threads=1) as worker:
        await until(entered.is_set)
        await until(lambda: [shop.head(i).state for i in ids].count(HotState.FETCHED) == 2)
        shop.store.set_queue("default", QueueChange(paused=True), audit, version=None)
        gate.set()
        await shop.is_in(ids[runs[0]], Spot.ARCHIVE)
        await until(lambda: [shop.head(i).spot for i in ids].count(Spot.PENDING) == 2)
        assert len(runs) == 1
        shop.store.set_queue("default", QueueChange(paused=False), audit, version=None)
        for job_id in ids:
            await shop.is_in(job_id, Spot.ARCHIVE)
        assert all(shop.head(job_id).attempt == 1 for job_id in ids)
        await until(lambda: not worker.runner.held)


@in_loop
async def test_jobs_held_for_a_full_pool_do_not_stop_others_and_are_not_held_for_long(shop: Shop, monkeypatch):
    monkeypatch.setattr(buffer, "HOLD", 0.2)
    gate, entered = threading.Event(), threading.Event()

    @shop.on("slow.v1")
    def slow(n: int):
        entered.set()
        gate.wait(30)

    @shop.on("quick.v1")
    async def quick(n: int): ...

    shop.enqueue_many(12, "slow.v1")
    quick_ids = shop.enqueue_many(5, "quick.v1")
    async with shop.worker(async_slots=20, threads=1) as worker:
        await until(entered.is_set)
        for job_id in quick_ids:
            await shop.is_in(job_id, Spot.ARCHIVE)
        await until(lambda: "give_back" in shop.port.calls)
        held = [shop.head(job_id).state for job_id in [run.job.uuid for run in list(worker.runner.held.values())]]
        assert held.count(HotState.PROCESSING) == 1
        gate.set()
        await until(lambda: shop.store.queues()[0].succeeded_total == 17)


@pytest.mark.slow
@in_loop
async def test_what_a_busy_worker_holds_goes_to_one_that_waits(shop: Shop, monkeypatch):
    """One slot, a slow handler in it, and jobs reserved behind it, until there is another worker to run them."""
    monkeypatch.setattr(buffer, "HOLD", 1000)
    gate, runs = threading.Event(), []

    @shop.on("slow.v1")
    def slow(n: int):
        runs.append(n)
        gate.wait(30)

    @shop.on("quick.v1")  # its slots are free, so there are claims, and they bring jobs for the other pool
    async def quick(): ...

    def holders() -> list[tuple[str | None, Spot]]:
        return [(head.worker_id, head.spot) for head in map(shop.head, ids)]

    ids = shop.enqueue_many(4, "slow.v1")
    async with shop.worker(threads=1) as busy:
        await until(lambda: shop.port.calls.count("awaited") > 4)
        assert sorted(holders(), key=lambda one: one[1].value) == [(busy.id, Spot.FETCHED)] * 3 + [
            (busy.id, Spot.PROCESSING)
        ]
        assert "give_back" not in shop.port.calls, "nobody else would run them"
        async with shop.worker(threads=3) as idle:
            await until(lambda: holders().count((idle.id, Spot.PROCESSING)) == 3)
            await until(lambda: len(runs) == 4)
            gate.set()
            for job_id in ids:
                await shop.is_in(job_id, Spot.ARCHIVE)
    assert sorted(runs) == [0, 1, 2, 3]


@in_loop
async def test_what_was_given_away_is_not_taken_back_before_a_slot_is_free(lite_shop: Shop, monkeypatch):
    monkeypatch.setattr(buffer, "HOLD", 1000)
    gate = threading.Event()

    @lite_shop.on("slow.v1")
    def slow(n: int):
        gate.wait(30)

    @lite_shop.on("quick.v1")
    async def quick(): ...

    ids = lite_shop.enqueue_many(4, "slow.v1")
    serving = [info for info in lite_shop.registry.announcements() if info.type == "slow.v1"]
    lite_shop.store.register(WorkerInfo("idle", "host", 1, "", ("default",), tuple(serving), 3))
    lite_shop.store.seen("idle", waiting=True)
    async with lite_shop.worker(threads=1, poll=3600) as worker:
        await until(lambda: "give_back" in lite_shop.port.calls)
        await until(lambda: len(worker.runner.held) == 1)
        claims = 0
        for _ in range(5):
            lite_shop.port.calls.clear()
            worker.line._promote_at = 0.0
            worker.line.nudge()
            await until(lambda: "promote" in lite_shop.port.calls)
            claims += lite_shop.port.calls.count("claim")
        assert claims == 0
        assert [lite_shop.head(job_id).spot for job_id in ids].count(Spot.PENDING) == 3
        lite_shop.store.unregister("idle")
        gate.set()
        for job_id in ids:
            await lite_shop.is_in(job_id, Spot.ARCHIVE)


@pytest.mark.slow
@in_loop
async def test_a_worker_whose_slots_are_all_busy_reserves_nothing(shop: Shop):
    gate, runs = asyncio.Event(), []

    @shop.on()
    async def handle(n: int):
        runs.append(n)
        await gate.wait()

    ids = shop.enqueue_many(10)
    async with shop.worker(async_slots=2) as worker:
        await until(lambda: len(runs) == 2)
        promotes = shop.port.calls.count("promote")
        await until(lambda: shop.port.calls.count("promote") > promotes + 5)
        assert (len(runs), len(worker.runner.held), shop.port.calls.count("claim")) == (2, 2, 1)
        assert [shop.head(job_id).spot for job_id in ids].count(Spot.PENDING) == 8
        gate.set()
        for job_id in ids:
            await shop.is_in(job_id, Spot.ARCHIVE)


@pytest.mark.slow
@in_loop
async def test_while_the_database_is_away_claims_wait_and_go_on(lite_shop: Shop):
    away = [True]

    def refuse(*_, **__):
        if away[0]:
            raise Unavailable("away")

    @lite_shop.on()
    async def handle(): ...

    lite_shop.port.before["claim"] = refuse
    job_id = lite_shop.enqueue()
    async with lite_shop.worker():
        await until(lambda: lite_shop.port.calls.count("claim") >= 3)
        away[0] = False
        await lite_shop.is_in(job_id, Spot.ARCHIVE)


@in_loop
async def test_a_lost_answer_to_a_start_does_not_count_the_attempt_twice(lite_shop: Shop):
    gate, entered = threading.Event(), threading.Event()
    lost: list[Any] = []

    @lite_shop.on("slow.v1")
    def slow(ctx: JobContext, n: int):
        entered.set()
        gate.wait(30)
        return ctx.attempt

    @lite_shop.on("other.v1")
    async def other(): ...

    def lose(answer, *_):
        if not lost:
            lost.append(answer)
            raise Unavailable("the answer is lost")

    lite_shop.port.after["start"] = lose
    ids = lite_shop.enqueue_many(2, "slow.v1")
    async with lite_shop.worker(threads=1):
        await until(entered.is_set)
        gate.set()
        for job_id in ids:
            record = await lite_shop.is_in(job_id, Spot.ARCHIVE)
            assert (record.head.attempt, record.result) == (1, b"1")
    assert len(lost[0]) == 1


@in_loop
async def test_an_unexpected_error_of_a_claim_is_waited_out(lite_shop: Shop):
    failures: list[Any] = []

    def fail(*_):
        if len(failures) < 2:
            failures.append(1)
            raise ZeroDivisionError("a bug")

    @lite_shop.on()
    async def handle(): ...

    lite_shop.port.before["claim"] = fail
    job_id = lite_shop.enqueue()
    async with lite_shop.worker():
        await lite_shop.is_in(job_id, Spot.ARCHIVE)
    assert len(failures) == 2


@in_loop
async def test_a_wrong_schema_ends_the_worker(lite_shop: Shop):
    def refuse(*_):
        raise NotMigrated("no tables")

    @lite_shop.on()
    async def handle(): ...

    lite_shop.port.before["claim"] = refuse
    with pytest.raises(NotMigrated):
        await lite_shop.worker().serve(asyncio.Event())
    lite_shop.port.before["register"] = refuse
    with pytest.raises(NotMigrated):
        async with lite_shop.worker():
            raise AssertionError("it has not started")


def test_moments_come_in_order(lite_shop: Shop, monkeypatch):
    reached: list[Any] = []
    monkeypatch.setattr(moments, "hook", reached.append)

    @lite_shop.on("loop.v1")
    async def in_loop(): ...

    @lite_shop.on("thread.v1")
    def in_thread(): ...

    lite_shop.enqueue(type="thread.v1")
    lite_shop.drain(async_slots=5, threads=2)
    order = [name for name in reached if name != "settle-sent"]
    assert order == ["claimed", "started", "handler-entered", "handler-returned", "settle-sending", "settled"]


def test_priorities_are_kept(shop: Shop):
    order = []

    @shop.on()
    async def handle(n: int):
        order.append(n)

    shop.store.enqueue([shop.job({"n": n}, priority=n) for n in (5, 50, 20, 90)])
    shop.drain(async_slots=1)
    assert order == [90, 50, 20, 5]


def test_a_worker_takes_only_its_queues(shop: Shop):
    @shop.on()
    async def handle(): ...

    mine, other = shop.enqueue(queue="mine"), shop.enqueue(queue="other")
    shop.drain(queues=("mine",))
    assert shop.head(mine).place is Place.ARCHIVE
    assert shop.head(other).state is HotState.PENDING
