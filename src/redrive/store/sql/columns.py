"""Column types: the places where the two databases store a value differently."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, DateTime, Dialect, Integer, LargeBinary, Text, Uuid, cast, literal
from sqlalchemy.types import TypeDecorator, TypeEngine

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 UTC, exactly (no float between)."""
    return (moment - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The UTC moment of ``micros``."""
    return EPOCH + timedelta(microseconds=micros)


def host_micros() -> int:
    """The host's clock as SQLite stores it."""
    return time.time_ns() // 1000


def second_of(micros: int) -> int:
    """The start of the second, in microseconds."""
    return micros - micros % 1_000_000


class UtcTime(TypeDecorator[datetime]):
    """A moment: ``timestamptz`` on PostgreSQL, integer microseconds since 1970 UTC on SQLite."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return BigInteger() if dialect.name == "sqlite" else DateTime(timezone=True)

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        return to_micros(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return from_micros(value) if dialect.name == "sqlite" else value.astimezone(UTC)


class Id(TypeDecorator[UUID]):
    """A UUID: native on PostgreSQL, 16 bytes on SQLite (both sort UUIDv7 by time)."""

    impl = Uuid
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return LargeBinary(16) if dialect.name == "sqlite" else Uuid()

    def process_bind_param(self, value: UUID | None, dialect: Dialect) -> Any:
        return value.bytes if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> UUID | None:
        return UUID(bytes=value) if value is not None and dialect.name == "sqlite" else value


class Json(TypeDecorator[Any]):
    """JSON kept as text on both, so that both keep it to the letter (jsonb would reorder keys and refuse NUL)."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


BigId = BigInteger().with_variant(Integer(), "sqlite")
"""A number the database counts up; SQLite does that for INTEGER only."""


def text(value: str | None) -> ColumnElement[str | None]:
    """A text value whose type the database knows although it stands in a SELECT list."""
    return cast(literal(value), Text)
