"""One run, every way it can end, for both kinds of handler."""

import asyncio
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from redrive.domain.errors import Cancel, Fatal, PayloadError, Snooze, Throttled
from redrive.domain.failures import FailureClass
from redrive.domain.outcome import (
    Cancelled,
    Done,
    ErrorReport,
    Failed,
    LeaseLost,
    Snoozed,
    TimedOut,
    Unclassified,
    WorkerStopped,
)
from redrive.worker import run_one
from redrive.worker.context import JobContext
from redrive.worker.handler import RESULT_LIMIT
from redrive.worker.running import Stop

from .make import outcome, outcome_of, run_of, stopped_outcome

BOTH = pytest.mark.parametrize("kind", ["async", "thread"])


def made(kind, body):
    """``body(ctx)`` as a handler of either kind."""

    def in_thread(ctx: JobContext):
        return body(ctx)

    async def in_loop(ctx: JobContext):
        return body(ctx)

    return in_thread if kind == "thread" else in_loop


def raising(kind, error):
    def body(ctx):
        raise error

    return made(kind, body)


# -- success -----------------------------------------------------------------------------------------------------------


@BOTH
def test_a_handler_that_returns_has_succeeded(kind):
    assert outcome_of(made(kind, lambda ctx: None)) == Done(None)
    assert outcome_of(made(kind, lambda ctx: {"rows": [1, "é\u0000"]})) == Done('{"rows":[1,"é\\u0000"]}'.encode())
    assert outcome_of(made(kind, lambda ctx: "x"), keep_result=False) == Done(None)
    assert outcome_of(made(kind, lambda ctx: float("nan"))) == Done(b'"NaN"')


def broken_property():
    class Odd:
        @property
        def __dict__(self):  # type: ignore[override]
            raise RuntimeError("no")

    return Odd()


@BOTH
@pytest.mark.parametrize(
    "value",
    [object(), "x" * 65_536, "\ud800", {1: broken_property()}, [[]] * 40_000],
    ids=["object", "too long", "surrogate", "broken", "too many"],
)
def test_a_result_that_cannot_be_kept_never_keeps_the_job_from_its_archive(kind, value):
    with capture_logs() as lines:
        assert outcome_of(made(kind, lambda ctx: value)) == Done(None)
    assert [line["event"] for line in lines] == ["result-not-kept"]


def test_a_result_up_to_the_limit_is_kept():
    end = outcome_of(made("thread", lambda ctx: "x" * (RESULT_LIMIT - 2)))
    assert isinstance(end, Done)
    assert end.result is not None
    assert len(end.result) == RESULT_LIMIT


def test_a_def_that_returns_a_coroutine_is_no_success():
    async def inner():
        raise AssertionError("never awaited")

    end = outcome_of(made("thread", lambda ctx: inner()))
    assert isinstance(end, Failed)
    assert end.failure is FailureClass.FATAL
    assert "async def" in end.error.message


# -- failure -----------------------------------------------------------------------------------------------------------


@BOTH
def test_what_a_handler_raises_is_classified_and_reported(kind):
    for error, failure in (
        (ConnectionError("no route"), FailureClass.TRANSIENT),
        (TypeError("wrong"), FailureClass.FATAL),
        (Fatal("never"), FailureClass.FATAL),
        (TimeoutError("the peer's"), FailureClass.TRANSIENT),
    ):
        end = outcome_of(raising(kind, error))
        assert isinstance(end, Failed)
        assert end.failure is failure
        assert end.error.message == str(error)
        assert "raise error" in end.error.traceback
        assert "redrive/worker" not in end.error.traceback


