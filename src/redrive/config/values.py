"""Values that settings need and JSON has not: durations, and URLs that keep their password to themselves."""

from __future__ import annotations

import re
from datetime import timedelta

_PASSWORD = re.compile(r"(?<=://)([^:/?#@\s]*):(\S*)@")
_PARAMETER = re.compile(r"((?:^|[?&;\s])[^=&\s]*(?:password|passwd|secret|token)=)[^&\s;]+", re.IGNORECASE)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])")
DURATION_EXPECTED = "seconds, or a number with ms, s, m, h, d or w, such as 90d"


def mask(text: str) -> str:
    """``text`` with every password of a URL in it hidden."""
    return _PARAMETER.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def parse_seconds(value: object) -> object:
    """Seconds from a timedelta or a text such as ``90d``; anything else is left for the caller to judge."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration")
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip().lower())):
        return float(match[1]) * _UNITS[match[2]]
    return value


def parse_url(value: object) -> object:
    """A database URL as a ``SecretUrl``. The error does not repeat it: what is no URL may still hold a password."""
    if isinstance(value, SecretUrl):
        return value
    if not isinstance(value, str) or not re.match(r"(sqlite|postgres(ql)?)(\+\w+)?://", value):
        raise ValueError("not a database URL")
    return SecretUrl(value)


class SecretUrl:
    """A database URL that shows its password to nobody who does not ask with ``reveal``."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url

    def reveal(self) -> str:
        """The URL with its password, for the driver."""
        return self._url

    def __str__(self) -> str:
        return mask(self._url)

    def __repr__(self) -> str:
        return f"SecretUrl({mask(self._url)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretUrl) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)
