"""One timer for all runs."""

import asyncio
import time

from redrive.worker.deadlines import Deadlines

from .make import run_of


async def nothing() -> None: ...


def test_each_run_is_overdue_at_its_time_and_forgotten_ones_never():
    async def main():
        got, done = [], asyncio.Event()
        began = time.monotonic()

        def overdue(run):
            got.append((run, time.monotonic() - began))
            if len(got) == 3:
                done.set()

        deadlines = Deadlines(overdue, asyncio.get_running_loop())
        slow, quick, forgotten, middle = (run_of(nothing) for _ in range(4))
        deadlines.watch(slow, 0.09, began)
        deadlines.watch(quick, 0.03, began)
        deadlines.watch(forgotten, 0.03, began)
        deadlines.watch(middle, 0.03, began + 0.03)
        deadlines.forget(forgotten, 0.03)
        deadlines.forget(forgotten, 0.03)
        deadlines.forget(forgotten, 99.0)
        async with asyncio.timeout(10):
            await done.wait()
        assert [run for run, _ in got] == [quick, middle, slow]
        for (_, at), due in zip(got, (0.03, 0.06, 0.09), strict=True):
            assert at >= due - 0.001

    asyncio.run(main())


def test_a_run_can_be_watched_anew_from_within():
    async def main():
        times, done = [], asyncio.Event()

        def overdue(run):
            times.append(run)
            if len(times) < 4:
                deadlines.watch(run, 0.01, time.monotonic())
            else:
                done.set()

        deadlines = Deadlines(overdue, asyncio.get_running_loop())
        deadlines.watch(run_of(nothing), 0.01, time.monotonic())
        async with asyncio.timeout(10):
            await done.wait()

    asyncio.run(main())


def test_ten_thousand_runs_need_one_timer():
    async def main():
        loop = asyncio.get_running_loop()
        timers = []
        call_later = loop.call_later

        def counted(*args):
            timers.append(call_later(*args))
            return timers[-1]

        loop.call_later = counted  # type: ignore[method-assign, assignment]
        deadlines = Deadlines(lambda run: None, loop)
        run, now = run_of(nothing), time.monotonic()
        for _ in range(10_000):
            deadlines.watch(run, 30.0, now)
            deadlines.forget(run, 30.0)
        assert len(timers) == 1
        deadlines.close()
        assert timers[0].cancelled()

    asyncio.run(main())
