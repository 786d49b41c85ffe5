"""A worker and its breakers, on both databases: what it leaves alone, what it lets through, what it says."""

import asyncio
import contextlib
from typing import Any

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.circuit import Breaker, CircuitState, Said, Seen
from redrive.domain.errors import Fatal, InvalidField, Retryable, Throttled, Unavailable
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Spot
from redrive.store.port import CircuitView
from redrive.store.sql.tables import jobs_hot
from redrive.store.sql.tables_later import circuits
from redrive.worker.circuits import Circuits
from redrive.worker.options import WorkerOptions
from redrive.worker.registry import Registry
from tests.store.rows import Rows

from .make import until
from .shop import Shop, in_loop

PAY, FREE = "pay.v1", "free.v1"
AGAIN = RetryPolicy(max_attempts=100, base=0, jitter=0)


class Provider:
    """What the handlers call. It fails while it is ``down``; ``gate`` holds its callers."""

    def __init__(self) -> None:
        self.down = True
        self.asked = 0
        self.inside = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self) -> None:
        self.asked += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.gate.wait()
            if self.down:
                raise ConnectionError("refused")
        finally:
            self.inside -= 1


def serve(shop: Shop, provider: Provider, breaker: Breaker, **declared: Any) -> None:
    @shop.on(PAY, breaker=breaker, retry=AGAIN, **declared)
    async def pay(n: int) -> None:
        await provider.ask()


def circuit(shop: Shop, name: str = PAY) -> CircuitView:
    (found,) = [one for one in shop.store.circuits() if one.name == name]
    return found


def over(shop: Shop) -> None:
    """As if the time of every open circuit were over."""
    rows = Rows(shop.store)  # type: ignore[arg-type]
    rows.run(update(circuits).where(circuits.c.probe_at.is_not(None)).values(probe_at=circuits.c.changed_at))


def lines(said: list[Any], *events: str) -> list[Any]:
    return [one for one in said if one["event"] in events]


@in_loop
async def _story(shop: Shop, said: list[Any]) -> None:
    provider = Provider()
    serve(shop, provider, Breaker(failures=3, open_for=3600, probes=1))
    free: list[int] = []

    @shop.on(FREE)
    async def handle(n: int) -> None:
        free.append(n)

    jobs = shop.enqueue_many(6, PAY)
    rows = Rows(shop.store)  # type: ignore[arg-type]

    def stored() -> list[Any]:
        return rows.all(select(jobs_hot).where(jobs_hot.c.type == PAY).order_by(jobs_hot.c.id))

    async with shop.worker(async_slots=1, poll=0.05):
        await until(lambda: circuit(shop).state is CircuitState.OPEN)
        await until(lambda: all(shop.head(job).spot is Spot.PENDING for job in jobs))
        before, asked = stored(), provider.asked
        assert asked >= 3  # a few more may have been claimed while the third failure was reported
        shop.enqueue_many(3, FREE)
        await until(lambda: len(free) == 3)
        claims = shop.port.calls.count("claim")
        await until(lambda: shop.port.calls.count("claim") > claims + 5)
        assert stored() == before, "not a row was written"
        assert provider.asked == asked

        over(shop)
        await until(lambda: provider.asked == asked + 1)
        await until(lambda: circuit(shop).state is CircuitState.OPEN)
        assert circuit(shop).reason == "a probe failed: ConnectionError: refused"

        provider.down = False
        over(shop)
        await until(lambda: all(shop.head(job).spot is Spot.ARCHIVE for job in jobs))
        assert circuit(shop).state is CircuitState.CLOSED
        assert provider.asked == asked + 1 + 6


@pytest.mark.slow
def test_it_opens_probes_and_closes(shop: Shop):
    with capture_logs() as said:
        _story(shop, said)
    told = [(one["event"], one["reason"]) for one in lines(said, "circuit-opened", "circuit-closed")]
    assert told == [
        ("circuit-opened", "3 failures in a row, the last: ConnectionError: refused"),
        ("circuit-opened", "a probe failed: ConnectionError: refused"),
        ("circuit-closed", "a probe succeeded"),
    ], "one line each"
    assert lines(said, "circuit-opened")[0]["types"] == [PAY]


@pytest.mark.slow
@in_loop
async def test_probes_are_counted_over_all_workers(shop: Shop):
    provider = Provider()
    serve(shop, provider, Breaker("provider", failures=1, open_for=3600, probes=2))
    shop.enqueue_many(30, PAY)
    open_it(shop, "provider")
    calls = shop.port.calls
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(shop.worker(async_slots=5))
        for _ in range(3):
            provider.gate.clear()
            over(shop)
            await until(lambda: provider.inside == 2)
            for _ in range(4):  # every worker looks again, more than once
                calls.clear()
                await until(lambda: calls.count("claim") > 10)
            assert (provider.most, circuit(shop, "provider").probing) == (2, 2)
            provider.gate.set()
            await until(lambda: circuit(shop, "provider").state is CircuitState.OPEN and not provider.inside)