@BOTH
def test_the_declarations_of_the_handler_decide(kind):
    def hook(error):
        return FailureClass.FATAL if "never" in str(error) else None

    declared: dict[str, Any] = {"fatal": (ConnectionError,), "transient": (KeyError,), "classify": hook}
    for error, failure in (
        (ConnectionError("x"), FailureClass.FATAL),
        (KeyError("x"), FailureClass.TRANSIENT),
        (OSError("never again"), FailureClass.FATAL),
        (OSError("later"), FailureClass.TRANSIENT),
    ):
        end = outcome_of(raising(kind, error), **declared)
        assert isinstance(end, Failed)
        assert end.failure is failure


@BOTH
def test_a_hook_that_raises_makes_it_fatal_and_both_errors_are_kept(kind):
    def hook(error):
        raise RuntimeError("the hook")

    end = outcome_of(raising(kind, OSError("the job")), classify=hook)
    assert isinstance(end, Failed)
    assert end.failure is FailureClass.FATAL
    assert "the job" in end.error.message
    assert "the hook" in end.error.message


@BOTH
def test_signals_of_the_handler(kind):
    assert outcome_of(raising(kind, Snooze(90))) == Snoozed(90.0)
    assert outcome_of(raising(kind, Snooze(float("inf")))) == Snoozed(run_one.LONGEST_SNOOZE)
    end = outcome_of(raising(kind, Cancel("not wanted")))
    assert isinstance(end, Cancelled)
    assert end.error.message == "not wanted"
    end = outcome_of(raising(kind, Throttled(7)))
    assert isinstance(end, Failed)
    assert (end.failure, end.retry_after) == (FailureClass.THROTTLED, 7.0)


