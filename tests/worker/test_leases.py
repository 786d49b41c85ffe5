"""Heartbeats: leases that are kept, cancel requests that arrive, leases that are lost."""

import asyncio
import threading
import time
from contextlib import closing
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from redrive.domain.errors import Cancel, Unavailable
from redrive.domain.failures import Reason
from redrive.domain.moves import Answer
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Place, Spot, Verb
from redrive.store.port import ClaimRequest, Rescued, WorkerPort
from redrive.store.sql.store import open_store
from redrive.worker.context import JobContext
from redrive.worker.leases import Leases
from redrive.worker.loop import AGAIN
from redrive.worker.registry import Registry

from .make import until
from .shop import Shop, in_loop


def rescue(shop: Shop, timeout: float) -> list[Rescued]:
    """What another worker's rescuer would take that knows the types."""
    return shop.store.rescue(zombie_timeout=timeout, fetched_timeout=timeout, rules=shop.registry.rules, slot=5)


@pytest.mark.slow
@in_loop
async def test_many_long_runs_keep_their_leases_and_each_runs_once(shop: Shop):
    """Fifty runs, a lease much shorter than they are, and a rescuer that looks all the time."""
    runs, gate = [], asyncio.Event()

    @shop.on()
    async def handle(n: int):
        runs.append(n)
        await gate.wait()

    ids = shop.enqueue_many(50)
    async with shop.worker(async_slots=50, heartbeat=0.1, zombie_timeout=3.0, fetched_timeout=3.0):
        await until(lambda: len(runs) == 50)
        beats = shop.port.calls.count("heartbeat")
        deadline = time.monotonic() + 4.5
        while time.monotonic() < deadline:
            assert await asyncio.to_thread(rescue, shop, 3.0) == []
            await asyncio.sleep(0.05)
        assert shop.port.calls.count("heartbeat") > beats + 5
        gate.set()
        for job_id in ids:
            await shop.is_in(job_id, Spot.ARCHIVE)
    assert sorted(runs) == list(range(50))


@in_loop
async def test_code_that_blocks_the_loop_does_not_look_dead(shop: Shop):
    """The heartbeat has a thread of its own: while the loop is blocked, leases are renewed all the same."""
    shop_calls: list[int] = []

    @shop.on()
    async def handle():
        before = shop.port.calls.count("heartbeat")
        blocked_until = time.monotonic() + 20
        while shop.port.calls.count("heartbeat") < before + 3 and time.monotonic() < blocked_until:
            time.sleep(0.01)  # noqa: ASYNC251 - that is the point
        shop_calls.append(shop.port.calls.count("heartbeat") - before)

    job_id = shop.enqueue()
    async with shop.worker():
        await shop.is_in(job_id, Spot.ARCHIVE)
    assert shop_calls == [3]


@in_loop
async def test_a_cancel_request_reaches_both_kinds_of_handlers(shop: Shop):
    entered = []

    @shop.on("loop.v1")
    async def in_loop():
        entered.append("loop")
        await asyncio.Event().wait()

    @shop.on("thread.v1")
    def in_thread(ctx: JobContext):
        entered.append("thread")
        while not ctx.cancelled:
            time.sleep(0.005)
        raise Cancel("as asked")

    ids = [shop.enqueue(type="loop.v1"), shop.enqueue(type="thread.v1")]
    async with shop.worker():
        await until(lambda: len(entered) == 2)
        shop.operate(Verb.CANCEL, *ids)
        for job_id in ids:
            record = await shop.is_in(job_id, Spot.DLQ)
            assert record.head.reason is Reason.CANCELLED
    assert shop.store.queues()[0].failed_total == 0


