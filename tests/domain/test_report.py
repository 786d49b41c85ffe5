"""What is kept of an error: text that any database stores, from exceptions that try to prevent it."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from redrive.domain import classify as classify_module
from redrive.domain.classify import type_name
from redrive.domain.fingerprint import VERSION, fingerprint

WORKER = Path(classify_module.__file__).parent.parent / "worker" / "run_one.py"


def report(error, *, job_type="email.send.v1", **options):
    return classify_module.report(error, job_type=job_type, **options)


def caught(function, *arguments):
    """What ``function`` raises, with the traceback from there on."""
    with pytest.raises(BaseException) as info:  # noqa: PT011 - whichever it is
        function(*arguments)
    return BaseException.with_traceback(info.value, info.tb.tb_next)


def code(source, filename, **names):
    """A function from a file that need not exist, for a frame of its own in a traceback."""
    exec(compile(source, str(filename), "exec"), names)
    return names["run"]


class AppError(Exception):
    class Nested(Exception):
        pass


class TestTheType:
    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            (ValueError, "ValueError"),
            (SystemExit, "SystemExit"),
            (ExceptionGroup, "ExceptionGroup"),
            (AppError, f"{__name__}.AppError"),
            (AppError.Nested, f"{__name__}.AppError.Nested"),
            (type("Odd\n", (Exception,), {"__module__": 5}), "5.Odd"),
            (type("Homeless", (Exception,), {"__module__": None}), "Homeless"),
        ],
    )
    def test_has_its_module_unless_it_is_built_in(self, kind, name):
        assert type_name(kind) == name
        assert report(kind("x", [ValueError()]) if kind is ExceptionGroup else kind()).error_type == name

    def test_is_no_longer_than_a_column(self):
        assert len(type_name(type("X" * 1000, (Exception,), {}))) == 200


class TestTheMessage:
    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (ValueError("no such customer"), "no such customer"),
            (ValueError(), ""),
            (KeyError("subject"), "'subject'"),
            (ValueError("two\n  lines\tand a tab"), "two lines and a tab"),
            (ValueError("a\x00b \udc80 \x1b[31m \u202e"), "a\\x00b \\udc80 \\x1b[31m \\u202e"),
            (ValueError("x", 5), "('x', 5)"),
            (
                ExceptionGroup("two failed", [ValueError("a"), AppError("b")]),
                f"two failed (2 sub-exceptions): ValueError: a; {__name__}.AppError: b",
            ),
        ],
    )
    def test_is_one_safe_line(self, error, message):
        assert report(error).message == message

    def test_of_two_megabytes_is_cut(self):
        kept = report(ValueError("x" * 2_000_000))
        assert len(kept.message) == 1000
        assert kept.message.endswith("x…")
        assert len(kept.traceback) < 3000

    def test_of_a_group_cuts_each_member(self):
        kept = report(ExceptionGroup("g", [ValueError("x" * 500), KeyError("y")])).message
        assert kept == f"g (2 sub-exceptions): ValueError: {'x' * 199}…; KeyError: 'y'"

    def test_of_a_group_names_three_members(self):
        many = ExceptionGroup("all failed", [ValueError(n) for n in range(50)])
        assert report(many).message == "all failed (50 sub-exceptions): ValueError: 0; ValueError: 1; ValueError: 2"


def fail(customer):
    raise LookupError(f"no such customer: {customer}")


def handler():
    try:
        fail(42)
    except LookupError as error:
        raise AppError("mail not sent") from error


class TestTheTraceback:
    def test_tells_the_whole_story(self):
        text = report(caught(handler)).traceback
        first, second = text.split("The above exception was the direct cause of the following exception:")
        assert "in fail" in first
        assert first.rstrip().endswith("LookupError: no such customer: 42")
        assert "in handler" in second
        assert second.endswith(f"{__name__}.AppError: mail not sent\n")

    def test_shows_notes_and_members(self):
        error = ValueError("x")
        error.add_note("while rendering page 3")
        text = report(ExceptionGroup("several", [error, KeyError("y")])).traceback
        assert "while rendering page 3" in text
        assert "KeyError: 'y'" in text

    def test_starts_with_the_applications_frames(self):
        inner = code("def run(then):\n  then()", WORKER)
        outer = code("def run(then):\n  inner(then)", WORKER, inner=inner)
        text = report(caught(outer, handler)).traceback
        assert text.count("in handler") == 2  # in the cause, and at the end
        assert str(WORKER) not in text.rpartition("Traceback")[2]

    def test_keeps_the_engines_frames_below_the_applications(self):
        engine = code("def run(then):\n  then()", WORKER)
        application = code("def run(engine, then):\n  engine(then)", "/app/jobs.py", engine=engine)
        text = report(caught(application, engine, lambda: fail(1))).traceback
        assert str(WORKER) in text

    def test_keeps_the_engines_frames_when_there_are_no_others(self):
        assert str(WORKER) in report(caught(code("def run():\n  1 / 0", WORKER))).traceback

    def test_does_not_take_an_application_for_the_engine(self):
        text = report(caught(code("def run():\n  1 / 0", "/app/worker/run_one.py"))).traceback
        assert "/app/worker/run_one.py" in text

    @pytest.mark.parametrize("limit", [100, 1000, None])
    def test_is_cut_in_the_middle(self, limit):
        def deep(n):
            if n == 0:
                raise ValueError("the end " + "x" * 50)
            globals_deep[n % 7](n - 1)

        globals_deep = [code("def run(n): deep(n)", f"/app/level{n}.py", deep=deep) for n in range(7)]
        text = report(caught(deep, 300), **({"limit": limit} if limit else {})).traceback
        limit = limit or 20_000
        start, _, end = text.partition("characters in all]\n")
        assert len(text) == limit
        assert len(end) == limit // 2 - 1
        assert start.startswith("Traceback")
        assert end.endswith("x\n")

    def test_of_an_error_that_was_never_raised_is_its_name(self):
        assert report(ValueError("x")).traceback == "ValueError: x\n"

    def test_of_one_with_a_huge_message_keeps_the_frames_of_the_next(self):
        def run():
            try:
                raise ValueError("x" * 2_000_000)
            except ValueError:
                fail(42)

        text = report(caught(run)).traceback
        assert "in fail" in text
        assert "During handling of the above exception" in text
        assert len(text) < 5000

    @pytest.mark.parametrize(
        ("size", "shown"),
        [
            (1987, "x" * 1987),
            (1988, "x" * 1953 + " [... cut, 2001 characters in all]"),
        ],
    )
    def test_cuts_a_line_of_more_than_two_thousand(self, size, shown):
        assert report(ValueError("x" * size)).traceback == f"ValueError: {shown}\n"

    def test_of_an_error_that_cannot_be_formatted_is_its_frames_and_its_name(self):
        inner = code("def run():\n  raise error", "/app/inner.py", error=Hostile())
        outer = code("def run():\n  inner()", "/app/outer.py", inner=inner)
        assert report(caught(outer)).traceback == (
            "Traceback (most recent call last):\n"
            '  File "/app/outer.py", line 2, in run\n'
            '  File "/app/inner.py", line 2, in run\n'
            f"{__name__}.Hostile: <Hostile: its text cannot be had, __str__ raised RuntimeError>\n"
        )


class NeedsArguments(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


class HoldsALock(Exception):
    def __init__(self):
        self.lock = threading.Lock()


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class NoTextAtAll(NoText):
    def __repr__(self):
        raise RuntimeError("no repr")

    def __reduce__(self):
        raise RuntimeError("no pickle")


class LeavesFromText(Exception):
    def __str__(self):
        raise SystemExit(1)


class NoTextButANumber(Exception):
    def __str__(self):
        return 5


class Hostile(NoText):
    def __getattribute__(self, name):
        raise RuntimeError(name)


class Sticky(str):
    """Text that claims to be other text."""

    def __str__(self):
        return self

    def encode(self, *_):
        raise RuntimeError("not encodable")


class StickyText(Exception):
    def __str__(self):
        return Sticky("sticky \ud800")


def in_a_circle():
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def of_a_thousand_causes():
    error = ValueError(0)
    for n in range(1000):
        error.__cause__, error = error, ValueError(n)
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NeedsArguments(1, 2), "1"),
        (HoldsALock(), ""),
        (NoText(), "<NoText: its text cannot be had, __str__ raised RuntimeError>"),
        (NoTextAtAll(), "<NoTextAtAll: its text cannot be had, __str__ raised RuntimeError>"),
        (LeavesFromText(), "<LeavesFromText: its text cannot be had, __str__ raised SystemExit>"),
        (NoTextButANumber(), "<NoTextButANumber: its text cannot be had, __str__ raised TypeError>"),
        (Hostile(), "<Hostile: its text cannot be had, __str__ raised RuntimeError>"),
        (StickyText(), "sticky \\ud800"),
        pytest.param(in_a_circle(), "first", id="in a circle"),
        pytest.param(of_a_thousand_causes(), "999", id="of a thousand causes"),
        (ExceptionGroup("g", [Hostile()]), f"g (1 sub-exception): {__name__}.Hostile: <Hostile: its text cannot "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_nothing_an_exception_does_prevents_its_report(error, message):
    def run():
        raise error

    kept = report(caught(run))
    assert kept.message.startswith(message)
    assert kept.error_type == type_name(type(error))
    assert type(error).__name__ in kept.traceback
    assert "in run" in kept.traceback
    for text in (kept.error_type, kept.message, kept.traceback):
        assert type(text) is str
        assert "\x00" not in text
        text.encode()


class TestASecondError:
    """From judging the first: a hook or a backoff function that raised."""

    def test_stands_beside_the_first(self):
        kept = report(caught(fail, 42), also=caught(lambda: 1 / 0))
        assert kept.error_type == "LookupError"
        assert kept.message == "no such customer: 42; and judging it failed: ZeroDivisionError: division by zero"
        first, second = kept.traceback.split("\nJudging this error failed as well:\n\n")
        assert "in fail" in first
        assert second.endswith("ZeroDivisionError: division by zero\n")

    def test_stands_beside_one_without_a_message(self):
        kept = report(ValueError(), also=KeyError("k"))
        assert kept.message == "ValueError; and judging it failed: KeyError: 'k'"


class TestTheFingerprint:
    def test_carries_its_version(self):
        kept = report(ValueError())
        assert kept.fingerprint_version == VERSION == 1
        assert len(kept.fingerprint) == 16

    def test_folds_failures_of_one_cause(self):
        assert report(caught(fail, 42)).fingerprint == report(caught(fail, 43)).fingerprint

    def test_tells_causes_apart(self):
        def elsewhere():
            raise LookupError("no such customer: 42")

        others = {
            report(caught(fail, 42)).fingerprint,
            report(caught(elsewhere)).fingerprint,
            report(caught(handler)).fingerprint,
            report(caught(fail, 42), job_type="other").fingerprint,
        }
        assert len(others) == 4

    def test_looks_at_the_applications_frames_only(self):
        bare = caught(code("def run():\n  raise KeyError('x')", "/app/jobs.py"))
        below = caught(
            code("def run(inner):\n  inner()", WORKER), code("def run():\n  raise KeyError('x')", "/app/jobs.py")
        )
        library = code("def run():\n  raise KeyError('x')", "/venv/lib/python3.11/site-packages/lib/deep.py")
        inside = caught(code("def run(inner):\n  inner()", "/app/jobs.py"), library)
        assert report(bare).fingerprint == report(below).fingerprint == report(inside).fingerprint

    def test_is_made_of_just_these(self):
        def print_of(kind, http=""):
            return fingerprint("email.send.v1", http, kind, "gone", ())

        assert report(ValueError("gone")).fingerprint == print_of("ValueError")
        error = AppError("gone")
        error.__dict__["response"] = SimpleNamespace(status_code=410)
        assert report(error).fingerprint == print_of(f"{__name__}.AppError", "http 410")

    def test_looks_at_libraries_where_the_application_is_installed_as_one(self):
        one, other = (
            caught(code("def run():\n  raise KeyError('x')", f"/venv/lib/python3.11/site-packages/shop/{name}.py"))
            for name in ("mail", "web")
        )
        assert report(one).fingerprint != report(other).fingerprint

    def test_leaves_the_engine_out_there_as_well(self):
        installed = code("def run():\n  raise KeyError('x')", "/venv/lib/python3.11/site-packages/shop/mail.py")
        called = code("def run(inner):\n  inner()", WORKER)
        assert report(caught(installed)).fingerprint == report(caught(called, installed)).fingerprint

    def test_tells_http_statuses_apart(self):
        def answer(status):
            error = AppError("the peer refused")
            error.__dict__["response"] = SimpleNamespace(status_code=status)
            return report(error).fingerprint

        assert len({answer(status) for status in (404, 500, 503)}) == 3