@pytest.mark.slow
@in_loop
async def test_a_probe_whose_payload_does_not_bind_gives_its_permit_back(shop: Shop):
    provider = Provider()
    serve(shop, provider, Breaker(failures=1, open_for=3600))
    shop.enqueue({"n": 1}, PAY)
    async with shop.worker(async_slots=1):
        await until(lambda: circuit(shop).state is CircuitState.OPEN)
        broken = shop.enqueue({"wrong": 1}, PAY, priority=90)
        provider.down = False
        over(shop)
        await shop.is_in(broken, Spot.DLQ)
        await until(lambda: circuit(shop).state is CircuitState.CLOSED)
    assert provider.asked == 2


@in_loop
async def test_fatal_ends_open_nothing(lite_shop: Shop):
    @lite_shop.on(PAY, breaker=Breaker(failures=1))
    def pay(n: int) -> None:
        raise Fatal("no such customer")

    (job,) = lite_shop.enqueue_many(1, PAY)
    async with lite_shop.worker():
        await lite_shop.is_in(job, Spot.DLQ)
    assert (circuit(lite_shop).state, circuit(lite_shop).failures) == (CircuitState.CLOSED, 0)


@in_loop
async def test_a_throttling_peer_keeps_it_open_until_the_time_it_stated(lite_shop: Shop):
    @lite_shop.on(PAY, breaker=Breaker(failures=1, open_for=1), retry=AGAIN)
    async def pay(n: int) -> None:
        raise Throttled(600)

    lite_shop.enqueue_many(1, PAY)
    async with lite_shop.worker():
        await until(lambda: circuit(lite_shop).state is CircuitState.OPEN)
    wait = circuit(lite_shop).probe_in
    assert wait is not None
    assert 500 < wait <= 600


@in_loop
async def test_timeouts_open_it(lite_shop: Shop):
    @lite_shop.on(PAY, breaker=Breaker(failures=1), timeout=0.05, retry=AGAIN)
    async def pay(n: int) -> None:
        await asyncio.Event().wait()

    lite_shop.enqueue_many(1, PAY)
    async with lite_shop.worker():
        await until(lambda: circuit(lite_shop).state is CircuitState.OPEN)
    assert "it ran over its timeout" in (circuit(lite_shop).reason or "")


@in_loop
async def test_a_reset_lets_everything_through(shop: Shop):
    provider = Provider()
    serve(shop, provider, Breaker(failures=1, open_for=3600))
    jobs = shop.enqueue_many(5, PAY)
    with capture_logs() as said:
        async with shop.worker(async_slots=1) as worker:
            # A run that began before the reset and is settled after it would open the circuit again.
            await until(lambda: circuit(shop).state is CircuitState.OPEN and not worker.runner.held)
            provider.down = False
            shop.store.reset_circuit(PAY, AuditDraft(Actor("ann"), "reset-circuit", "it is back"))
            for job in jobs:
                await shop.is_in(job, Spot.ARCHIVE)
    (line,) = lines(said, "circuit-closed")
    assert line["reason"] == "reset by ann: it is back"


@pytest.mark.slow
@in_loop
async def test_a_lifetime_that_ends_behind_it_is_buried(shop: Shop):
    provider = Provider()

    @shop.on(PAY, breaker=Breaker(failures=1, open_for=3600), retry=RetryPolicy(max_age=0.3, base=3600))
    async def pay(n: int) -> None:
        await provider.ask()

    first = shop.enqueue({"n": 1}, PAY)
    async with shop.worker(async_slots=1, poll=0.02):
        await until(lambda: circuit(shop).state is CircuitState.OPEN)
        waits = shop.enqueue({"n": 2}, PAY)
        record = await shop.is_in(waits, Spot.DLQ)
    assert record.head.reason == "circuit_open"
    assert shop.head(first).reason == "retry_lifetime_expired"
    assert provider.asked == 1


@in_loop
async def test_a_worker_that_starts_behind_an_open_one_says_so(lite_shop: Shop):
    provider = Provider()
    serve(lite_shop, provider, Breaker(failures=1, open_for=3600))
    lite_shop.enqueue_many(2, PAY)
    open_it(lite_shop, PAY)
    with capture_logs() as said:
        worker = lite_shop.worker()
        await worker.serve(asyncio.Event(), burst=True)
    (line,) = lines(said, "circuit-opened")
    assert line["reason"] == "a failure: ConnectionError: refused"
    assert provider.asked == 0, "a burst ends: there is nothing it may do"