@pytest.mark.slow
@pytest.mark.postgres
def test_a_cancel_request_arrives_at_once_where_the_database_can_tell(postgres_url: str):
    """No heartbeat in a quarter of an hour; the operator's words are there all the same."""
    entered: list[str] = []
    told: list[float] = []

    async def main() -> None:
        async with shop.worker(heartbeat=1000, zombie_timeout=3000, fetched_timeout=3000, poll=1000) as worker:
            await until(lambda: len(entered) == 2)
            began = time.monotonic()
            shop.operate(Verb.CANCEL, *ids)
            for job_id in ids:
                assert (await shop.is_in(job_id, Spot.DLQ)).head.reason is Reason.CANCELLED
            told.append(time.monotonic() - began)
            assert worker.runner.running == 0
            later = shop.enqueue(type="loop.v1")
            await until(lambda: len(entered) == 3)
            shop.operate(Verb.CANCEL, later)
            await shop.is_in(later, Spot.DLQ)

    with closing(open_store(postgres_url)) as store:
        shop = Shop(store)

        @shop.on("loop.v1")
        async def in_loop():
            entered.append("loop")
            await asyncio.Event().wait()

        @shop.on("thread.v1")
        def in_thread(ctx: JobContext):
            entered.append("thread")
            while not ctx.cancelled:
                time.sleep(0.002)
            raise Cancel("as asked")

        ids = [shop.enqueue(type="loop.v1"), shop.enqueue(type="thread.v1")]
        asyncio.run(main())
        assert shop.kept()
    print(f"cancelled, settled and read after {told[0] * 1000:.0f} ms")
    assert told[0] < 5


@in_loop
async def test_of_a_cancel_request_success_wins_and_a_failing_end_is_cancelled(shop: Shop):
    entered = []

    @shop.on("finishes.v1")
    async def finishes():
        entered.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"

    @shop.on("fails.v1")
    async def fails():
        entered.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("while cleaning up")

    done, failed = shop.enqueue(type="finishes.v1"), shop.enqueue(type="fails.v1")
    async with shop.worker():
        await until(lambda: len(entered) == 2)
        shop.operate(Verb.CANCEL, done, failed)
        assert (await shop.is_in(done, Spot.ARCHIVE)).result == b'"done all the same"'
        assert (await shop.is_in(failed, Spot.DLQ)).head.reason is Reason.CANCELLED


@in_loop
async def test_a_lost_lease_stops_the_run_and_its_settle_changes_nothing(shop: Shop):
    entered, came_out = [], []

    @shop.on("loop.v1")
    async def in_loop():
        entered.append(1)
        try:
            await asyncio.Event().wait()
        finally:
            came_out.append("loop")

    @shop.on("finishes.v1")
    def finishes(ctx: JobContext):
        entered.append(1)
        while not ctx.cancelled:
            time.sleep(0.005)
        came_out.append("thread")
        return "late"

    lost, late = shop.enqueue(type="loop.v1"), shop.enqueue(type="finishes.v1")
    holding = threading.Event()
    shop.port.before["heartbeat"] = lambda *_, **__: holding.wait(20)
    async with shop.worker() as worker:
        await until(lambda: len(entered) == 2)
        await until(lambda: len(rescue(shop, 0.0)) or shop.head(lost).place is Place.DLQ)
        await until(lambda: shop.head(late).place is Place.DLQ or rescue(shop, 0.0))
        holding.set()
        await until(lambda: worker.settler.answers == {Answer.STALE: 2})
    assert sorted(came_out) == ["loop", "thread"]
    for job_id, kind in ((lost, "late_failure"), (late, "late_success")):
        record = shop.record(job_id)
        assert record.head.reason is Reason.ZOMBIE
        assert [entry.kind for entry in record.ledger] == ["zombie", kind]


@pytest.mark.slow
@in_loop
async def test_when_the_database_is_away_too_long_leases_are_presumed_lost(shop: Shop):
    entered, away = [], threading.Event()

    def refuse(*_, **__):
        if away.is_set():
            raise Unavailable("away")

    @shop.on()
    async def handle():
        entered.append(1)
        away.set()
        await asyncio.Event().wait()

    for name in ("heartbeat", "settle", "claim", "seen", "promote", "rescue"):
        shop.port.before[name] = refuse
    job_id = shop.enqueue()
    with capture_logs() as lines:
        async with shop.worker(heartbeat=0.05, zombie_timeout=0.4, fetched_timeout=0.4) as worker:
            await until(lambda: entered)
            began = time.monotonic()
            await until(lambda: not worker.runner.running)
            assert time.monotonic() - began > 0.2
            assert shop.head(job_id).place is Place.HOT
            away.clear()
            record = await shop.is_in(job_id, Spot.DLQ)
    assert record.head.reason in (Reason.HEARTBEAT_LOST, Reason.ZOMBIE)  # who comes first when it is back
    assert "lease-lost" in [line["event"] for line in lines]


