"""The database goes and comes back: said once each, leases kept first and judged later, claims that were lost found."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from redrive.domain.errors import Unavailable
from redrive.domain.failures import Reason
from redrive.domain.moves import Answer
from redrive.domain.states import Place, Spot, Verb
from redrive.store.port import ClaimRequest, WorkerPort
from redrive.worker import outages
from redrive.worker import rescue as rescuing
from redrive.worker.chores import Chore
from redrive.worker.context import JobContext
from redrive.worker.leases import Leases
from redrive.worker.options import WorkerOptions
from redrive.worker.outages import Outage
from redrive.worker.rescue import GRACE, Rescuer
from redrive.worker.runner import Runner

from .make import TYPE, run_of, until
from .shop import Shop, in_loop

CALLS = ("claim", "promote", "heartbeat", "seen", "settle", "listen", "rescue", "now", "reclaim")


class Switch:
    """Makes every call of a shop's workers fail while it is on."""

    def __init__(self, shop: Shop) -> None:
        self.on = threading.Event()
        self.cause = "lost"
        for name in CALLS:
            shop.port.before[name] = self._refuse

    def _refuse(self, *_: Any, **__: Any) -> None:
        if self.on.is_set():
            raise Unavailable("away", cause=self.cause)


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@in_loop
async def test_one_line_when_it_goes_and_one_when_it_is_back(lite_shop: Shop):
    gate = asyncio.Event()

    @lite_shop.on()
    async def handle():
        await gate.wait()

    switch = Switch(lite_shop)
    job_id = lite_shop.enqueue()
    with capture_logs() as lines:
        async with lite_shop.worker(heartbeat=0.05, zombie_timeout=60, fetched_timeout=60) as worker:
            await until(lambda: worker.runner.running)
            switch.on.set()
            gate.set()
            await until(lambda: all(lite_shop.port.calls.count(name) > 3 for name in ("heartbeat", "settle")))
            await until(lambda: [line for line in lines if line["event"] == "database-away"])
            switch.cause = "refused"
            failed = len(lite_shop.port.calls)
            await until(lambda: len(lite_shop.port.calls) > failed + 20)
            switch.on.clear()
            await lite_shop.is_in(job_id, Spot.ARCHIVE)
            await until(lambda: [line for line in lines if line["event"] == "database-back"])
    said = [(line["event"], line.get("cause")) for line in lines if line["event"].startswith("database")]
    assert said == [("database-away", "lost"), ("database-away", "refused"), ("database-back", None)]
    assert not [line for line in lines if "-waits" in line["event"] or "-failed" in line["event"]]


def test_it_is_back_when_all_that_failed_comes_through_again():
    """A server that answers reads and refuses writes does not come and go."""
    outage = Outage()
    with capture_logs() as lines:
        outage.failed("claim", Unavailable("read-only", cause="read-only"))
        outage.failed("settle", Unavailable("read-only", cause="read-only"))
        outage.succeeded("rescue")
        outage.succeeded("claim")
        assert outage.away
        assert outage.calm() == 0.0
        outage.failed("claim", Unavailable("read-only", cause="read-only"))
        outage.succeeded("settle")
        outage.succeeded("claim")
        assert not outage.away
    assert [(line["event"], line.get("calls_failed")) for line in lines] == [
        ("database-away", None),
        ("database-back", 3),
    ]


def test_a_chore_that_met_an_outage_comes_back_soon():
    calls: list[float] = []
    again = threading.Event()

    def action() -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            raise Unavailable("away")
        again.set()

    chore = Chore("heartbeat", 60.0, action, Outage())
    assert chore.tick() is not None
    assert chore.tick() is None
    calls.clear()
    again.clear()
    quick = Chore("heartbeat", 0.2, action, Outage())
    quick.start()
    assert again.wait(20)
    quick.stop()
    quick.join(20)
    assert calls[1] - calls[0] < 0.18, "before the next interval"


# -- at the start ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_database_that_is_away_at_the_start_is_waited_for(lite_shop: Shop):
    @lite_shop.on()
    async def handle(): ...

    failures: list[int] = []

    def refuse(*_: Any) -> None:
        failures.append(1)
        if len(failures) < 3:
            raise Unavailable("away")

    lite_shop.port.before["register"] = refuse
    job_id = lite_shop.enqueue()
    stop = asyncio.Event()
    serving = asyncio.create_task(lite_shop.worker().serve(stop, patient=True))
    await lite_shop.is_in(job_id, Spot.ARCHIVE)
    stop.set()
    await serving


