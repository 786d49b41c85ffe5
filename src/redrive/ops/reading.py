"""One JSON object read field by field: each value checked, each refusal with its path, nothing left over unseen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Literal, TypeVar, overload
from uuid import UUID

from redrive.domain.errors import InvalidField, require_aware

T = TypeVar("T")
MISSING: Any = object()
LARGEST = 2**31 - 1


class Fields:
    """The fields of one object. ``path`` is where the object is within its line."""

    def __init__(self, value: object, prefix: str = "") -> None:
        if not isinstance(value, dict):
            raise InvalidField(prefix.rstrip(".") or "line", f"{type(value).__name__}", expected="a JSON object")
        self._values: dict[str, Any] = value
        self._prefix = prefix
        self._seen: set[str] = set()

    def path(self, name: str) -> str:
        """The name of a field from the line's top."""
        return f"{self._prefix}{name}"

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        self._seen.add(name)
        return self._values.get(name) is not None

    def finish(self) -> None:
        """Refuse what nobody asked for: a misspelt field must not be dropped silently."""
        for name in self._values:
            if name not in self._seen:
                raise InvalidField(self.path(name)[:200], "is no field of this format", expected="the exported fields")

    def checked(self, name: str, check: Callable[[str, object], T], default: T = MISSING) -> T:
        """A field as ``check`` answers it."""
        if not self.has(name):
            if default is MISSING:
                raise InvalidField(self.path(name), "is missing")
            return default
        return check(self.path(name), self._values[name])

    def string(self, name: str) -> str:
        """A text of any content and length."""

        def check(field: str, value: object) -> str:
            if not isinstance(value, str):
                raise InvalidField(field, f"{type(value).__name__}", expected="a string")
            return value

        return self.checked(name, check)

    def text(self, name: str, limit: int, *, required: bool = False) -> str | None:
        """A text that every database stores, or None where it may be missing."""
        if not required and not self.has(name):
            return None
        value = self.string(name)
        if len(value) > limit or re.search("[\x00\ud800-\udfff]", value):
            raise InvalidField(self.path(name), "is not accepted", expected=f"up to {limit} characters without NUL")
        return value

    def number(self, name: str, least: int, *, default: int = MISSING) -> int:
        """A whole number from ``least`` up."""

        def check(field: str, value: object) -> int:
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
                raise InvalidField(field, repr(value)[:60], expected=f"a whole number from {least} to {LARGEST}")
            return value

        return self.checked(name, check, default)

    def one_of(self, name: str, words: tuple[str, ...]) -> str:
        """One of some words."""
        value = self.string(name)
        if value not in words:
            raise InvalidField(self.path(name), repr(value)[:60], expected=", ".join(words))
        return value

    def uuid(self, name: str) -> UUID:
        """An id."""
        value = self.string(name)
        try:
            return UUID(value)
        except ValueError:
            raise InvalidField(self.path(name), f"{value[:60]!r} is not an id", expected="a UUID") from None

    @overload
    def time(self, name: str, *, required: Literal[True]) -> datetime: ...
    @overload
    def time(self, name: str) -> datetime | None: ...
    def time(self, name: str, *, required: bool = False) -> datetime | None:
        """A time in ISO 8601 with its zone."""
        if not required and not self.has(name):
            return None
        value = self.string(name)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidField(self.path(name), f"{value[:60]!r} is not a time", expected="ISO 8601") from None
        return require_aware(self.path(name), moment)

    def items(self, name: str) -> Iterator[Fields]:
        """The objects of a list, none when it is missing."""
        if not self.has(name):
            return
        values = self._values[name]
        if not isinstance(values, list):
            raise InvalidField(self.path(name), f"{type(values).__name__}", expected="a list")
        for number, value in enumerate(values):
            yield Fields(value, f"{self.path(name)}[{number}].")
