"""Calls of the synchronous store from the event loop: one thread, and so one connection, for each line of calls.

Not ``run_in_executor``: its threads are joined when the interpreter ends, and one that waits for an answer that never
comes would keep a stopped worker alive. It also needs a second future for each call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Hop:
    """A daemon thread that makes one call after the other."""

    def __init__(self, name: str) -> None:
        self._todo: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def __call__(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make ``call`` in the thread; await its answer in the loop."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._todo.put((future, call))
        return cast("asyncio.Future[T]", future)

    def close(self) -> None:
        """Let the thread go when it has made the calls that wait."""
        self._todo.put(None)

    def _work(self) -> None:
        while (item := self._todo.get()) is not None:
            future, call = item
            answer, error = None, None
            try:
                answer = call()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_tell, future, answer, error)
            del item, future, call, answer, error  # or the last answer lives until the next call


def _tell(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled: nobody waits for it
        return
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
