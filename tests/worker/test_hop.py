"""Calls of the store from the loop."""

import asyncio
import threading
from functools import partial

import pytest

from redrive.worker.hop import Hop

from .shop import in_loop


@in_loop
async def test_calls_are_made_one_after_the_other_in_one_thread():
    hop = Hop("test-hop")
    made: list[tuple[int, str]] = []

    def note(n: int) -> int:
        made.append((n, threading.current_thread().name))
        return n

    assert await asyncio.gather(*[hop(partial(note, n)) for n in range(100)]) == list(range(100))
    assert made == [(n, "test-hop") for n in range(100)]
    hop.close()


@in_loop
async def test_what_a_call_raises_is_raised_where_it_is_awaited_and_the_thread_goes_on():
    hop = Hop("test-hop")

    def fail():
        raise SystemExit("no")

    with pytest.raises(ZeroDivisionError):
        await hop(lambda: 1 / 0)
    with pytest.raises(SystemExit):
        await hop(fail)
    assert await hop(lambda: 5) == 5
    hop.close()


@in_loop
async def test_who_does_not_wait_any_more_is_not_told():
    hop = Hop("test-hop")
    gate = threading.Event()
    slow, other = hop(lambda: gate.wait(20)), hop(lambda: 1)
    slow.cancel()
    gate.set()
    assert await other == 1
    assert slow.cancelled()
    hop.close()


def test_an_answer_after_the_loop_is_closed_is_no_error():
    gate = threading.Event()

    async def main():
        hop = Hop("late-hop")
        hop(lambda: gate.wait(20))
        hop.close()
        return next(thread for thread in threading.enumerate() if thread.name == "late-hop")

    thread = asyncio.run(main())
    assert thread.daemon
    gate.set()
    thread.join(20)
    assert not thread.is_alive()
