"""Field reports about limits and priorities: a limit holds whatever is sent back, and who waits is seen to wait."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from redrive import Fatal, InvalidField, JobContext, Redrive, RetryPolicy
from redrive.domain.filters import JobFilter
from redrive.domain.states import Place
from redrive.store.port import QueueChange, QueueInfo
from tests.cli.command import run
from tests.faults.serving import serving
from tests.faults.waiting import Crew, until
from tests.field.draining import drain

IN_ARCHIVE = JobFilter(place=Place.ARCHIVE, type="limited.v1")
ONCE = RetryPolicy(max_attempts=1)


def queue(app: Redrive, name: str) -> QueueInfo:
    return next(found for found in app.store.queues() if found.name == name)


# -- row 54 ------------------------------------------------------------------------------------------------------------


class Floor:
    """How many handlers are running, counted by themselves, and the most there were."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.now, self.most, self.permits = 0, 0, 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def may_leave(self) -> bool:
        """Whether this one leaves: it is then counted out."""
        with self._lock:
            free = self.gate.is_set() or self.permits > 0
            if free:
                self.permits = max(0, self.permits - 1)
                self.now -= 1
            return free

    def let_go(self, number: int) -> None:
        with self._lock:
            self.permits += number

    def forget(self) -> None:
        """Count the most anew."""
        with self._lock:
            self.most = self.now


def resurrect_under_a_limit(app: Redrive, jobs: int, workers: int) -> None:
    floor, others = Floor(), Counter[str]()

    @app.job("limited.v1", queue="limited", retry=ONCE)
    async def limited(ctx: JobContext) -> None:
        if ctx.life == 1:
            raise Fatal("in the first life")
        floor.enter()
        while not floor.may_leave():  # noqa: ASYNC110 - other threads open it
            await asyncio.sleep(0.002)

    @app.job("other.v1", queue="other")
    async def other() -> None:
        others["ran"] += 1

    ids = [handle.id for handle in app.enqueue_many([limited.job() for _ in range(jobs)])]
    drain(app)
    desk = app.desk("ann")
    desk.set_queue("limited", QueueChange(max_running=2))
    looks: list[int] = []

    def look() -> None:
        found = queue(app, "limited")
        looks.append(found.fetched + found.processing)

    with ExitStack() as stack:
        for _ in range(workers):
            stack.enter_context(serving(app))
        crew = stack.enter_context(Crew())
        crew.keep(look, 0.002)
        answers = desk.resurrect_many(ids)
        assert all(answer.ok for answer in answers)
        until(lambda: floor.now == 2)

        app.enqueue_many([other.job() for _ in range(jobs)])
        until(lambda: others["ran"] == jobs)  # the limited queue is full, and in nobody's way
        seen = len(looks)
        until(lambda: len(looks) > seen + 2)
        assert (floor.now, floor.most, max(looks)) == (2, 2, 2)
        assert queue(app, "limited").held_back == ("2 of 2 running",)

        desk.set_queue("limited", QueueChange(max_running=5))
        until(lambda: floor.now == 5)  # and nobody was restarted
        desk.set_queue("limited", QueueChange(max_running=1))
        assert floor.now == 5, "a lower limit ends nothing"
        floor.let_go(4)
        until(lambda: queue(app, "limited").processing == 1)
        assert floor.most == 5
        floor.forget()
        floor.let_go(5)  # one after the other
        until(lambda: desk.store.count_jobs(IN_ARCHIVE).number >= 9)
        assert floor.most == 1

        desk.set_queue("limited", QueueChange(clear=("max_running",)))
        floor.gate.set()
        until(lambda: desk.store.count_jobs(IN_ARCHIVE).number == jobs, 60)
    assert max(looks) <= jobs
    assert {desk.get(job).head.life for job in ids} == {2}


@pytest.mark.slow
def test_row_54_what_is_sent_back_waits_for_room(app: Redrive):
    """Restarting failed executions went round the concurrency limit."""
    resurrect_under_a_limit(app, 40, 3)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_row_54_five_hundred_and_ten_workers(app: Redrive):
    resurrect_under_a_limit(app, 500, 10)