@BOTH
@pytest.mark.parametrize(
    "error", [SystemExit(0), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_errors_outside_exception_are_failed_attempts(kind, error):
    end = outcome_of(raising(kind, error))
    assert isinstance(end, Failed)
    assert end.failure is FailureClass.TRANSIENT
    assert end.error.error_type.endswith(type(error).__name__)


class Unpicklable(Exception):
    def __init__(self, code, lock):
        super().__init__(code)
        self.lock = lock

    def __reduce__(self):
        raise RuntimeError("cannot be pickled")


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Malicious(Exception):
    def __getattribute__(self, name):
        raise SystemExit(name)


def circle():
    first, second = ValueError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    return second


@BOTH
@pytest.mark.parametrize(
    "make",
    [
        lambda: Unpicklable(4, threading.Lock()),
        Unprintable,
        lambda: Malicious("x"),
        circle,
        lambda: OSError("\ud800\x00 \x1b[31m"),
    ],
    ids=["reduce", "str", "getattribute", "circle", "surrogate"],
)
def test_exceptions_that_cannot_be_handled_are_handled(kind, make):
    end = outcome_of(raising(kind, make()))
    assert isinstance(end, Failed)
    kept = end.error
    assert kept.error_type
    assert isinstance(kept.message, str)
    assert "raise error" in kept.traceback
    (kept.message + kept.traceback).encode()
    assert "\x00" not in kept.message + kept.traceback


@BOTH
def test_a_failure_of_our_own_reporting_is_unclassified(kind, monkeypatch):
    def broken(error, **_):
        if isinstance(error, OSError):
            raise ZeroDivisionError("in the report")
        return ErrorReport("x", str(error), "", "0", 1)

    monkeypatch.setattr(run_one, "report", broken)
    end = outcome_of(raising(kind, OSError("the job's")))
    assert isinstance(end, Unclassified)
    assert end.error.message == "in the report"
    monkeypatch.setattr(run_one, "report", lambda *_, **__: 1 / 0)
    end = outcome_of(raising(kind, OSError("the job's")))
    assert isinstance(end, Unclassified)
    assert "OSError" in end.error.message


# -- the payload -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_payload_that_does_not_bind_is_fatal_whatever_was_declared(kind):
    called = []

    def in_thread(to: str, n: int):
        called.append(1)

    async def in_loop(to: str, n: int):
        called.append(1)

    handle = in_thread if kind == "thread" else in_loop
    end = outcome_of(handle, b'{"to": "a"\n "n": 1}', transient=(PayloadError, ValueError))
    assert isinstance(end, Failed)
    assert end.failure is FailureClass.FATAL
    assert "line 2, column 2" in end.error.message
    end = outcome_of(handle, {"to": "a", "n": "1"})
    assert isinstance(end, Failed)
    assert end.error.message.startswith("payload.n: ")
    assert not called


@BOTH
def test_a_payload_error_of_the_handlers_own_is_its_own_affair(kind):
    end = outcome_of(raising(kind, PayloadError("of another job")), transient=(PayloadError,))
    assert isinstance(end, Failed)
    assert end.failure is FailureClass.TRANSIENT


@BOTH
def test_a_handler_that_changes_its_arguments_does_not_change_the_payload(kind):
    def in_thread(rows: list[str]):
        rows.append("\ud800")
        raise OSError(rows)

    async def in_loop(rows: list[str]):
        rows.append("\ud800")
        raise OSError(rows)

    run = run_of(in_thread if kind == "thread" else in_loop, b'{"rows": ["a"]}')
    for _ in range(3):
        end = outcome(run)
        assert isinstance(end, Failed)
        assert end.error.message.count("\\ud800") == 1
    assert run.job.payload == b'{"rows": ["a"]}'


# -- told to stop ------------------------------------------------------------------------------------------------------


def stop(body, reason):
    entered = []

    async def handle():
        entered.append(True)
        return await body()

    return stopped_outcome(run_of(handle, timeout=30), reason, lambda: bool(entered))


async def hangs():
    await asyncio.Event().wait()


async def swallows():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "done"


async def fails_in_finally():
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("while cleaning up")


async def fails_in_except():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise TypeError("in except") from None


CASES = [
    (Stop.TIMEOUT, hangs, TimedOut),
    (Stop.TIMEOUT, swallows, TimedOut),
    (Stop.TIMEOUT, fails_in_finally, TimedOut),
    (Stop.TIMEOUT, fails_in_except, TimedOut),
    (Stop.CANCEL, hangs, Cancelled),
    (Stop.CANCEL, swallows, Done),
    (Stop.CANCEL, fails_in_finally, Failed),
    (Stop.LOST, hangs, LeaseLost),
    (Stop.LOST, swallows, Done),
    (Stop.LOST, fails_in_finally, LeaseLost),
    (Stop.SHUTDOWN, hangs, WorkerStopped),
    (Stop.SHUTDOWN, swallows, Done),
    (Stop.SHUTDOWN, fails_in_finally, WorkerStopped),
]


@pytest.mark.parametrize(("reason", "body", "expected"), CASES, ids=lambda i: getattr(i, "__name__", str(i)))
def test_a_run_that_is_told_to_stop(reason, body, expected):
    end = stop(body, reason)
    assert type(end) is expected


def test_the_report_of_a_timeout_shows_where_it_hung_and_what_came_out():
    end = stop(hangs, Stop.TIMEOUT)
    assert isinstance(end, TimedOut)
    assert end.stopped
    assert end.error.error_type == "redrive.Overran"
    assert end.error.message == "it ran over its timeout of 30 s"
    assert "in hangs" in end.error.traceback
    end = stop(fails_in_finally, Stop.TIMEOUT)
    assert isinstance(end, TimedOut)
    assert "while cleaning up" in end.error.traceback
    end = stop(swallows, Stop.TIMEOUT)
    assert isinstance(end, TimedOut)
    assert "returned all the same" in end.error.message


def test_a_handlers_own_timeout_is_not_the_engines():
    async def handle():
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    end = outcome_of(handle, timeout=30)
    assert isinstance(end, Failed)
    assert end.failure is FailureClass.TRANSIENT


@BOTH
def test_a_run_that_was_told_to_stop_before_it_began_does_not_begin(kind):
    run = run_of(made(kind, lambda ctx: pytest.fail("it ran")))
    run.stop = Stop.CANCEL
    assert isinstance(outcome(run), Cancelled)