@pytest.mark.slow
@in_loop
async def test_a_beat_that_hangs_renews_nothing(lite_shop: Shop):
    """The other end is gone without a word: no error comes, for minutes."""
    entered, silence = asyncio.Event(), threading.Event()
    cancelled = asyncio.Event()

    @lite_shop.on()
    async def handle():
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    lite_shop.enqueue()
    async with lite_shop.worker(heartbeat=0.05, zombie_timeout=0.5, fetched_timeout=0.5):
        await entered.wait()
        lite_shop.port.before["heartbeat"] = lambda *_, **__: silence.wait(60)
        await cancelled.wait()
        silence.set()


@in_loop
async def test_what_it_says_of_waiting_is_never_an_old_word(lite_shop: Shop):
    """A heartbeat that read "it does not wait" must not write that after the loop wrote that it does."""

    @lite_shop.on()
    async def handle(): ...

    announced: list[bool] = []
    said: list[bool] = []
    waiting = False

    def hear(answer: object, _: str, *, waiting: bool, condition: object = None) -> None:
        announced.append(waiting)

    def change(answer: object, _: str, *, waiting: bool, condition: object = None) -> None:
        said.append(waiting)
        flip()

    def flip() -> None:
        nonlocal waiting
        waiting = True

    lite_shop.port.after["seen"] = hear
    async with lite_shop.worker(heartbeat=1000, zombie_timeout=3000, fetched_timeout=3000) as worker:
        leases = Leases(
            cast(WorkerPort, lite_shop.port), worker.runner, asyncio.get_running_loop(),
            worker_id=worker.id, interval=1, patience=9, waiting=lambda: waiting, register=lambda: None,
            condition=worker.standing.condition, ordered=worker.standing.ordered, outage=worker.outage,
        )  # fmt: skip
        await until(lambda: True in announced)  # the worker's own word; it has no other to say
        lite_shop.port.after["seen"] = change
        await asyncio.to_thread(leases._say)
        lite_shop.port.after.clear()
    assert said == [False, True]


@in_loop
async def test_a_short_outage_loses_no_lease(shop: Shop):
    entered: list[int] = []
    failures: list[int] = []
    gate = asyncio.Event()

    def refuse(*_, **__):
        if len(failures) < 3:
            failures.append(1)
            raise Unavailable("away")

    @shop.on()
    async def handle():
        entered.append(1)
        await gate.wait()

    shop.port.before["heartbeat"] = refuse
    job_id = shop.enqueue()
    async with shop.worker(heartbeat=0.05, zombie_timeout=60):
        await until(lambda: entered and len(failures) == 3)
        calls = shop.port.calls.count("heartbeat")
        await until(lambda: shop.port.calls.count("heartbeat") > calls)
        gate.set()
        await shop.is_in(job_id, Spot.ARCHIVE)


@in_loop
async def test_progress_travels_with_the_heartbeat_once(shop: Shop):
    gate, entered, said = asyncio.Event(), asyncio.Event(), []

    @shop.on()
    async def handle(ctx: JobContext):
        ctx.progress(40, "4 of 10 booked")
        entered.set()
        await gate.wait()

    def watch(pairs, *, progress: Any):
        if progress:
            said.extend(progress.values())

    shop.port.before["heartbeat"] = watch
    job_id = shop.enqueue()
    async with shop.worker(heartbeat=0.05):
        await entered.wait()
        await until(lambda: shop.head(job_id).progress == "40 % 4 of 10 booked")
        calls = shop.port.calls.count("heartbeat")
        await until(lambda: shop.port.calls.count("heartbeat") > calls + 2)
        gate.set()
        await shop.is_in(job_id, Spot.ARCHIVE)
    assert said == ["40 % 4 of 10 booked"]


@in_loop
async def test_a_worker_that_was_taken_for_dead_registers_again(shop: Shop):
    @shop.on()
    async def handle(): ...

    async with shop.worker() as worker:
        shop.store.unregister(worker.id)
        await until(lambda: [view.id for view in shop.store.workers()] == [worker.id])
    assert shop.store.workers() == []


