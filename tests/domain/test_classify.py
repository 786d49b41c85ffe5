"""What an exception means for the next attempt: the table of the design, with real exceptions."""

import asyncio
import json
import sqlite3
import ssl
import subprocess
import urllib.error
from types import SimpleNamespace

import aiohttp
import asyncpg
import httpx
import psycopg
import pytest
import requests
import sqlalchemy
import sqlalchemy.exc

from redrive.domain import classify as classify_module
from redrive.domain.classify import Classification
from redrive.domain.errors import Cancel, Fatal, InvalidField, PayloadError, Throttled, Unavailable
from redrive.domain.failures import FailureClass
from redrive.domain.policy import LONGEST
from tests.domain.given import NOW

FATAL, TRANSIENT, THROTTLED = (Classification(kind) for kind in FailureClass)


def classify(error, **declared):
    return classify_module.classify(error, now=NOW, **declared)


FATAL_ERRORS = [
    Fatal("the address is no address"),
    PayloadError("it is empty"),
    InvalidField("to", "missing"),
    TypeError(),
    ValueError(),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    AttributeError(),
    KeyError("subject"),
    IndexError(),
    LookupError(),
    NameError(),
    UnboundLocalError(),
    ImportError(),
    ModuleNotFoundError(),
    AssertionError(),
    ArithmeticError(),
    ZeroDivisionError(),
    OverflowError(),
    NotImplementedError(),
    RecursionError(),
    SyntaxError(),
    asyncpg.exceptions._base.DataError("invalid input for query argument $1"),  # an InterfaceError and a ValueError
]

TRANSIENT_ERRORS = [
    OSError(),
    ConnectionResetError(),
    TimeoutError(),  # asyncio's and concurrent.futures' as well
    FileNotFoundError(),
    ssl.SSLCertVerificationError("expired"),  # an OSError and a ValueError
    Unavailable("the database is restarting"),
    subprocess.CalledProcessError(1, "lp"),
    RuntimeError(),
    MemoryError(),
    EOFError(),
    StopIteration(),
    Exception(),
    Cancel("the worker handles it before, unless it comes inside something else"),
    # Never the end of the worker, and never a success.
    SystemExit(0),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    GeneratorExit(),
    # Of HTTP clients, without a response.
    httpx.ReadTimeout("slow"),
    requests.exceptions.JSONDecodeError("no JSON", "<html>", 0),
    requests.exceptions.InvalidURL("no URL"),  # an OSError and a ValueError
    aiohttp.ServerDisconnectedError(),
    urllib.error.URLError("unknown host"),
    # Of databases.
    sqlalchemy.exc.InterfaceError("SELECT 1", None, Exception()),
    psycopg.errors.DeadlockDetected(),
    psycopg.errors.UniqueViolation(),
    sqlite3.IntegrityError(),
    asyncpg.InterfaceError("connection is closed"),
    asyncpg.TooManyConnectionsError(),
]


def class_name(error):
    return f"{type(error).__module__}.{type(error).__qualname__}"


@pytest.mark.parametrize("error", FATAL_ERRORS, ids=class_name)
def test_what_will_not_get_better_is_fatal(error):
    assert classify(error) == FATAL


@pytest.mark.parametrize("error", TRANSIENT_ERRORS, ids=class_name)
def test_what_may_get_better_is_transient(error):
    assert classify(error) == TRANSIENT


CLOSED = "http://127.0.0.1:1/"


def recurse():
    return recurse()


