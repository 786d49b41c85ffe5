"""Filters as people write them: ``reason=zombie queue=mail failed_after=2h``, and the same words back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from redrive.config import DURATION_EXPECTED, parse_seconds
from redrive.domain.errors import InvalidField
from redrive.domain.filter_json import NAMES, dump, load
from redrive.domain.filters import JobFilter
from redrive.domain.states import Place

ALL = "all"
"""The word for a filter without a condition: nobody shall mean everything by leaving something out."""
_TIMES = ("failed_after", "failed_before", "finished_after", "finished_before")
LONGEST = 36_500 * 86_400.0


def parse_filter(text: str, *, now: datetime, place: Place = Place.DLQ) -> JobFilter:
    """The filter that ``text`` says. ``now`` pins times such as ``2h`` ago; what does not parse is refused."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidField("filter", f"cannot be read: {error}", expected="NAME=VALUE with quotes in pairs") from None
    given: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if word == ALL:
            continue
        if not sign or not value:
            raise InvalidField("filter", f"{word!r} is no condition", expected=f"NAME=VALUE of {', '.join(NAMES)}")
        if name in given:
            raise InvalidField("filter", f"{name} is given twice", expected="each condition once")
        given[name] = moment(name, value, now) if name in _TIMES else value
    if not given and ALL not in words:
        raise InvalidField("filter", "has no condition", expected=f"NAME=VALUE, or the word {ALL}")
    if ALL in words and given.keys() - {"place"}:
        raise InvalidField("filter", f"{ALL} does not go with conditions", expected="one of them")
    return load({"place": place.value} | given)


def moment(name: str, value: str, now: datetime) -> datetime:
    """A time: ISO 8601, UTC unless it says otherwise, or how long before ``now``, such as ``2h``."""
    try:
        found = datetime.fromisoformat(value)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        seconds = float(str(parse_seconds(value)))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST:
        expected = f"a time such as 2026-04-30T14:32 (UTC), or how long ago: {DURATION_EXPECTED}"
        raise InvalidField(name, f"{value!r} is not a time", expected=expected)
    return now - timedelta(seconds=seconds)


def write_filter(job_filter: JobFilter) -> str:
    """The words for a filter; times are absolute, so that they mean the same tomorrow."""
    return words(dump(job_filter)) or ALL


def words(given: Mapping[str, Any]) -> str:
    """``NAME=VALUE``, quoted where needed; the dlq goes without saying."""
    shown = {name: value for name, value in given.items() if (name, value) != ("place", Place.DLQ.value)}
    return " ".join(
        shlex.quote(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
        for name, value in shown.items()
    )
