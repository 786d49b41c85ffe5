"""Values of options and arguments: how people write them, turned into what services take."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from redrive.config import DURATION_EXPECTED, parse_seconds
from redrive.domain.edits import UNSET, Unset
from redrive.domain.errors import InvalidField
from redrive.domain.failures import Reason, parse_reason
from redrive.domain.limits import RUNNING_EXPECTED

from .common import usage


def labels(given: Sequence[str]) -> dict[str, str]:
    """``name=value`` as often as wanted."""
    found: dict[str, str] = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not sign:
            usage(f"--label {pair!r}: write it as name=value")
        found[name] = value
    return found


def label(given: str | None) -> tuple[str, str] | None:
    """One ``name=value`` to filter by."""
    return None if given is None else next(iter(labels([given]).items()))


def seconds(option: str, given: str | None) -> float | None:
    """A duration: seconds, or such as ``90d``."""
    if given is None:
        return None
    try:
        value = parse_seconds(given)
        number = float(value) if isinstance(value, str | float) else float("nan")
    except ValueError:
        number = float("nan")
    if not 0 <= number <= 36_500 * 86_400:  # NaN fails it as well
        raise InvalidField(option, f"{given!r} is not a duration", expected=DURATION_EXPECTED)
    return number


def running(option: str, given: str | None) -> int | None:
    """How many jobs may run at a time; the service says which numbers there are."""
    if given is None:
        return None
    if not given.isascii() or not given.isdigit():
        raise InvalidField(option, f"{given!r} is not a number", expected=RUNNING_EXPECTED)
    return int(given)


def duration(option: str, given: str) -> timedelta:
    """A duration that must be there."""
    return timedelta(seconds=seconds(option, given) or 0.0)


def moment(option: str, given: str | None) -> datetime | None:
    """A time: ISO 8601, UTC unless it says otherwise, or how long ago, such as ``2h``."""
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - duration(option, given)
    except InvalidField:
        expected = "a time such as 2026-04-30T14:32 (UTC), or how long ago, such as 2h or 90d"
        raise InvalidField(option, f"{given!r} is not a time", expected=expected) from None


def reason(given: str | None) -> Reason | None:
    """A reason by our name or the older engine's."""
    if given is None:
        return None
    found = parse_reason(given)
    if found is None:
        raise InvalidField("reason", f"{given!r} is no reason", expected=", ".join(Reason))
    return found


def content(given: str) -> bytes:
    """A payload from the command line: itself, ``@file``, or ``-`` for stdin; bytes exactly as they came."""
    if given == "-":
        return sys.stdin.buffer.read()
    if given.startswith("@"):
        return file(given[1:])
    return os.fsencode(given)


def file(name: str) -> bytes:
    """The bytes of a file."""
    try:
        return Path(name).read_bytes()
    except OSError as error:
        usage(f"{name}: {error.strerror}")


def given(value: Sequence[str] | None) -> Sequence[str] | Unset:
    """A list option: UNSET when it was not used."""
    return UNSET if not value else list(value)
