"""A handler: one function and everything that was declared for it, checked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal, TypeVar

from redrive.domain.circuit import Breaker
from redrive.domain.classify import Errors, Hook
from redrive.domain.edits import check_name
from redrive.domain.errors import InvalidField
from redrive.domain.lifecycle import Backoff, OnZombie, TypeRules
from redrive.domain.once import Once
from redrive.domain.policy import RetryPolicy, Seconds
from redrive.store.port import TypeInfo

from .binding import Binding
from .keys import Marking, UserKey
from .middleware import Around

RESULT_LIMIT = 65_536
"""The most bytes of a result, unless the settings say otherwise."""
Kind = Literal["async", "thread", "process"]
"""Where a handler runs: in the event loop, in a thread, in a process of its own."""
UserBackoff = Callable[[int], Seconds]
F = TypeVar("F", bound=Callable[..., Any] | None)


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """One function and everything that was declared for it. ``timeout`` None: without end; its breaker has a name."""

    type: str
    function: Callable[..., Any]
    queue: str
    rules: TypeRules
    binding: Binding
    kind: Kind
    timeout: float | None = None
    fatal: Errors = ()
    transient: Errors = ()
    classify: Hook | None = None
    backoff: Backoff | None = None
    aliases: tuple[str, ...] = ()
    result_limit: int = RESULT_LIMIT
    owner: str | None = None
    breaker: Breaker | None = None
    once: Marking | None = None
    around: Sequence[Around] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """For handlers that state none. ``result_limit`` in bytes; a handler that keeps no result has 0.

    ``around`` is the application's middleware: one list, which may grow after its handlers were declared.
    """

    retry: RetryPolicy
    timeout: float | None
    result_limit: int = RESULT_LIMIT
    around: Sequence[Around] = ()


def declare(
    defaults: Defaults,
    function: Callable[..., Any],
    type: str,
    *,
    queue: str = "default",
    retry: RetryPolicy | None = None,
    timeout: Seconds | None = None,
    idempotent: bool = False,
    on_zombie: OnZombie = "bury",
    aliases: tuple[str, ...] | list[str] = (),
    fatal: Errors = (),
    transient: Errors = (),
    classify: Hook | None = None,
    backoff: UserBackoff | None = None,
    keep_result: bool = True,
    isolation: str | None = None,
    owner: str | None = None,
    breaker: Breaker | None = None,
    once: Once | UserKey | None = None,
) -> Handler:
    """A handler, or ``InvalidField`` that names what was expected."""
    if isolation not in (None, "thread", "process"):
        raise InvalidField("isolation", f"{isolation!r}", expected='nothing, "thread" or "process"')
    handler = Handler(
        type=check_name("type", type),
        function=function,
        queue=check_name("queue", queue),
        rules=_rules(defaults.retry if retry is None else retry, idempotent, on_zombie),
        kind=_kind(function, isolation),
        binding=Binding(function),
        timeout=defaults.timeout if timeout is None else _timeout(timeout),
        fatal=_errors("fatal", fatal),
        transient=_errors("transient", transient),
        classify=_callable("classify", classify),
        backoff=None if backoff is None else _in_seconds(_callable("backoff", backoff)),
        aliases=_aliases(type, aliases),
        result_limit=defaults.result_limit if keep_result else 0,
        owner=owner,
        breaker=None if breaker is None else _breaker(breaker, type),
        around=defaults.around,
    )
    return handler if once is None else replace(handler, once=Marking(type, function, handler.binding.context, once))


def _kind(function: object, isolation: str | None) -> Kind:
    if not (inspect.isfunction(function) or inspect.ismethod(function)) or function.__name__ == "<lambda>":
        raise InvalidField("handler", f"{function!r} is no handler", expected="a function made by def or async def")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidField("handler", f"{function.__qualname__} yields", expected="a function that returns")
    if inspect.iscoroutinefunction(function):
        if isolation is not None:
            raise InvalidField("isolation", "an async def handler runs in the event loop", expected="nothing")
        return "async"
    if isolation != "process":
        return "thread"
    if "<locals>" in function.__qualname__:
        raise InvalidField(
            "isolation",
            f"{function.__qualname__} is made inside a function, where another process cannot find it",
            expected="a function at the top level of its module",
        )
    return "process"


def _rules(retry: object, idempotent: object, on_zombie: object) -> TypeRules:
    if not isinstance(retry, RetryPolicy):
        raise InvalidField("retry", f"{retry!r} is no policy", expected="a RetryPolicy")
    if not isinstance(idempotent, bool):
        raise InvalidField("idempotent", f"{idempotent!r}", expected="True or False")
    if on_zombie not in ("bury", "retry"):
        raise InvalidField("on_zombie", f"{on_zombie!r}", expected='"bury" or "retry"')
    if on_zombie == "retry" and not idempotent:
        raise InvalidField("on_zombie", "a retry would repeat an unfinished run", expected="idempotent=True with it")
    return TypeRules(retry, idempotent, "retry" if on_zombie == "retry" else "bury")


def _timeout(value: object) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise InvalidField("timeout", f"{value!r} is no duration", expected="seconds or a timedelta, more than 0")
    return float(seconds)


def _aliases(type: str, aliases: object) -> tuple[str, ...]:
    if not isinstance(aliases, tuple | list):
        raise InvalidField("aliases", f"{aliases!r} is no list", expected="a list of types")
    names = tuple(check_name("aliases", alias) for alias in aliases)
    if len({type, *names}) <= len(names):
        raise InvalidField("aliases", f"{names!r} repeat a name", expected="each name once, and not the type itself")
    return names


def _errors(name: str, kinds: object) -> Errors:
    if not isinstance(kinds, tuple) or not all(isinstance(k, type) and issubclass(k, BaseException) for k in kinds):
        raise InvalidField(name, f"{kinds!r} are no exceptions", expected="a tuple of exception classes")
    return kinds


def _breaker(breaker: object, type: str) -> Breaker:
    if not isinstance(breaker, Breaker):
        raise InvalidField(
            "breaker", f"{breaker!r} is no breaker", expected='Breaker(), or Breaker("name") to share it'
        )
    return breaker if breaker.name is not None else replace(breaker, name=type)


def _callable(name: str, given: F) -> F:
    if given is not None and not callable(given):
        raise InvalidField(name, f"{given!r} cannot be called", expected="a function")
    return given


def _in_seconds(backoff: UserBackoff) -> Backoff:
    def seconds(charged: int) -> float:
        wait = backoff(charged)
        return wait.total_seconds() if isinstance(wait, timedelta) else float(wait)

    return seconds


def announcement(handler: Handler, name: str) -> TypeInfo:
    """What consoles without the application's code need to know about a type or alias."""
    return TypeInfo(
        type=name,
        queue=handler.queue,
        schema=handler.binding.schema(),
        idempotent=handler.rules.idempotent,
        on_zombie=handler.rules.on_zombie,
        retry=_policy(handler.rules.retry),
        timeout=handler.timeout,
        owner=handler.owner,
        breaker=None if handler.breaker is None else handler.breaker.spec,
    )


def _policy(retry: RetryPolicy) -> dict[str, Any]:
    values = {f.name: getattr(retry, f.name) for f in fields(retry)}
    return {name: v.total_seconds() if isinstance(v, timedelta) else v for name, v in values.items()}