# -- row 55 ------------------------------------------------------------------------------------------------------------


class Stream:
    """Work of high priority that never ends: each job enqueues the next, and every tenth one more."""

    def __init__(self, app: Redrive, queue: str) -> None:
        self.order: list[str] = []
        self.over = threading.Event()
        self.ran = 0

        @app.job("high.v1", queue=queue)
        def high() -> None:
            self.ran += 1
            self.order.append("high")
            if not self.over.is_set():
                app.enqueue_many([high.using(priority=10).job() for _ in range(2 if self.ran % 10 == 0 else 1)])

        self.begin = lambda: app.enqueue_many([high.using(priority=10).job() for _ in range(4)])


@pytest.fixture
def narrow(database_url: str) -> Iterator[Redrive]:
    """An application whose workers have one slot."""
    app = Redrive(database_url, worker={"poll": 0.02, "threads": 1})
    yield app
    app.close()


def starve(app: Redrive, url: str, lows: int, highs: int) -> None:
    stream = Stream(app, "mixed")

    @app.job("low.v1", queue="mixed")
    def low(n: int) -> None:
        stream.order.append(f"low {n}")

    app.enqueue_many([low.using(priority=0).job(n) for n in range(lows)])
    began = time.monotonic()
    stream.begin()
    with serving(app):
        until(lambda: stream.ran >= highs, 120)
        waited = time.monotonic() - began
        (shown,) = json.loads(run("queues", "list", "--json", "--database", url).text)
        assert set(stream.order) == {"high"}, "the higher priority goes first, always"
        assert shown["oldest_pending"] >= waited - 0.05, "which is seen from outside"
        stream.over.set()
        until(lambda: stream.order.count("high") < len(stream.order) and len(stream.order) == stream.ran + lows, 60)
    assert stream.order[-lows:] == [f"low {n}" for n in range(lows)], "in order of due time"


def test_row_55_who_never_gets_a_turn_is_seen_to_wait(narrow: Redrive, database_url: str):
    """Work of low priority starved, and nobody saw it. Redrive has no ageing: it shows the age, and a queue helps."""
    starve(narrow, database_url, lows=10, highs=40)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_row_55_a_hundred_wait_behind_thousands(narrow: Redrive, database_url: str):
    starve(narrow, database_url, lows=100, highs=5000)


@pytest.mark.parametrize("place", ["first", "last"])
def test_row_55_a_queue_of_its_own_in_front_gets_its_turn(database_url: str, place: str):
    """Queues go in the order of their handlers: in front with a limit it has its part, behind it would starve too."""
    app = Redrive(database_url, worker={"poll": 0.02, "threads": 2})
    ran: list[int] = []

    def low(n: int) -> None:
        ran.append(n)

    if place == "first":
        app.job("low.v1", queue="low")(low)
    stream = Stream(app, "high")
    if place == "last":
        app.job("low.v1", queue="low")(low)
    with closing(app):
        app.desk("ann").set_queue("low", QueueChange(max_running=1))
        app.enqueue_many([app.item("low.v1", {"n": n}, queue="low") for n in range(10)])
        stream.begin()
        with serving(app):
            if place == "first":
                until(lambda: len(ran) == 10)
                before = stream.ran
                until(lambda: stream.ran > before + 10)  # the others have theirs
            else:
                until(lambda: stream.ran >= 40)
                assert ran == []
                assert (queue(app, "low").oldest_pending or 0) > 0
                stream.over.set()
                until(lambda: len(ran) == 10)
            stream.over.set()
        assert sorted(ran) == list(range(10))


@pytest.mark.parametrize("wrong", [101, -1, 10.0, True, "high"])
def test_row_55_a_priority_out_of_range_is_refused(app: Redrive, wrong: object):
    with pytest.raises(InvalidField, match="priority"):
        app.enqueue("low.v1", {}, queue="low", priority=wrong)  # type: ignore[arg-type]
    assert app.store.queues() == []
