"""Limits and lock keys while workers, rescuers and operators race; an onlooker counts all the while what runs."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from redrive.domain.job import ClaimedJob
from redrive.domain.lifecycle import TypeRules
from redrive.domain.moves import Release, SettleMove
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Verb
from redrive.store.port import Pair, QueueChange
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import jobs_archive, jobs_dlq, jobs_hot

from .make import OTHER, QUEUE, TYPE, Floor, broken, bury, draft, job, pair, retry, succeed, worker
from .rows import Rows

SPAWN = multiprocessing.get_context("spawn")
BOTH_QUEUES = (QUEUE, OTHER)
AGAIN = TypeRules(RetryPolicy(), idempotent=True, on_zombie="retry")


class Crew:
    """Threads that work on one store until the time is over."""

    def __init__(self, store: SqlStore, seed: int, patience: float = 1.0) -> None:
        self.store = store
        self.patience = patience
        self.floor = Floor(store)
        self.dice = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self.looked = threading.Condition()

    def run(self, seconds: float, *works: Callable[[], None], least: int = 0) -> None:
        """For so long, and until ``least`` jobs have run: how many that are in a second is the machine's affair."""
        end = time.monotonic() + seconds

        def loop(work: Callable[[], None]) -> None:
            try:
                while (time.monotonic() < end or self.done["ran"] < least) and not self.problems:
                    work()
            except BaseException as problem:
                self.problems.append(repr(problem))

        threads = [threading.Thread(target=loop, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def work(self, name: str) -> None:
        """Claim, start, run until the onlooker has seen it, end; some are claimed without a start, as if prefetched."""
        types = (TYPE,) if self.dice.random() < 0.7 else ()
        held = self.floor.fetch(self.dice.randint(1, 8), queues=BOTH_QUEUES, types=types, who=name)
        waiting = [one for one in held if not one.started]
        begun = self.store.start(BOTH_QUEUES, [pair(one) for one in waiting])
        self.store.give_back([Release(*pair(one)) for one in waiting if pair(one) not in begun])
        running = [one for one in held if one.started or pair(one) in begun]
        if running:
            self.be_seen()
        self.store.settle([self.end(one) for one in running], worker_id=name, build="b1", slot=1)
        self.store.promote()
        self.done["ran"] += len(running)

    def be_seen(self) -> None:
        """Until a look that began after this call is over."""
        with self.looked:
            ticket = self.done["looks"] + 2
            self.looked.wait_for(lambda: self.done["looks"] >= ticket, timeout=self.patience)

    def end(self, held: ClaimedJob) -> SettleMove:
        roll = self.dice.random()
        return succeed(held) if roll < 0.4 else retry(held) if roll < 0.6 else bury(held)

    def operate(self) -> None:
        """Resurrect in bulk, cancel, and rescue what is quicker than it was."""
        ids = [row[0] for row in Rows(self.store).all(select(jobs_dlq.c.id).limit(200))]
        self.floor.resurrect(*ids)
        some = self.dice.sample(ids, min(len(ids), 5))
        if some:
            self.floor.ask(Verb.CANCEL, *some)
        self.store.rescue(zombie_timeout=0.05, fetched_timeout=0.05, rules=lambda _: AGAIN, slot=1)
        self.done["operated"] += 1

    def look(self, limit: int) -> None:
        """Count what runs, over one snapshot."""
        hot = jobs_hot.c
        running = select(func.count()).where(hot.queue == QUEUE, hot.started_at.is_not(None))
        keyed = select(hot.lock_key, func.count()).where(hot.started_at.is_not(None), hot.lock_key.is_not(None))
        rows = Rows(self.store)
        number = rows.all(running)[0][0]
        self.done["most"] = max(self.done["most"], number)
        if number > limit:
            self.problems.append(f"{number} of {limit} run")
        for key, holders in rows.all(keyed.group_by(hot.lock_key)):
            if holders > 1:
                self.problems.append(f"{holders} jobs run under {key}")
        with self.looked:
            self.done["looks"] += 1
            self.looked.notify_all()


def fill(store: SqlStore, number: int) -> list[UUID]:
    keys = (None, None, "k", "l")
    return Floor(store).accept(*(job(queue=(QUEUE, OTHER)[n % 2], lock_key=keys[n % 4]) for n in range(number)))


def limited(store: SqlStore, limit: int) -> None:
    store.set_queue(QUEUE, QueueChange(max_running=limit), draft("set-queue"), version=None)


def race(url: str, seconds: float, limit: int = 2) -> None:
    store = open_store(url)
    store.register(worker(queues=BOTH_QUEUES))
    limited(store, limit)
    fill(store, 400)
    crew = Crew(store, seed=5)
    workers = [lambda name=f"w{n}": crew.work(name) for n in range(6)]
    crew.run(seconds, *workers, crew.operate, lambda: crew.look(limit), least=60)
    assert crew.problems == []
    assert broken(store.promises()) == []
    print(f"\n{seconds:.0f} s: {dict(crew.done)}")
    assert crew.done["most"] == limit, "the limit was never reached: this test shows nothing"
    store.close()


@pytest.mark.slow
def test_no_claim_start_rescue_or_resurrection_gets_past_a_limit(database_url: str):
    race(database_url, 1.5)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_no_claim_start_rescue_or_resurrection_gets_past_a_limit_for_a_minute(database_url: str):
    race(database_url, 60.0)


# -- at one moment -----------------------------------------------------------------------------------------------------


def together(number: int, work: Callable[[int], Any]) -> list[Any]:
    """The answers of so many threads that begin at one moment."""
    barrier = threading.Barrier(number)
    answers: list[Any] = [None] * number

    def run(n: int) -> None:
        barrier.wait(30)
        answers[n] = work(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


ROUNDS, CALLERS = 12, 6


def begin_together(store: SqlStore, held: list[ClaimedJob]) -> frozenset[Pair]:
    """Start fetched jobs from several threads, a part each; those that started."""
    parts = [[pair(one) for one in held[n::CALLERS]] for n in range(CALLERS)]
    begun: frozenset[Pair] = frozenset()
    return begun.union(*together(CALLERS, lambda n: store.start((QUEUE,), parts[n])))


def test_claims_at_one_moment_keep_to_the_limit(store: SqlStore, floor: Floor):
    limited(store, 4)
    for number in range(ROUNDS):
        floor.accept(*(job() for _ in range(12)))
        held = [one for some in together(CALLERS, lambda n: floor.take(3, who=f"w{n}")) for one in some]
        assert 1 <= len(held) <= 4, f"round {number}"
        held += floor.take(9)
        assert len(held) == 4, f"round {number}: there was room for more"
        floor.settle(*(succeed(one) for one in held))


@pytest.mark.slow
def test_starts_at_one_moment_keep_to_the_limit(store: SqlStore, floor: Floor):
    for number in range(ROUNDS):
        store.set_queue(QUEUE, QueueChange(clear=("max_running",)), draft("set-queue"), version=None)
        floor.accept(*(job() for _ in range(12)))
        held = floor.fetch(12)
        limited(store, 4)
        begun = begin_together(store, held)
        assert len(begun) == 4, f"round {number}"
        floor.settle(*(succeed(one) for one in held if pair(one) in begun))
        store.give_back([Release(*pair(one)) for one in held])


@pytest.mark.slow
def test_starts_of_one_key_at_one_moment_are_one(store: SqlStore, floor: Floor, rows: Rows):
    for number in range(ROUNDS):
        floor.accept(*(job(lock_key=f"k{n % 2}") for n in range(12)))
        held = floor.fetch(12)
        begun = begin_together(store, held)
        assert len(begun) == 2, f"round {number}"
        ran = 0
        while rows.count(jobs_hot):
            ran += len(begun)
            floor.settle(*(succeed(one) for one in held if pair(one) in begun))
            store.give_back([Release(*pair(one)) for one in held])
            held = floor.take(12)
            begun = store.start((QUEUE,), [pair(one) for one in held])
        assert ran == 12, f"round {number}: each ran, one after the other"


def test_an_end_and_a_start_of_one_key_at_one_moment_leave_nobody_waiting(store: SqlStore, floor: Floor, rows: Rows):
    for number in range(ROUNDS):
        floor.accept(*(job(lock_key="k") for _ in range(2)))
        first, second = floor.fetch(2)
        assert store.start((QUEUE,), [pair(first)])
        move = (succeed, bury)[number % 2]

        def work(n: int, first: ClaimedJob = first, second: ClaimedJob = second, move: Any = move) -> Any:
            return floor.settle(move(first)) if n else store.start((QUEUE,), [pair(second)])

        begun = together(2, work)[0]
        if not begun:
            store.give_back([Release(*pair(second))])
            (second,) = floor.take(9)
            assert store.start((QUEUE,), [pair(second)]), f"round {number}: nobody let it go on"
        floor.settle(succeed(second))
        assert rows.count(jobs_hot) == 0


# -- several processes -------------------------------------------------------------------------------------------------


def _work(url: str, number: int, seconds: float, go: Event, answers: Any) -> None:
    store = open_store(url)
    crew = Crew(store, seed=number, patience=0.01)  # the onlooker is in another process
    go.wait(60)
    crew.run(seconds, lambda: crew.work(f"p{number}a"), lambda: crew.work(f"p{number}b"))
    store.close()
    answers.put((crew.done["ran"], crew.problems))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_no_process_gets_past_a_limit(database_url: str):
    store = open_store(database_url)
    store.register(worker(queues=BOTH_QUEUES))
    limited(store, 3)
    fill(store, 2000)
    answers, go = SPAWN.Queue(), SPAWN.Event()
    processes = [SPAWN.Process(target=_work, args=(database_url, n, 20.0, go, answers)) for n in range(3)]
    for process in processes:
        process.start()
    crew = Crew(store, seed=9)
    go.set()
    crew.run(20.0, crew.operate, lambda: crew.look(3))
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert crew.problems == []
    assert [problems for _, problems in found] == [[], [], []]
    assert broken(store.promises()) == []
    assert sum(ran for ran, _ in found) > 50
    store.close()


# -- a rate ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rate_holds_over_all_workers(database_url: str):
    """By the clock of the database, over every stretch of time: burst and rate, and hardly less."""
    store = open_store(database_url)
    store.register(worker(queues=BOTH_QUEUES))
    store.set_queue(QUEUE, QueueChange(rate="3600/min"), draft("set-queue"), version=None)  # 60/s, burst 60
    floor = Floor(store)
    floor.accept(*(job() for _ in range(400)))
    ran = [0] * 4
    ended = threading.Event()

    def work(number: int) -> None:
        while not ended.is_set():
            held = floor.take(5, who=f"w{number}")
            floor.settle(*(succeed(one) for one in held))
            ran[number] += len(held)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    began = store.now()
    for thread in threads:
        thread.start()
    while sum(ran) < 120 and not ended.wait(0.02):
        pass
    ended.set()
    for thread in threads:
        thread.join()
    seconds = (store.now() - began).total_seconds()
    assert sum(ran) <= 60 + 60 * seconds + 1
    assert sum(1 for number in ran if number) > 1, "several took part"
    starts = sorted(row[0].timestamp() for row in Rows(store).all(select(jobs_archive.c.started_at)))
    for first in range(0, len(starts), 7):
        for last in range(first, len(starts)):
            assert last - first + 1 <= 60 + 60 * (starts[last] - starts[first]) + 1.01
    store.close()