@in_loop
async def test_who_waits_for_the_database_can_be_stopped(lite_shop: Shop):
    @lite_shop.on()
    async def handle(): ...

    stop = asyncio.Event()

    def refuse(*_: Any) -> None:
        raise Unavailable("away")

    lite_shop.port.before["register"] = refuse
    serving = asyncio.create_task(lite_shop.worker().serve(stop, patient=True))
    await until(lambda: lite_shop.port.calls.count("register") > 2)
    stop.set()
    async with asyncio.timeout(20):
        await serving
    with pytest.raises(Unavailable):  # a burst, or an application that it is part of, is told
        await lite_shop.worker().serve(stop, burst=True)


# -- claims without an answer ------------------------------------------------------------------------------------------


@in_loop
async def test_a_claim_whose_answer_was_lost_is_taken_up(shop: Shop):
    """Started and fetched jobs alike; each runs once, in its first attempt."""
    gate, runs = threading.Event(), list[tuple[str, int]]()

    @shop.on("thread.v1")
    def thread(ctx: JobContext, n: int = 0):
        runs.append((str(ctx.id), ctx.attempt))
        assert gate.wait(30)

    @shop.on("loop.v1")
    async def loop(ctx: JobContext, n: int = 0):
        runs.append((str(ctx.id), ctx.attempt))

    lost: list[int] = []

    def lose(jobs: Any, *_: Any) -> None:
        if jobs and not lost:
            lost.append(len(jobs))
            raise Unavailable("the answer is lost", cause="lost")

    shop.port.after["claim"] = lose
    ids = shop.enqueue_many(3, "thread.v1") + shop.enqueue_many(2, "loop.v1")
    with capture_logs() as lines:
        async with shop.worker(threads=1):
            await until(lambda: runs)
            gate.set()
            for job_id in ids:
                await shop.is_in(job_id, Spot.ARCHIVE)
    assert lost == [5]
    assert sorted(runs) == sorted((str(job_id), 1) for job_id in ids)
    assert "claims-taken-up" in [line["event"] for line in lines]


@pytest.mark.slow
@in_loop
async def test_a_claim_whose_answer_was_lost_expires_where_it_cannot_be_taken_up(shop: Shop):
    """Its worker lives, and its heartbeats do not keep what it does not know of."""
    runs: list[int] = []

    @shop.on()
    async def handle(ctx: JobContext):
        runs.append(ctx.life)

    away = threading.Event()
    away.set()

    def lose(jobs: Any, *_: Any) -> None:
        if jobs and away.is_set():
            raise Unavailable("the answer is lost", cause="lost")

    def refuse(*_: Any) -> None:
        if away.is_set():
            raise Unavailable("away", cause="lost")

    shop.port.after["claim"], shop.port.before["reclaim"] = lose, refuse
    job_id = shop.enqueue()
    async with shop.worker(heartbeat=0.05, zombie_timeout=0.3, fetched_timeout=0.3):
        await until(lambda: shop.head(job_id).spot is Spot.PROCESSING)
        beats = shop.port.calls.count("seen")
        await until(lambda: shop.port.calls.count("seen") > beats + 2)
        await until(lambda: _rescue(shop, 0.3) or shop.head(job_id).place is Place.DLQ)
        assert shop.head(job_id).reason is Reason.ZOMBIE
        away.clear()
        shop.operate(Verb.RESURRECT, job_id)
        await shop.is_in(job_id, Spot.ARCHIVE)
    assert runs == [2]


@in_loop
async def test_a_claim_answered_so_late_that_somebody_judged_it_does_not_run(shop: Shop):
    runs: list[int] = []

    @shop.on()
    async def handle(n: int):
        runs.append(n)

    kept, taken = shop.enqueue({"n": 1}), shop.enqueue({"n": 2})
    late: list[float] = []

    def hold(jobs: Any, *_: Any) -> None:
        if not jobs or late:
            return
        began = time.monotonic()
        wish = {job.uuid: job for job in jobs}
        assert set(wish) == {kept, taken}
        until_now = shop.store.rescue(zombie_timeout=0, fetched_timeout=60, rules=shop.registry.rules, slot=0)
        assert len(until_now) == 2
        shop.operate(Verb.RESURRECT, kept)
        while time.monotonic() - began <= 0.25:
            time.sleep(0.01)
        late.append(time.monotonic() - began)

    shop.port.after["claim"] = hold
    async with shop.worker(heartbeat=0.15, zombie_timeout=0.5, fetched_timeout=0.5) as worker:
        await shop.is_in(kept, Spot.ARCHIVE)
        await until(lambda: not worker.runner.held)
        assert worker.settler.answers == {Answer.APPLIED: 1}
    assert runs == [1]
    assert shop.head(taken).reason is Reason.ZOMBIE