@in_loop
async def test_a_worker_announces_itself_and_its_types(shop: Shop):
    @shop.on("mail.v1", queue="mail", idempotent=True, owner="ann")
    async def handle(to: str): ...

    async with shop.worker(async_slots=7, build="b7") as worker:
        (view,) = shop.store.workers()
        assert (view.id, view.queues, view.types, view.concurrency, view.build) == (
            worker.id, ("mail",), ("mail.v1",), 7, "b7",
        )  # fmt: skip
        await until(lambda: shop.store.workers()[0].waiting)
        (kind,) = shop.store.types()
        assert (kind.type, kind.queue, kind.idempotent, kind.owner) == ("mail.v1", "mail", True, "ann")
        assert set(kind.schema["properties"]) == {"to"}
    assert worker.id.count(":") == 2


@pytest.mark.slow
@in_loop
async def test_rescue_is_a_chore_of_every_worker(shop: Shop):
    @shop.on("zombie.v1")
    async def zombie(): ...

    async with shop.worker():
        pass  # now the queue is known
    job_id = shop.enqueue(type="zombie.v1")
    (held,) = shop.store.claim(ClaimRequest("gone", ("default",), 1, ("zombie.v1",)))
    assert held.started
    async with shop.worker(heartbeat=0.05, zombie_timeout=0.3, fetched_timeout=0.3):
        record = await shop.is_in(job_id, Spot.DLQ)
    assert record.head.reason is Reason.ZOMBIE


@pytest.mark.slow
@in_loop
async def test_a_run_waits_for_a_rescuer_that_knows_its_type(shop: Shop):
    """It may be repeated, says its handler; a worker without that handler must not bury it first."""
    other = Registry(RetryPolicy(base=0, jitter=0))
    runs: list[int] = []

    @shop.on("again.v1", idempotent=True, on_zombie="retry")
    async def again(ctx: JobContext):
        runs.append(ctx.attempt)

    async def unrelated(): ...

    other.register(unrelated, "unrelated.v1")
    short: dict[str, Any] = {"heartbeat": 0.2, "zombie_timeout": 0.6, "fetched_timeout": 0.6}
    async with shop.worker():
        pass  # now the queue and the type are known
    job_id = shop.enqueue(type="again.v1")
    (held,) = shop.store.claim(ClaimRequest("gone", ("default",), 1, ("again.v1",)))
    async with shop.worker(other, queues=("elsewhere",), **short):  # or it would put the job off, too
        rounds: list[Any] = []
        shop.port.after["rescue"] = lambda answer, **_: rounds.append(answer)
        await until(lambda: len(rounds) > 4)  # for longer than the lease
        assert [found for found in rounds if found] == []
        assert shop.head(job_id).spot is Spot.PROCESSING
        async with shop.worker(**short):
            record = await shop.is_in(job_id, Spot.ARCHIVE)
    assert runs == [2]
    assert [line.kind for line in record.ledger] == ["zombie"]
    assert held.attempt == 1


@in_loop
async def test_the_sealer_is_called(lite_shop: Shop):
    @lite_shop.on()
    async def handle(): ...

    called = []
    worker = lite_shop.worker()
    worker._seal = lambda: called.append(1)
    async with worker:
        await until(lambda: len(called) > 1)


@pytest.mark.slow
@in_loop
async def test_a_chore_that_raises_is_tried_again(lite_shop: Shop):
    @lite_shop.on()
    async def handle(): ...

    def fail(*_, **__):
        raise ZeroDivisionError("a bug")

    lite_shop.port.before["rescue"] = fail
    with capture_logs() as lines:
        async with lite_shop.worker():
            await until(lambda: lite_shop.port.calls.count("rescue") > 2)
    assert "rescue-failed" in [line["event"] for line in lines]


@in_loop
async def test_a_broken_subscription_is_made_anew_and_what_came_meanwhile_is_found(shop: Shop):
    back = threading.Event()

    def refuse(*_):
        if not back.is_set():
            raise Unavailable("away")

    @shop.on()
    async def handle(): ...

    shop.port.before["listen"] = refuse
    async with shop.worker(poll=3600) as worker:
        await until(lambda: worker.line._quiet > len(AGAIN))
        job_id = shop.enqueue()
        back.set()
        await shop.is_in(job_id, Spot.ARCHIVE)
