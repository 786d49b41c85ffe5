"""What an exception means for the next attempt, and what is kept of it. Never trusts the exception: any of its
attributes, its text and its causes may raise, lie or go in circles.

The order, first match wins: the handler's own word (``Fatal``, ``Throttled``), the handler's ``fatal=`` and
``transient=``, the application's hook, then the table of the design. Libraries are recognised by the shape of their
exceptions and by class names, never imported.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from json import JSONDecodeError
from types import TracebackType

from .errors import Fatal, Throttled
from .failures import FailureClass
from .fingerprint import VERSION, Frame, fingerprint
from .outcome import ErrorReport
from .policy import LONGEST
from .text import one_line, plain, storable

Hook = Callable[[BaseException], FailureClass | None]
"""The application's ``classify=``: a class, or None for "the usual rules"."""

Errors = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of a failure. ``retry_after``: seconds from now, where the peer stated a time.

    ``broken`` is what the application's hook raised on the way: such an error is fatal, and
    ``report(error, also=broken)`` keeps both.
    """

    failure: FailureClass
    retry_after: float | None = None
    broken: BaseException | None = None


def classify(
    error: BaseException,
    *,
    fatal: Errors = (),
    transient: Errors = (),
    hook: Hook | None = None,
    now: datetime,
) -> Classification:
    """The class of ``error``; ``now`` is what an HTTP date is compared with when the response has no date itself."""
    kind = type(error)
    if issubclass(kind, Fatal):
        return _FATAL
    if issubclass(kind, Throttled):
        return Classification(FailureClass.THROTTLED, _stated(_peek(error, "retry_after")))
    declared = _declared(kind, fatal, transient)
    if declared is not None:
        return Classification(declared)
    if hook is not None:
        try:
            verdict = hook(error)
            if verdict is not None:
                return Classification(FailureClass(verdict))
        except BaseException as broken:  # a hook is a stranger's code; its failure must not lose the job
            return Classification(FailureClass.FATAL, broken=broken)
    http = _http(error, now)
    if http is not None:
        return http
    if issubclass(kind, OSError) or _is_operational(kind):
        return _TRANSIENT
    if issubclass(kind, _FATAL_KINDS) and not _is_broken_answer(kind):
        return _FATAL
    if issubclass(kind, BaseExceptionGroup):
        return _together([classify(e, fatal=fatal, transient=transient, hook=hook, now=now) for e in _leaves(error)])
    return _TRANSIENT


_FATAL = Classification(FailureClass.FATAL)
_TRANSIENT = Classification(FailureClass.TRANSIENT)

_FATAL_KINDS: Errors = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    NameError,
    ImportError,
    AssertionError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
)


def _declared(kind: type[BaseException], fatal: Errors, transient: Errors) -> FailureClass | None:
    """What the handler declared for the nearest class of ``kind``; declared both ways it stays retryable."""
    for base in kind.__mro__:
        if base in transient:
            return FailureClass.TRANSIENT
        if base in fatal:
            return FailureClass.FATAL
    return None


def _is_broken_answer(kind: type[BaseException]) -> bool:
    """An answer from elsewhere that does not parse; JSON libraries name their error alike without sharing a class."""
    names = {base.__name__ for base in kind.__mro__}
    return issubclass(kind, JSONDecodeError | UnicodeDecodeError) or "JSONDecodeError" in names


def _is_operational(kind: type[BaseException]) -> bool:
    """By the names DB-API gives; the nearest one counts, because asyncpg's DataError is an InterfaceError as well."""
    for base in kind.__mro__:
        if base.__name__ in ("OperationalError", "InterfaceError"):
            return True
        if base.__name__ in ("DataError", "IntegrityError", "ProgrammingError", "NotSupportedError", "InternalError"):
            return False
    return False


def _leaves(group: BaseException) -> Iterator[BaseException]:
    """The errors in a group and in the groups within it, without recursion."""
    waiting = [group]
    while waiting:
        one = waiting.pop()
        if issubclass(type(one), BaseExceptionGroup):
            waiting.extend(reversed(BaseExceptionGroup.exceptions.__get__(one)))
        else:
            yield one


def _together(members: list[Classification]) -> Classification:
    """A group is fatal only if all its members are; a time that one of them was told is kept for all."""
    broken = next((member.broken for member in members if member.broken is not None), None)
    if all(member.failure is FailureClass.FATAL for member in members):
        return Classification(FailureClass.FATAL, broken=broken)
    told = [member.retry_after for member in members if member.failure is FailureClass.THROTTLED]
    if told:
        return Classification(FailureClass.THROTTLED, max((s for s in told if s is not None), default=None), broken)
    return Classification(FailureClass.TRANSIENT, broken=broken)


# -- HTTP --------------------------------------------------------------------------------------------------------------

_FATAL_STATUS = frozenset({400, 405, 406, 410, 411, 413, 414, 415, 422, 501, 505})


def _http(error: BaseException, now: datetime) -> Classification | None:
    status, headers = _answer(error)
    if status is None:
        return None
    stated = _header(headers, "Retry-After")
    if status == 429 or (status == 503 and stated):
        theirs = _date(_header(headers, "Date"))
        return Classification(FailureClass.THROTTLED, _retry_after(stated, theirs or now))
    return _FATAL if status in _FATAL_STATUS else _TRANSIENT


