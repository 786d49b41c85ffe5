"""Filters written down: as JSON in a plan, and read back to the same filter or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from .errors import InvalidField, require_aware
from .failures import Reason, parse_reason
from .filters import JobFilter
from .states import HotState, Place

NAMES = tuple(item.name for item in fields(JobFilter))


def dump(job_filter: JobFilter) -> dict[str, Any]:
    """The filter as JSON: what is set, times with their zone."""
    out: dict[str, Any] = {}
    plain = JobFilter(place=job_filter.place)
    for name in NAMES:
        value = getattr(job_filter, name)
        if name != "place" and value == getattr(plain, name):
            continue
        out[name] = _plain(value)
    return out


def _plain(value: Any) -> Any:
    match value:
        case StrEnum():
            return value.value
        case datetime():
            return value.isoformat(timespec="microseconds")
        case UUID():
            return str(value)
        case tuple():
            return "=".join(value)
        case _:
            return value


def load(given: Mapping[str, Any]) -> JobFilter:
    """The filter that was written. What is unknown or does not parse is refused, never left out."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in NAMES:
            raise InvalidField("filter", f"{name!r} is no condition", expected=", ".join(NAMES))
        reader: Callable[[str, Any], Any] = _READ.get(name, _text)
        values[name] = reader(name, value)
    return JobFilter(**values).check()


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidField(name, f"{value!r} is not accepted", expected="text")
    return value


def _label(name: str, value: Any) -> tuple[str, str]:
    key, sign, text = _text(name, value).partition("=")
    if not key or not sign:
        raise InvalidField(name, f"{value!r} is no label", expected="NAME=VALUE")
    return key, text


def _moment(name: str, value: Any) -> datetime:
    if isinstance(value, datetime):
        return require_aware(name, value)
    try:
        return require_aware(name, datetime.fromisoformat(_text(name, value)))
    except ValueError:
        raise InvalidField(name, f"{value!r} is not a time", expected="a time with a zone") from None


def _reason(name: str, value: Any) -> Reason:
    found = parse_reason(_text(name, value))
    if found is None:
        raise InvalidField(name, f"{value!r} is no reason", expected=", ".join(Reason))
    return found


def _number(name: str, value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidField(name, f"{value!r} is no number", expected="a whole number")
    return int(text)


def _yes(name: str, value: Any) -> bool:
    found = {True: True, False: False, "true": True, "false": False}.get(value if isinstance(value, bool | str) else "")
    if found is None:
        raise InvalidField(name, f"{value!r} is not accepted", expected="true or false")
    return found


def _uuid(name: str, value: Any) -> UUID:
    try:
        return UUID(_text(name, value))
    except ValueError:
        raise InvalidField(name, f"{value!r} is not an id", expected="a UUID") from None


def _word(kind: type[StrEnum]) -> Callable[[str, Any], StrEnum]:
    def read(name: str, value: Any) -> StrEnum:
        try:
            return kind(_text(name, value))
        except ValueError:
            raise InvalidField(name, f"{value!r} is not one", expected=", ".join(kind)) from None

    return read


_READ: dict[str, Callable[[str, Any], Any]] = {
    "place": _word(Place),
    "state": _word(HotState),
    "reason": _reason,
    "label": _label,
    "operation": _uuid,
    "life_min": _number,
    "cancelled": _yes,
    **dict.fromkeys(("failed_after", "failed_before", "finished_after", "finished_before"), _moment),
}