@in_loop
async def test_an_end_that_could_not_be_settled_is_not_run_again(lite_shop: Shop):
    """Its lease is let go on purpose: it is no claim whose answer was lost."""
    runs: list[int] = []

    @lite_shop.on()
    async def handle(n: int = 0):
        runs.append(n)

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    lose: list[int] = []

    def fail(*_: Any) -> None:
        if lose:
            lose.pop()
            raise Unavailable("away", cause="lost")

    lite_shop.port.before["settle"], lite_shop.port.before["claim"] = broken, fail
    job_id = lite_shop.enqueue()
    async with lite_shop.worker() as worker:
        await until(lambda: worker.runner.let_go)
        lose.append(1)
        await until(lambda: lite_shop.port.calls.count("reclaim") == 1)
        calls = lite_shop.port.calls.count("claim")
        await until(lambda: lite_shop.port.calls.count("claim") > calls + 1)
    assert runs == [0]
    assert lite_shop.head(job_id).spot is Spot.PROCESSING


class Held:
    """What a worker holds, and which of it was given up."""

    def __init__(self, number: int) -> None:
        def handle() -> None: ...

        self.held = {run.pair: run for run in (run_of(handle) for _ in range(number))}
        self.lost: list[Any] = []

    def lose(self, pair: Any) -> None:
        self.lost.append(pair)


@in_loop
async def test_a_lease_is_given_up_when_it_ends_and_not_at_the_next_interval(lite_shop: Shop):
    """Or the second run could begin before the first has learnt anything."""
    runner = Held(2)
    leases = Leases(
        cast(WorkerPort, lite_shop.port), cast(Runner, runner), asyncio.get_running_loop(),
        worker_id="w", interval=60.0, patience=0.1, waiting=lambda: False, register=lambda: None,
        condition=lambda: pytest.fail("nothing is sent here"), ordered=lambda _: None, outage=Outage(),
    )  # fmt: skip
    watching = asyncio.create_task(leases.watch())
    await until(lambda: set(runner.lost) == set(runner.held))
    watching.cancel()


def _rescue(shop: Shop, timeout: float) -> object:
    return shop.store.rescue(zombie_timeout=timeout, fetched_timeout=timeout, rules=shop.registry.rules, slot=5)


# -- rescues -----------------------------------------------------------------------------------------------------------


class Clock:
    """Time as the rescuer and the outage see it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Bench:
    """A rescuer on a shop whose one job is held by a worker that vanished; its clocks are ours."""

    INTERVAL = 10.0

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        for module in (rescuing, outages):
            monkeypatch.setattr(module, "time", self.clock)
        self.outage = Outage()
        self.shop = shop
        self.database = shop.store.now()
        self.as_of: Any = None
        real = shop.port
        bench = self

        class Port:
            def now(self) -> Any:
                real.now()
                return bench.database

            def rescue(self, **named: Any) -> Any:
                bench.as_of = named.pop("as_of")
                return real.rescue(**named)

        options = WorkerOptions(heartbeat=self.INTERVAL)
        self.rescuer = Rescuer(cast(WorkerPort, Port()), shop.registry.rules, options, self.outage, slot=0)

    def pass_time(self, seconds: float, *, database: float | None = None) -> None:
        """Time passes here, and the same (or another) time in the database."""
        self.clock.now += seconds
        self.database += timedelta(seconds=seconds if database is None else database)

    def rescued(self) -> bool:
        """Whether a round judged."""
        calls = self.shop.port.calls.count("rescue")
        self.rescuer.round()
        return self.shop.port.calls.count("rescue") > calls


@pytest.fixture
def bench(lite_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(lite_shop, monkeypatch)


def test_who_has_just_begun_judges_nobody(bench: Bench):
    assert not bench.rescued()
    bench.pass_time(10.0)
    assert not bench.rescued()
    bench.pass_time(10.0)
    assert bench.rescued()


def test_after_an_outage_everybody_has_time_to_renew_first(bench: Bench):
    bench.pass_time(100.0)
    assert bench.rescued()
    bench.outage.failed("claim", Unavailable("away"))
    bench.pass_time(300.0)
    assert not bench.rescued()
    bench.outage.succeeded("claim")
    for _ in range(GRACE):
        assert not bench.rescued()
        bench.pass_time(10.0)
    assert bench.rescued()


def test_a_round_that_waited_for_the_database_is_left_out(bench: Bench):
    bench.pass_time(100.0)
    assert bench.rescued()
    bench.shop.port.before["now"] = lambda: bench.pass_time(10.5)
    assert not bench.rescued()
    del bench.shop.port.before["now"]
    bench.pass_time(10.0)
    assert not bench.rescued()
    bench.pass_time(10.0)
    assert bench.rescued()


def test_who_waited_inside_a_rescue_lets_the_others_renew(bench: Bench):
    bench.pass_time(100.0)
    bench.shop.port.before["rescue"] = lambda **_: bench.pass_time(11.0)
    assert bench.rescued()
    del bench.shop.port.before["rescue"]
    bench.pass_time(10.0)
    assert not bench.rescued()
    bench.pass_time(10.0)
    assert bench.rescued()


@pytest.mark.parametrize("step", [3600.0, -3600.0, 6.0, -6.0])
def test_a_step_of_the_databases_clock_is_waited_out(bench: Bench, step: float):
    bench.pass_time(100.0)
    assert bench.rescued()
    bench.pass_time(10.0, database=10.0 + step)
    with capture_logs() as lines:
        assert not bench.rescued()
    assert [(line["event"], line["seconds"]) for line in lines] == [("clock-stepped", step)]
    bench.pass_time(10.0)
    assert not bench.rescued()
    bench.pass_time(10.0)
    assert bench.rescued()


def test_a_rescue_knows_what_time_it_should_be(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """By the round's look at the clock, and the time that has passed here since: a step after it does not count."""
    bench.pass_time(100.0)
    looked = bench.database

    def calm() -> float:
        bench.pass_time(1.0, database=3600.0)
        return 100.0

    monkeypatch.setattr(bench.outage, "calm", calm)
    assert bench.rescued()
    assert bench.as_of == looked + timedelta(seconds=1.0)


