"""One order of statements for connections that block and for those that are awaited.

What is to be asked is a generator: it yields statements and is sent their answers. Who drives it, with or without
``await``, decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from redrive.domain.job import Enqueued

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
Steps = Generator[Ask, Answer, list[Enqueued]]


def drive(steps: Steps[Ask, Answer], run: Callable[[Ask], Answer]) -> list[Enqueued]:
    """Answer each step by ``run``."""
    try:
        ask = next(steps)
        while True:
            ask = steps.send(run(ask))
    except StopIteration as end:
        accepted: list[Enqueued] = end.value
        return accepted


async def adrive(steps: Steps[Ask, Answer], run: Callable[[Ask], Awaitable[Answer]]) -> list[Enqueued]:
    """``drive`` with a ``run`` that is awaited."""
    try:
        ask = next(steps)
        while True:
            ask = steps.send(await run(ask))
    except StopIteration as end:
        accepted: list[Enqueued] = end.value
        return accepted