async def ask_with_aiohttp():
    async with aiohttp.ClientSession() as session:
        await session.get(CLOSED)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        pytest.param(lambda: {"to": "a@example.com"}["subject"], FATAL, id="a key is missing"),
        pytest.param(lambda: None.subject, FATAL, id="None has no subject"),  # type: ignore[attr-defined]
        pytest.param(lambda: int("no"), FATAL, id="no number"),
        pytest.param(lambda: 1 / 0, FATAL, id="division by zero"),
        pytest.param(recurse, FATAL, id="recursion"),
        pytest.param(lambda: json.loads("<html>502 Bad Gateway</html>"), TRANSIENT, id="HTML for JSON"),
        pytest.param(lambda: b"\xff".decode(), TRANSIENT, id="broken text"),
        pytest.param(lambda: httpx.get(CLOSED), TRANSIENT, id="httpx, nobody listens"),
        pytest.param(lambda: requests.get(CLOSED, timeout=5), TRANSIENT, id="requests, nobody listens"),
        pytest.param(lambda: asyncio.run(ask_with_aiohttp()), TRANSIENT, id="aiohttp, nobody listens"),
        pytest.param(lambda: psycopg.connect("host=127.0.0.1 port=1"), TRANSIENT, id="psycopg, nobody listens"),
        pytest.param(lambda: sqlite3.connect("/nowhere/at/all.db"), TRANSIENT, id="sqlite3, no such file"),
        pytest.param(
            lambda: sqlalchemy.create_engine("sqlite:////nowhere/at/all.db").connect(),
            TRANSIENT,
            id="SQLAlchemy, no such file",
        ),
    ],
)
def test_what_really_is_raised(action, expected):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - that is the question
        action()
    assert classify(caught.value) == expected


@pytest.mark.parametrize("name", ["OperationalError", "InterfaceError"])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_driver_nobody_heard_of_is_known_by_the_names_of_the_database_api(name, depth):
    kind = type(name, (ValueError,), {})
    for n in range(depth):
        kind = type(f"Special{n}", (kind,), {})
    assert classify(kind()) == TRANSIENT


@pytest.mark.parametrize(
    "name", ["DataError", "IntegrityError", "ProgrammingError", "NotSupportedError", "InternalError"]
)
def test_its_other_errors_are_not_operational_even_below_one_that_is(name):
    operational = type("InterfaceError", (ValueError,), {})
    assert classify(type(name, (operational,), {})()) == FATAL


def test_json_libraries_need_not_share_a_class():
    assert classify(type("JSONDecodeError", (ValueError,), {})()) == TRANSIENT


class TestThrottled:
    @pytest.mark.parametrize(
        ("asked", "kept"), [(60, 60), (0, 0), (0.5, 0.5), (-5, None), (float("nan"), None), (1e300, LONGEST)]
    )
    def test_keeps_the_time_that_was_asked_for(self, asked, kept):
        assert classify(Throttled(asked)) == Classification(FailureClass.THROTTLED, kept)

    @pytest.mark.parametrize("broken", ["soon", None, [], 1j])
    def test_survives_a_time_that_is_none(self, broken):
        error = Throttled(1)
        error.__dict__["retry_after"] = broken
        assert classify(error) == THROTTLED


class TestWhatTheHandlerDeclared:
    def test_wins_over_the_table(self):
        assert classify(KeyError(), transient=(LookupError,)) == TRANSIENT
        assert classify(TimeoutError(), fatal=(OSError,)) == FATAL

    def test_the_nearest_class_counts(self):
        assert classify(KeyError(), fatal=(KeyError,), transient=(LookupError,)) == FATAL
        assert classify(KeyError(), fatal=(LookupError,), transient=(KeyError,)) == TRANSIENT

    def test_declared_both_ways_it_stays_retryable(self):
        assert classify(KeyError(), fatal=(LookupError,), transient=(LookupError,)) == TRANSIENT

    def test_what_was_not_raised_does_not_matter(self):
        assert classify(TypeError(), transient=(LookupError,)) == FATAL
        assert classify(OSError(), fatal=(LookupError,)) == TRANSIENT

    def test_loses_to_the_handlers_own_word(self):
        assert classify(Fatal(), transient=(Exception,)) == FATAL
        assert classify(Throttled(60), fatal=(Exception,)).failure is FailureClass.THROTTLED

    def test_wins_over_the_application(self):
        assert classify(KeyError(), fatal=(KeyError,), hook=lambda _: FailureClass.TRANSIENT) == FATAL