def _answer(error: BaseException) -> tuple[int | None, object]:
    """Status (an error's) and headers: of the exception's response (httpx, requests), or its own (aiohttp, urllib)."""
    response = _peek(error, "response")
    for holder, names in ((response, ("status_code", "status")), (error, ("status",))):
        headers = _peek(holder, "headers")
        for name in names:
            status = _peek(holder, name)
            # Without headers, a `status` on an exception may be anything; on a response it is what it says.
            known = holder is response or headers is not None or _is_named(error, "ClientResponseError")
            if known and isinstance(status, int) and not isinstance(status, bool) and 400 <= status < 600:
                return int(status), headers
    return None, None


def _is_named(error: BaseException, name: str) -> bool:
    return any(base.__name__ == name for base in type(error).__mro__)


def _header(headers: object, name: str) -> str:
    """A header's text, empty where there is none; a plain dict may spell its name either way."""
    get = _peek(headers, "get")
    for spelling in (name, name.lower()):
        try:
            value = get(spelling)  # type: ignore[operator]  # whatever it is, the answer is checked
        except BaseException:
            break
        if isinstance(value, str):
            return value
    return ""


def _retry_after(value: str, now: datetime) -> float | None:
    """Seconds from now: a number, or a date (past: 0). Garbage is None and the usual backoff applies."""
    text = value.strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return _stated(float(text))
    date = _date(text)
    return None if date is None else _stated(max(0.0, (date - now).total_seconds()))


def _date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
        return date.replace(tzinfo=UTC) if date.tzinfo is None else date
    except Exception:  # the parser answers odd input with TypeError, IndexError, OverflowError, ...
        return None


def _stated(seconds: object) -> float | None:
    """A wait in seconds, or None when it is none; a century stands for whatever is longer."""
    return float(min(seconds, LONGEST)) if isinstance(seconds, int | float) and seconds >= 0 else None


def _peek(holder: object, name: str) -> object:
    """An attribute of a stranger; None where it is missing or raises."""
    try:
        return getattr(holder, name)
    except BaseException:
        return None


# -- what is kept ------------------------------------------------------------------------------------------------------

MESSAGE, CHUNK, GROUP = 1_000, 2_000, 3
"""Characters of a message, and of one line of a traceback; members of a group that its message names."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100 - compared with co_filename
_WORKER = os.path.join(_PACKAGE, "worker") + os.sep  # noqa: PTH118
_NOT_APPLICATION = (_PACKAGE + os.sep, sysconfig.get_path("stdlib") + os.sep, "<frozen")
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")


def report(
    error: BaseException, *, job_type: str, limit: int = 20_000, also: BaseException | None = None
) -> ErrorReport:
    """What is kept of ``error``: its type, its message in one line, its traceback with causes in ``limit`` characters.

    ``also`` is a second error, from judging the first (a hook or a backoff function that raised): both are kept.
    """
    kind, message = type_name(type(error)), _message(error)
    text = _traceback(error)
    if also is not None:
        second = f"{type_name(type(also))}: {_message(also)}"
        message = f"{message or kind}; and judging it failed: {second}"
        text = f"{text}\nJudging this error failed as well:\n\n{_traceback(also)}"
    status, _ = _answer(error)
    frames = _frames(_steps(error))
    return ErrorReport(
        error_type=kind,
        message=one_line(message, min(MESSAGE, limit)),
        traceback=storable(text, limit, tail=limit // 2),
        fingerprint=fingerprint(job_type, f"http {status}" if status else "", kind, message, frames),
        fingerprint_version=VERSION,
    )


def type_name(kind: type[BaseException]) -> str:
    """``module.Class``; builtins without the module."""
    module, name = plain(_peek(kind, "__module__")), plain(_peek(kind, "__qualname__"))
    return one_line(name if module in ("builtins", "None") else f"{module}.{name}", 200)


def _message(error: BaseException) -> str:
    said = storable(error)
    if not issubclass(type(error), BaseExceptionGroup):
        return said
    members = (f"{type_name(type(member))}: {one_line(member, 200)}" for member in islice(_leaves(error), GROUP))
    return f"{said}: {'; '.join(members)}"


def _traceback(error: BaseException) -> str:
    """The traceback with causes, from the first frame that is not the engine's; every part of it cut by itself."""
    steps = _own(_steps(error))
    try:
        chunks: Iterable[str] = traceback.TracebackException(type(error), error, steps).format()
        return "".join(_chunk(chunk) for chunk in chunks)
    except BaseException:  # formatting asks the error for its notes, causes and text
        frames = "".join(_chunk(chunk) for chunk in traceback.format_tb(steps))
        return f"Traceback (most recent call last):\n{frames}{type_name(type(error))}: {_message(error)}\n"


def _chunk(chunk: str) -> str:
    return chunk if len(chunk) <= CHUNK else storable(chunk, CHUNK - 1) + "\n"


def _steps(error: BaseException) -> TracebackType | None:
    steps: TracebackType | None = vars(BaseException)["__traceback__"].__get__(error)  # no attribute of its own asked
    return steps


def _own(steps: TracebackType | None) -> TracebackType | None:
    """``steps`` without the engine's frames on top; all of them where nothing else is left."""
    here = steps
    while here is not None and here.tb_frame.f_code.co_filename.startswith(_WORKER):
        here = here.tb_next
    return here or steps


def _frames(steps: TracebackType | None) -> list[Frame]:
    """The application's frames, outermost first; all frames where none is the application's."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(steps)]
    frames = [Frame(code.co_filename, code.co_qualname) for code in codes]
    own = [f for f in frames if not f.file.startswith(_NOT_APPLICATION) and not _INSTALLED.search(f.file)]
    # An application installed as a package is found among the libraries.
    return own or [f for f in frames if not f.file.startswith(_NOT_APPLICATION)] or frames
