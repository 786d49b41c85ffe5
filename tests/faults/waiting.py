"""Waiting for something to be so, and threads that keep doing something meanwhile."""

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], within: float = 30.0, *, why: Callable[[], object] | str = "") -> T:
    """What ``condition`` answers once that is true; it is asked again and again, and the test fails after a time."""
    deadline = time.monotonic() + within
    pause = 0.002
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {within:g} s: {why() if callable(why) else why}")
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    return answer


class Crew:
    """Threads that do their part until the block ends; what one of them raises is raised there."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def keep(self, action: Callable[[], object], pause: float) -> None:
        """Do ``action`` until the end, with pauses."""

        def work() -> None:
            try:
                while not self.over.is_set():
                    action()
                    self.over.wait(pause)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Raise what a thread has raised."""
        if self.errors:
            raise self.errors[0]

    def end(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(AssertionError) if error is not None else contextlib.nullcontext():
            self.end()
        if error is None:
            self.check()
