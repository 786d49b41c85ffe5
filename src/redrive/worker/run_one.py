"""One run of one handler, turned into an ``Outcome``. No store, no queue: the payload in, a value out.

Whatever the handler does, its run ends in an outcome and the worker goes on: ``SystemExit``, ``KeyboardInterrupt``,
``CancelledError`` and ``GeneratorExit`` raised by a handler are failed attempts. What the engine stopped is known by
the reason that was set before (``Running.stop``), never by the exception's class:

===========  =================================  ==================================================================
told to      the handler returned               the handler raised
===========  =================================  ==================================================================
TIMEOUT      timed out: it ran over its time    timed out
CANCEL       success                            cancelled if it was the cancellation that came out, else what it is
LOST         success (the store will refuse it  lease lost
             and the ledger notes it)
SHUTDOWN     success                            worker stopped
===========  =================================  ==================================================================

A result is kept as JSON of up to ``limits.result`` bytes. One that cannot be written, or is larger, is left out with a
line in the log: it must never keep a finished job from its archive.
"""

from __future__ import annotations

import inspect
from asyncio import CancelledError
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog
from pydantic_core import to_json

from redrive.domain.classify import classify, report
from redrive.domain.errors import Cancel, Fatal, PayloadError, Snooze
from redrive.domain.failures import FailureClass
from redrive.domain.outcome import (
    Cancelled,
    Done,
    ErrorReport,
    Failed,
    LeaseLost,
    Outcome,
    Snoozed,
    TimedOut,
    Unclassified,
    WorkerStopped,
)

from . import moments
from .context import JobContext
from .middleware import within
from .running import Running, Stop

LONGEST_SNOOZE = 100 * 366 * 86400.0

End = Callable[[Running, Outcome], None]
"""Takes the end of a run."""

log = structlog.get_logger("redrive.worker")
_DONE = Done()


async def run_async(run: Running, end: End) -> None:
    """Run an ``async def`` handler, as the body of a task; ``end`` is called exactly once."""
    handler = run.handler
    context = handler.binding.context
    run.entered = True
    if run.stop is not None:
        return end(run, raised(run, CancelledError()))
    try:
        kwargs = handler.binding.bind(run.job.payload, run.job.content_type)
    except BaseException as error:
        return end(run, unbound(run, error))
    try:
        if moments.hook is not None:
            moments.hook("handler-entered")
        if handler.around:
            with within(handler.around, ctx := JobContext(run)):
                value = await (handler.function(**kwargs) if context is None else handler.function(ctx, **kwargs))
        else:
            value = await (
                handler.function(**kwargs) if context is None else handler.function(JobContext(run), **kwargs)
            )
        outcome = returned(run, value)
    except BaseException as error:
        outcome = raised(run, error)
    if moments.hook is not None:
        moments.hook("handler-returned")
    return end(run, outcome)


def run_sync(run: Running) -> Outcome:
    """Run a ``def`` handler in the calling thread."""
    handler = run.handler
    context = handler.binding.context
    run.entered = True
    if run.stop is not None:
        return raised(run, CancelledError())
    try:
        kwargs = handler.binding.bind(run.job.payload, run.job.content_type)
    except BaseException as error:
        return unbound(run, error)
    try:
        if moments.hook is not None:
            moments.hook("handler-entered")
        if handler.around:
            with within(handler.around, ctx := JobContext(run)):
                value = handler.function(**kwargs) if context is None else handler.function(ctx, **kwargs)
        else:
            value = handler.function(**kwargs) if context is None else handler.function(JobContext(run), **kwargs)
        outcome = returned(run, value)
    except BaseException as error:
        outcome = raised(run, error)
    if moments.hook is not None:
        moments.hook("handler-returned")
    return outcome


def unbound(run: Running, error: BaseException) -> Outcome:
    """The outcome of a payload that is not what the handler takes: fatal whatever the handler declared."""
    try:
        if isinstance(error, PayloadError):
            return Failed(FailureClass.FATAL, _report(run, error))
    except BaseException as broken:
        error = broken
    return raised(run, error)