class TestTheHook:
    @pytest.mark.parametrize("verdict", FailureClass)
    @pytest.mark.parametrize("error", [KeyError(), OSError()])
    def test_wins_over_the_table(self, error, verdict):
        assert classify(error, hook=lambda _: verdict) == Classification(verdict)

    def test_is_given_the_error(self):
        error = KeyError("subject")
        verdicts = {error: FailureClass.TRANSIENT}
        assert classify(error, hook=verdicts.get) == TRANSIENT

    def test_may_leave_it_to_the_table(self):
        assert classify(KeyError(), hook=lambda _: None) == FATAL
        assert classify(OSError(), hook=lambda _: None) == TRANSIENT

    def test_may_answer_with_the_word(self):
        assert classify(OSError(), hook=lambda _: "fatal") == FATAL

    @pytest.mark.parametrize("second", [RuntimeError("hook"), SystemExit(3), KeyboardInterrupt()])
    def test_that_raises_makes_the_failure_fatal_and_is_kept(self, second):
        def hook(_error):
            raise second

        assert classify(OSError(), hook=hook) == Classification(FailureClass.FATAL, broken=second)

    def test_that_answers_nonsense_counts_as_broken(self):
        answer = classify(OSError(), hook=lambda _: "perhaps")
        assert answer.failure is FailureClass.FATAL
        assert str(answer.broken) == "'perhaps' is not a valid FailureClass"


def group(*members):
    return BaseExceptionGroup("several", members)


class TestAGroup:
    @pytest.mark.parametrize(
        ("errors", "expected"),
        [
            (group(KeyError()), FATAL),
            (group(KeyError(), Fatal()), FATAL),
            (group(OSError()), TRANSIENT),
            (group(KeyError(), OSError()), TRANSIENT),
            (group(group(KeyError()), group(TypeError(), group(ValueError()))), FATAL),
            (group(group(KeyError()), group(TypeError(), group(OSError()))), TRANSIENT),
            (group(KeyError(), SystemExit(1)), TRANSIENT),
            # "Never before the stated time" holds inside a group as well.
            (group(KeyError(), Throttled(60)), Classification(FailureClass.THROTTLED, 60)),
            (group(Throttled(60), OSError(), Throttled(90)), Classification(FailureClass.THROTTLED, 90)),
            (group(Throttled(-1), OSError()), THROTTLED),
        ],
        ids=repr,
    )
    def test_is_fatal_only_if_all_members_are(self, errors, expected):
        assert classify(errors) == expected

    def test_may_be_declared_itself(self):
        assert classify(group(OSError()), fatal=(BaseExceptionGroup,)) == FATAL

    def test_applies_declarations_and_hook_to_each_member(self):
        assert classify(group(OSError(), KeyError()), fatal=(OSError,)) == FATAL
        assert classify(group(KeyError(), TypeError()), transient=(KeyError,)) == TRANSIENT
        verdict = {OSError: FailureClass.FATAL}
        assert classify(group(OSError(), KeyError()), hook=lambda e: verdict.get(type(e))) == FATAL

    def test_reads_dates_of_its_members_by_the_same_clock(self):
        response = SimpleNamespace(status_code=429, headers={"Retry-After": "Mon, 04 May 2026 03:03:01 GMT"})
        member = Exception()
        member.__dict__["response"] = response
        assert classify(group(member)) == Classification(FailureClass.THROTTLED, 60)

    @pytest.mark.parametrize("other", [KeyError(), OSError(), Throttled(5)])
    def test_keeps_what_the_hook_raised_over_a_member(self, other):
        second = RuntimeError("hook")

        def hook(error):
            if isinstance(error, IndexError):
                raise second

        answer = classify(group(IndexError(), other), hook=hook)
        assert answer.broken is second
        assert answer.failure is classify(other).failure

    def test_may_be_nested_deeper_than_python_recurses(self):
        errors = group(KeyError())
        for _ in range(5000):
            errors = group(errors)
        assert classify(errors) == FATAL


class Hostile(Exception):
    """Answers every question with an error."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __str__(self):
        raise RuntimeError("str")


class HostileLookup(Hostile, LookupError):
    pass


class HostileThrottle(Hostile, Throttled):
    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Hostile(), TRANSIENT), (HostileLookup(), FATAL), (group(HostileLookup()), FATAL), (HostileThrottle(), THROTTLED)],
    ids=["plain", "lookup", "group", "throttle"],
)
def test_an_exception_that_answers_nothing_is_known_by_its_class(error, expected):
    assert classify(error) == expected