@in_loop
async def test_successes_of_a_closed_one_are_not_reported(lite_shop: Shop):
    provider = Provider()
    provider.down = False
    serve(lite_shop, provider, Breaker(failures=2))
    lite_shop.enqueue_many(50, PAY)
    await lite_shop.worker().serve(asyncio.Event(), burst=True)
    assert lite_shop.port.calls.count("observe") == 0
    assert lite_shop.port.calls.count("start") == 0, "a closed breaker costs no statement"


@in_loop
async def test_a_success_ends_the_row_of_failures_whoever_reported_them(shop: Shop):
    provider = Provider()
    serve(shop, provider, Breaker(failures=2))
    async with shop.worker(async_slots=1):
        for _ in range(3):
            provider.down = True
            job = shop.enqueue({"n": 1}, PAY)
            await until(lambda: circuit(shop).failures == 1)
            provider.down = False
            await shop.is_in(job, Spot.ARCHIVE)
            assert circuit(shop).failures == 0


@pytest.mark.parametrize("error", [Unavailable("away"), Retryable("again"), ZeroDivisionError()])
def test_an_end_that_cannot_be_reported_is_settled_all_the_same(lite_shop: Shop, error: Exception):
    provider = Provider()

    def away(*_: Any) -> None:
        raise error

    lite_shop.port.before["observe"] = away

    @lite_shop.on(PAY, breaker=Breaker(failures=1), retry=RetryPolicy(max_attempts=1))
    async def pay(n: int) -> None:
        await provider.ask()

    (job,) = lite_shop.enqueue_many(1, PAY)
    with capture_logs() as said:
        lite_shop.drain()
    assert lite_shop.head(job).reason == "retries_exhausted"
    assert len(lines(said, "circuit-not-told")) == 1


class TestQueues:
    """A queue that holds nothing but blocked types is left out of claims, except every so often."""

    @staticmethod
    def circuits(shop: Shop) -> Circuits:
        for job_type, queue, name in ((PAY, "pay", "a"), ("pay.v2", "pay", "b"), (FREE, "mixed", None)):
            breaker = None if name is None else Breaker(name, failures=1, open_for=3600)
            shop.registry.register(nothing(), job_type, queue=queue, breaker=breaker)
        shop.registry.register(nothing(), "mixed.v1", queue="mixed", breaker=Breaker("a", failures=1, open_for=3600))
        return Circuits(shop.store, shop.registry, WorkerOptions(), worker_id="w1", slot=0)

    def test_only_when_all_its_types_are_blocked(self, lite_shop: Shop, monkeypatch: pytest.MonkeyPatch):
        made, queues = self.circuits(lite_shop), ("pay", "mixed", "strange")
        assert made.queues(queues) == queues
        for name in ("a", "b"):
            open_it(lite_shop, name)
            made._read()
            if name == "a":
                assert made.queues(queues) == queues
        assert made.queues(queues) == queues, "the first look"
        assert made.queues(queues) == ("mixed", "strange")
        monkeypatch.setattr(made, "_look_at", 0.0)
        assert made.queues(queues) == queues, "jobs of another type may have been put there"
        lite_shop.store.reset_circuit("b", AuditDraft(Actor("ann"), "reset-circuit"))
        made._read()
        assert made.queues(queues) == queues


def nothing() -> Any:
    def handle() -> None: ...

    return handle


def open_it(shop: Shop, name: str) -> None:
    failed = Seen((b"x" * 16, 1), Said.FAILED, 0.0, "ConnectionError: refused")
    shop.store.observe(name, Breaker(name, failures=1, open_for=3600), [failed])


class TestDeclaration:
    def test_handlers_share_one_by_its_name(self):
        registry, shared = Registry(), Breaker("provider", failures=7)
        registry.register(nothing(), PAY, breaker=shared, aliases=("pay.v0",))
        registry.register(nothing(), FREE, breaker=Breaker("provider", failures=7))
        with pytest.raises(InvalidField, match=r"provider is declared otherwise for pay\.v1") as refused:
            registry.register(nothing(), "other.v1", breaker=Breaker("provider"))
        assert refused.value.field == "breaker"
        assert registry.get("other.v1") is None
        announced = {info.type: info.breaker for info in registry.announcements()}
        assert announced == dict.fromkeys((PAY, "pay.v0", FREE), shared.spec)

    def test_without_a_name_it_has_the_types(self):
        registry = Registry()
        assert registry.register(nothing(), PAY, breaker=Breaker()).breaker == Breaker(PAY)
        assert registry.register(nothing(), FREE).breaker is None

    def test_what_is_no_breaker(self):
        with pytest.raises(InvalidField, match="expected Breaker"):
            Registry().register(nothing(), PAY, breaker=True)
