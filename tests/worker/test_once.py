"""``once=`` of a handler: work that another job has done, or is doing, is skipped."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from redrive.domain.errors import InvalidField, Unavailable
from redrive.domain.failures import Reason
from redrive.domain.job import JobRecord
from redrive.domain.once import Once
from redrive.domain.states import Spot, Verb
from redrive.store.sql.tables_later import once_marks
from redrive.worker.context import JobContext
from redrive.worker.registry import Registry

from .make import until
from .shop import Shop, in_loop


def by_order(order: int) -> str:
    return f"order-{order}"


def marks(shop: Shop) -> list[tuple[str, str, str]]:
    read: Any = shop.store
    rows = read._db.read(lambda c: c.execute(select(once_marks).order_by(once_marks.c.key)).all())
    return [(row.scope, row.key, row.state) for row in rows]


def said(record: JobRecord) -> list[tuple[str, str | None]]:
    return [(line.kind, line.error_message) for line in record.ledger]


def test_what_is_completed_is_not_done_again(shop: Shop):
    ran = []

    @shop.on(once=by_order)
    async def handle(order: int, note: str = ""):
        ran.append((order, note))

    first = shop.enqueue({"order": 1})
    shop.drain()
    again, other = shop.enqueue({"order": 1, "note": "x"}), shop.enqueue({"order": 2})
    shop.drain()
    assert ran == [(1, ""), (2, "")]
    record = shop.record(again)
    assert (record.head.spot, record.head.outcome, record.result) == (Spot.ARCHIVE, "skipped", None)
    assert said(record) == [("skipped", f"'order-1' was completed by job {first}")]
    assert [shop.head(one).outcome for one in (first, other)] == ["succeeded", "succeeded"]
    assert marks(shop) == [("work.v1", "order-1", "completed"), ("work.v1", "order-2", "completed")]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_what_is_in_progress_is_not_begun_and_its_failure_lets_go(shop: Shop, kind: str):
    entered, gate, ran = threading.Event(), threading.Event(), []

    def body(ctx: JobContext) -> None:
        ran.append(ctx.id)
        entered.set()
        assert gate.wait(20)
        if len(ran) == 1:
            raise OSError("away")

    if kind == "thread":

        @shop.on(once=by_order)
        def in_thread(ctx: JobContext, order: int):
            body(ctx)

    else:

        @shop.on(once=by_order)
        async def in_loop(ctx: JobContext, order: int):
            await asyncio.to_thread(body, ctx)

    async def main() -> None:
        first = shop.enqueue({"order": 1})
        async with shop.worker(), shop.worker():
            await until(entered.is_set)
            second = shop.enqueue({"order": 1})
            record = await shop.is_in(second, Spot.ARCHIVE)
            assert said(record) == [("skipped", f"'order-1' is in progress by job {first}")]
            assert marks(shop) == [("work.v1", "order-1", "running")]
            gate.set()
            assert [line.kind for line in (await shop.is_in(first, Spot.ARCHIVE)).ledger] == ["failed"]
        assert ran == [first, first], "its own retry may go on"
        assert marks(shop) == [("work.v1", "order-1", "completed")]

    asyncio.run(main())


def test_two_of_one_key_in_one_claim_are_one_run(shop: Shop):
    ran = []

    @shop.on(once=by_order)
    async def handle(order: int):
        ran.append(order)

    ids = [shop.enqueue({"order": 1}) for _ in range(5)]
    shop.drain()
    assert ran == [1]
    assert sorted(shop.head(one).outcome or "" for one in ids) == ["skipped"] * 4 + ["succeeded"]


def test_a_job_that_dies_lets_go_and_its_resurrection_completes_it(shop: Shop):
    fails = [True]

    @shop.on(once=by_order)
    async def handle(order: int):
        if fails:
            raise ValueError("no such order")

    first = shop.enqueue({"order": 1})
    shop.drain()
    assert shop.head(first).reason is Reason.FATAL
    assert marks(shop) == []
    fails.clear()
    shop.operate(Verb.RESURRECT, first)
    second = shop.enqueue({"order": 1})
    shop.drain()
    assert sorted(shop.head(one).outcome or "" for one in (first, second)) == ["skipped", "succeeded"]


def test_none_is_no_marker_and_a_scope_is_shared(shop: Shop):
    ran = []

    @shop.on("a.v1", once=Once(lambda order: order or None, scope="orders", keep=timedelta(days=1)))
    async def one(order: str):
        ran.append(("a", order))

    @shop.on("b.v1", once=Once(lambda order: order, scope="orders", keep=None))
    async def two(order: str):
        ran.append(("b", order))

    for order in ("", "", "x"):
        shop.enqueue({"order": order}, type="a.v1")
    shop.drain()
    shop.enqueue({"order": "x"}, type="b.v1")
    shop.enqueue({"order": "y"}, type="b.v1")
    shop.drain()
    assert ran == [("a", ""), ("a", ""), ("a", "x"), ("b", "y")]
    assert [key for _, key, _ in marks(shop)] == ["x", "y"]


@pytest.mark.parametrize(
    ("key", "payload", "error"),
    [
        (lambda order: 1 / 0, {"order": 1}, "ZeroDivisionError"),
        (lambda order: 7, {"order": 1}, "redrive.domain.errors.InvalidField"),
        (by_order, {"order": "no number"}, "redrive.domain.errors.PayloadError"),
    ],
    ids=["the function fails", "no text", "no such payload"],
)
def test_a_run_without_a_key_to_be_had_does_not_begin(lite_shop: Shop, key: Any, payload: Any, error: str):
    ran = []

    @lite_shop.on(once=key)
    async def handle(order: int):
        ran.append(order)

    job_id = lite_shop.enqueue(payload)
    lite_shop.drain()
    head = lite_shop.head(job_id)
    assert (head.reason, head.error_type) == (Reason.FATAL, error)
    assert ran == []


@in_loop
async def test_while_the_database_is_away_the_run_waits_for_its_marker(lite_shop: Shop):
    away = [1, 2]
    ran = []

    def refuse(*_: Any) -> None:
        if away:
            away.pop()
            raise Unavailable("away")

    @lite_shop.on(once=by_order)
    async def handle(order: int):
        ran.append(order)

    lite_shop.port.before["claim_marks"] = refuse
    job_id = lite_shop.enqueue({"order": 1})
    async with lite_shop.worker():
        await lite_shop.is_in(job_id, Spot.ARCHIVE)
    assert (ran, away) == ([1], [])


@in_loop
async def test_a_lease_that_is_lost_before_the_marker_is_there_begins_no_run(shop: Shop):
    ran = []

    def rescued(*_: Any) -> None:
        del shop.port.before["claim_marks"]
        shop.store.rescue(zombie_timeout=0, fetched_timeout=60, rules=shop.registry.rules, slot=5)

    @shop.on(once=by_order)
    async def handle(order: int):
        ran.append(order)

    shop.port.before["claim_marks"] = rescued
    job_id = shop.enqueue({"order": 1})
    async with shop.worker(heartbeat=1000, zombie_timeout=3000, fetched_timeout=3000) as worker:
        await until(lambda: worker.settler.answers)
    assert ran == []
    assert [line.kind for line in shop.record(job_id).ledger] == ["zombie", "late_failure"]
    assert marks(shop) == []


@in_loop
async def test_markers_that_are_over_are_pruned_by_workers(shop: Shop):
    @shop.on(once=Once(by_order, keep=0.001))
    async def handle(order: int): ...

    job_id = shop.enqueue({"order": 1})
    async with shop.worker(heartbeat=0.05):
        await shop.is_in(job_id, Spot.ARCHIVE)
        await until(lambda: marks(shop) == [])


@pytest.mark.parametrize(
    ("once", "field"),
    [
        (lambda: Once(by_order, keep=0), "keep"),
        (lambda: Once(by_order, keep=float("nan")), "keep"),
        (lambda: Once(by_order, keep="a week"), "keep"),  # type: ignore[arg-type]
        (lambda: Once(by_order, scope="no good"), "scope"),
        (lambda: Once(lambda order, whose: "k"), "once"),
        (lambda: Once("order"), "once"),  # type: ignore[arg-type]
        (lambda: "order", "once"),
    ],
    ids=["no time", "no number", "words", "a name with a space", "another parameter", "a string in it", "a string"],
)
def test_what_is_no_marker_is_refused_by_name(once: Any, field: str):
    async def handle(order: int): ...

    with pytest.raises(InvalidField) as refused:
        Registry().register(handle, "t", once=once())
    assert refused.value.field == field
