"""The threads of `def` handlers: ends arrive once, stuck threads are replaced, work never waits behind them."""

import asyncio
import contextvars
import threading

import pytest

from redrive.domain.outcome import Done
from redrive.worker.threads import Threads

from .make import run_of, until

NAME = contextvars.ContextVar("NAME", default="unset")


class Ends:
    """Ends as they arrive in the loop, and a way to wait for so many."""

    def __init__(self):
        self.got = []
        self._event = asyncio.Event()
        self.loop_thread = threading.get_ident()

    def __call__(self, run, outcome):
        assert threading.get_ident() == self.loop_thread
        self.got.append((run, outcome))
        self._event.set()

    async def wait(self, number):
        async with asyncio.timeout(20):
            while len(self.got) < number:
                self._event.clear()
                await self._event.wait()


@pytest.mark.slow
def test_every_run_ends_once():
    def handle(n: int):
        return n

    async def main():
        ends = Ends()
        threads = Threads(4, ends, asyncio.get_running_loop())
        runs = [run_of(handle, {"n": n}) for n in range(500)]
        for first in range(0, 500, 4):
            for run in runs[first : first + 4]:
                threads.submit(run)
            await ends.wait(first + 4)
        threads.close()
        return runs, ends.got

    runs, got = asyncio.run(main())
    assert dict(got) == {run: Done(b"%d" % n) for n, run in enumerate(runs)}
    assert len(got) == 500


def test_each_run_has_a_context_of_its_own_copied_from_the_workers():
    def handle():
        before = NAME.get()
        NAME.set("changed by a handler")
        return before

    async def main():
        NAME.set("the worker's")
        ends = Ends()
        threads = Threads(1, ends, asyncio.get_running_loop())
        for number in range(1, 4):
            threads.submit(run_of(handle))
            await ends.wait(number)
        threads.close()
        return [outcome for _, outcome in ends.got], NAME.get()

    outcomes, after = asyncio.run(main())
    assert outcomes == [Done(b'"the worker\'s"')] * 3
    assert after == "the worker's"


def test_a_stuck_thread_is_replaced_and_its_late_end_is_ignored():
    entered, leave = threading.Barrier(3), threading.Event()

    def hang():
        entered.wait(20)
        leave.wait(20)
        return "late"

    def quick():
        return "quick"

    async def main():
        ends = Ends()
        threads = Threads(2, ends, asyncio.get_running_loop())
        stuck = [run_of(hang), run_of(hang)]
        for run in stuck:
            threads.submit(run)
        await asyncio.to_thread(entered.wait, 20)
        assert all(threads.give_up(run) for run in stuck)
        assert (threads.stuck, threads.alive) == (2, 2)
        for number in range(1, 5):
            threads.submit(run_of(quick))
            await ends.wait(number)
        before = threading.active_count()
        leave.set()
        await until(lambda: not threads.stuck and threading.active_count() <= before - 2)
        assert threads.alive == 2
        threads.submit(run_of(quick))
        await ends.wait(5)
        threads.close()
        return [outcome for _, outcome in ends.got]

    assert asyncio.run(main()) == [Done(b'"quick"')] * 5


def test_a_run_that_has_ended_cannot_be_given_up():
    def quick(): ...

    async def main():
        ends = Ends()
        threads = Threads(1, ends, asyncio.get_running_loop())
        run = run_of(quick)
        threads.submit(run)
        await ends.wait(1)
        assert not threads.give_up(run)
        assert (threads.stuck, threads.alive) == (0, 1)
        threads.close()

    asyncio.run(main())


@pytest.mark.slow
def test_giving_up_and_ending_at_once_gives_one_end_each(monkeypatch):
    def handle(n: int):
        return n

    async def main():
        ends = Ends()
        threads = Threads(8, ends, asyncio.get_running_loop())
        given_up = []
        runs = [run_of(handle, {"n": n}) for n in range(400)]
        for first in range(0, 400, 8):
            batch = runs[first : first + 8]
            for run in batch:
                threads.submit(run)
            given_up += [run for run in batch if threads.give_up(run)]
            await ends.wait(first + 8 - len(given_up))
        await until(lambda: not threads.stuck)
        assert threads.alive == 8
        threads.close()
        return runs, given_up, [run for run, _ in ends.got]

    runs, given_up, ended = asyncio.run(main())
    assert given_up  # otherwise this test tests nothing
    assert len(given_up) + len(ended) == 400
    assert {*given_up, *ended} == {*runs}


def test_idle_threads_leave_when_it_closes():
    async def main():
        def quick(): ...

        ends = Ends()
        threads = Threads(5, ends, asyncio.get_running_loop())
        threads.submit(run_of(quick))
        await ends.wait(1)
        workers = [t for t in threading.enumerate() if t.name.startswith("redrive-handler")]
        threads.close()
        for worker in workers:
            await asyncio.to_thread(worker.join, 10)
        return workers

    workers = asyncio.run(main())
    assert len(workers) >= 5
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_end_after_the_loop_is_closed_is_no_error():
    leave = threading.Event()

    def handle():
        leave.wait(20)

    async def main():
        threads = Threads(1, Ends(), asyncio.get_running_loop())
        threads.submit(run_of(handle))
        return next(iter(threads._threads))

    thread = asyncio.run(main())
    leave.set()
    thread.join(10)
    assert not thread.is_alive()
