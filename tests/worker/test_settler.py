"""Ends of runs reach the store: while it is away, when its answer is lost, when it cannot take one of them."""

import asyncio
import time
from typing import Any

import pytest

from redrive.domain.classify import report
from redrive.domain.errors import NotMigrated, Unavailable
from redrive.domain.failures import FailureClass, Reason
from redrive.domain.moves import Answer, Bury, Retry
from redrive.domain.outcome import Done, Failed
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Place, Spot
from redrive.worker import settler
from redrive.worker.runner import End
from redrive.worker.settler import decide

from .make import run_of, until
from .shop import Shop, in_loop


def test_the_age_of_a_life_counts_from_the_claims_answer_on():
    async def handle(): ...

    run = run_of(handle, retry=RetryPolicy(max_age=60, base=0, jitter=0))
    run.job.age, run.job.claimed_at = 30.0, time.monotonic()
    run.began = time.monotonic()
    failed = Failed(FailureClass.TRANSIENT, report(OSError("no route"), job_type=run.job.type))
    assert isinstance(decide(End(run, failed, time.monotonic())), Retry)
    run.job.claimed_at -= 40
    move = decide(End(run, failed, time.monotonic()))
    assert isinstance(move, Bury)
    assert move.reason is Reason.RETRY_LIFETIME_EXPIRED


def test_a_duration_is_never_negative():
    async def handle(): ...

    run = run_of(handle)
    run.began = time.monotonic()
    assert decide(End(run, Done(), run.began - 1)).duration_ms == 0
    assert decide(End(run, Done(), run.began + 1.5)).duration_ms == 1500


@in_loop
async def test_a_lone_end_does_not_linger(lite_shop: Shop, monkeypatch):
    monkeypatch.setattr(settler, "LINGER", 3600)

    @lite_shop.on()
    async def handle(): ...

    async with lite_shop.worker():
        await lite_shop.is_in(lite_shop.enqueue(), Spot.ARCHIVE)


@pytest.mark.slow
@in_loop
async def test_ends_wait_while_the_database_is_away_and_none_is_dropped(shop: Shop):
    away = [True]

    def refuse(*_, **__):
        if away[0]:
            raise Unavailable("away")

    @shop.on()
    async def handle(n: int):
        if n % 2:
            raise TypeError("bad")

    shop.port.before["settle"] = refuse
    ids = shop.enqueue_many(30)
    async with shop.worker() as worker:
        await until(lambda: shop.port.calls.count("settle") >= 3)
        assert all(shop.head(job_id).place is Place.HOT for job_id in ids)
        away[0] = False
        for n, job_id in enumerate(ids):
            await shop.is_in(job_id, Spot.DLQ if n % 2 else Spot.ARCHIVE)
        await until(lambda: worker.settler.answers == {Answer.APPLIED: 30})


@in_loop
async def test_a_lost_answer_is_answered_already_applied(shop: Shop):
    lost: list[Any] = []

    def lose(answers, *_, **__):
        if not lost:
            lost.extend(answers)
            raise Unavailable("the answer is lost")

    @shop.on(retry=shop.registry.retry)
    async def handle(n: int):
        if n == 1:
            raise TypeError("bad")

    shop.port.after["settle"] = lose
    ids = shop.enqueue_many(3)
    async with shop.worker() as worker:
        await until(lambda: not worker.runner.held and worker.settler.answers.total() == 3)
        assert worker.settler.answers[Answer.ALREADY] == len(lost) > 0
    assert [shop.head(job_id).spot for job_id in ids] == [Spot.ARCHIVE, Spot.DLQ, Spot.ARCHIVE]
    assert len(shop.record(ids[1]).ledger) == 1


@in_loop
async def test_a_move_that_the_store_cannot_take_does_not_block_the_others(shop: Shop):
    poisoned: list[Any] = []

    def choke(moves, **_):
        if any(move.id == poisoned[0].bytes and not isinstance(move, Bury) for move in moves):
            raise ValueError("cannot be stored")

    @shop.on()
    async def handle(n: int):
        await started.wait()

    started = asyncio.Event()
    shop.port.before["settle"] = choke
    ids = shop.enqueue_many(9)
    poisoned.append(ids[4])
    async with shop.worker(async_slots=9) as worker:
        await until(lambda: worker.runner.running == 9)
        started.set()
        for job_id in ids[:4] + ids[5:]:
            await shop.is_in(job_id, Spot.ARCHIVE)
        record = await shop.is_in(ids[4], Spot.DLQ)
        await until(lambda: not worker.runner.held)
    assert record.head.reason is Reason.UNKNOWN
    assert "cannot be stored" in (record.head.error_message or "")


@in_loop
async def test_a_move_that_cannot_even_be_buried_is_let_go_to_be_rescued(lite_shop: Shop):
    poisoned: list[Any] = []

    def choke(moves, **_):
        if any(move.id == poisoned[0].bytes for move in moves):
            raise ValueError("cannot be stored")

    @lite_shop.on()
    async def handle(n: int): ...

    lite_shop.port.before["settle"] = choke
    ids = lite_shop.enqueue_many(3)
    poisoned.append(ids[1])
    async with lite_shop.worker(heartbeat=0.05, zombie_timeout=0.3, fetched_timeout=0.3) as worker:
        await until(lambda: not worker.runner.held and len(lite_shop.port.calls) > 5)
        record = await lite_shop.is_in(ids[1], Spot.DLQ)
    assert record.head.reason is Reason.ZOMBIE
    assert [lite_shop.head(i).place for i in (ids[0], ids[2])] == [Place.ARCHIVE] * 2


@in_loop
async def test_a_schema_in_the_making_is_no_fault_of_a_move(lite_shop: Shop):
    refused: list[Any] = []

    def refuse(*_, **__):
        if len(refused) < 2:
            refused.append(1)
            raise NotMigrated("just now")

    @lite_shop.on()
    async def handle(): ...

    lite_shop.port.before["settle"] = refuse
    job_id = lite_shop.enqueue()
    async with lite_shop.worker():
        await lite_shop.is_in(job_id, Spot.ARCHIVE)
