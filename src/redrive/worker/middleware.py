"""Middleware: what stands around every run of every handler, such as a trace, a log context, a database session."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from redrive.domain.errors import InvalidField

from .context import JobContext

Middleware = Callable[[JobContext], Generator[Any, None, None]]
"""A generator function that yields once: before it the handler has not begun, after it it has ended."""
Around = Callable[[JobContext], AbstractContextManager[Any]]


def check_middleware(function: Any) -> Around:
    """The middleware as it is entered, or ``InvalidField``."""
    if not inspect.isgeneratorfunction(function):
        raise InvalidField(
            "middleware", f"{function!r} is no generator function", expected="def around(ctx): with one yield in it"
        )
    return contextmanager(function)


@contextmanager
def within(around: Sequence[Around], ctx: JobContext) -> Iterator[None]:
    """The first declared is the outermost. None can keep an error for itself: a run that failed has not succeeded."""
    failed: BaseException | None = None
    with ExitStack() as stack:
        for middleware in around:
            stack.enter_context(middleware(ctx))
        try:
            yield
        except BaseException as error:
            failed = error
            raise
    if failed is not None:
        raise failed