def test_a_clock_that_drifts_a_little_is_no_step(bench: Bench):
    bench.pass_time(100.0)
    for drift in (0.5, -0.5, 4.0):
        bench.pass_time(10.0, database=10.0 + drift)
        assert bench.rescued()


def test_a_rescue_that_waited_or_saw_another_time_takes_nothing(shop: Shop):
    @shop.on()
    async def handle(): ...

    job_id = shop.enqueue()
    shop.drain(queues=("other",))
    _claim(shop)
    rescue: Callable[..., Any] = shop.store.rescue
    judge = {"zombie_timeout": 0.0, "fetched_timeout": 0.0, "rules": shop.registry.rules, "slot": 0, "within": 60.0}
    now = shop.store.now()
    for waited in (timedelta(seconds=70), -timedelta(seconds=70)):
        assert rescue(**judge, as_of=now - waited) == []
        assert shop.head(job_id).spot is Spot.PROCESSING
    assert [found.id for found in rescue(**judge, as_of=now)] == [job_id]


def test_a_lease_from_the_future_expires_too(shop: Shop):
    """The clock was set back by an hour; whoever lives has renewed its leases by the new time."""

    @shop.on()
    async def handle(): ...

    job_id = shop.enqueue()
    shop.drain(queues=("other",))
    _claim(shop)
    ahead: dict[str, Any] = {"fetched_timeout": 60.0, "rules": shop.registry.rules, "slot": 0}
    _set_ahead(shop, 3600.0)
    assert shop.store.rescue(zombie_timeout=7200.0, **ahead) == []
    assert [found.id for found in shop.store.rescue(zombie_timeout=60.0, **ahead)] == [job_id]


def _claim(shop: Shop) -> None:
    with shop.store._db.engine.connect() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql(_queue(shop))
        connection.commit()
    (job,) = shop.store.claim(ClaimRequest("gone", ("default",), 1, (TYPE,)))
    assert job.started


def _queue(shop: Shop) -> str:
    return f"INSERT INTO {_schema(shop)}queues (name, paused, version) VALUES ('default', false, 0)"


def _set_ahead(shop: Shop, seconds: float) -> None:
    moved = f"heartbeat_at + interval '{seconds} s'" if _schema(shop) else f"heartbeat_at + {int(seconds * 1e6)}"
    with shop.store._db.engine.connect() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql(f"UPDATE {_schema(shop)}jobs_hot SET heartbeat_at = {moved}")
        connection.commit()


def _schema(shop: Shop) -> str:
    return "redrive." if shop.store._db.name == "postgresql" else ""  # type: ignore[attr-defined]