def returned(run: Running, value: Any) -> Outcome:
    """The outcome of a handler that came to its end."""
    if run.stop is Stop.TIMEOUT:
        return overran(run, None)
    if value is None:
        return _DONE
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise Fatal(f"{run.handler.function.__qualname__} returned something to be awaited; make it an async def")
    return Done(_result(run, value)) if run.handler.result_limit else _DONE


def _result(run: Running, value: Any) -> bytes | None:
    try:
        result = to_json(value, inf_nan_mode="strings")
        limit = run.handler.result_limit
        problem = "" if len(result) <= limit else f"{len(result)} bytes, more than {limit}"
    except Exception as error:  # from pydantic, or from a property of the value
        result, problem = b"", f"{type(error).__name__}"
    if not problem:
        return result
    log.warning("result-not-kept", job_id=str(run.job.uuid), type=run.job.type, problem=problem)
    return None


def raised(run: Running, error: BaseException) -> Outcome:
    """The outcome of a handler that raised. Never raises itself: evidence of a failure must not become a second one."""
    try:
        return _judge(run, error)
    except BaseException as broken:
        try:
            return Unclassified(report(broken, job_type=run.job.type, also=error))
        except BaseException:
            text = f"a {type(error).__name__} could not be reported: a {type(broken).__name__} came up"
            return Unclassified(ErrorReport(type(broken).__name__, text, text, "0" * 16, 0))


def _judge(run: Running, error: BaseException) -> Outcome:
    told = run.stop
    kind = type(error)  # isinstance would ask the error itself, which may lie or raise
    if told is Stop.TIMEOUT:
        return overran(run, error)
    if told is Stop.LOST:
        return LeaseLost(_report(run, _because(LeaseGone("the worker could not keep its lease and gave up"), error)))
    if told is Stop.SHUTDOWN:
        return WorkerStopped(_report(run, _because(Stopped("the worker ended its grace period"), error)))
    if told is Stop.CANCEL and issubclass(kind, CancelledError):
        return Cancelled(_report(run, _because(Cancel("an operator asked for it while it ran"), error)))
    if issubclass(kind, Cancel):
        return Cancelled(_report(run, error))
    if issubclass(kind, Snooze):
        return Snoozed(min(float(error.delay), LONGEST_SNOOZE))  # type: ignore[attr-defined]  # it is a Snooze
    handler = run.handler
    verdict = classify(
        error, fatal=handler.fatal, transient=handler.transient, hook=handler.classify, now=datetime.now(UTC)
    )
    kept = report(error, job_type=run.job.type, also=verdict.broken)
    return Failed(verdict.failure, kept, verdict.retry_after)


class Overran(Exception):
    """The run took longer than its handler's timeout."""


class LeaseGone(Exception):
    """The run was given up because its lease was lost."""


class Stopped(Exception):
    """The worker ended before the run did."""


for _kind in (Overran, LeaseGone, Stopped):
    _kind.__module__ = "redrive"  # what operators read as the error's type


def overran(run: Running, error: BaseException | None, *, stopped: bool = True) -> TimedOut:
    """The outcome of a run that took too long. ``error`` is how it ended when it was told to stop, if it did."""
    text = f"it ran over its timeout of {run.handler.timeout:g} s"
    if not stopped:
        text += "; it did not stop, so its first run may still be going on"
    elif error is None:
        text += "; it returned all the same after it was told to stop"
    return TimedOut(_report(run, _because(Overran(text), error)), stopped)


def left_behind(run: Running) -> WorkerStopped:
    """The outcome of a run that was still going on, and could not be stopped, when the worker's grace period ended."""
    return WorkerStopped(_report(run, Stopped("the worker ended its grace period; this run did not stop before")))


def _because(reason: BaseException, error: BaseException | None) -> BaseException:
    """``reason`` with the place where the run was stopped, and with what came out when it was no cancellation."""
    if error is None:
        return reason
    if not issubclass(type(error), CancelledError):
        reason.__cause__ = error
    return reason.with_traceback(error.__traceback__)


def _report(run: Running, error: BaseException) -> ErrorReport:
    return report(error, job_type=run.job.type)
