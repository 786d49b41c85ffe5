"""How every face asks for a list of jobs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from .errors import InvalidField, require_aware
from .failures import Reason
from .states import HotState, Place

PAGE_DEFAULT, PAGE_MAX = 50, 1000
COUNT_CAP = 10_000
"""Filtered counts stop here and are marked as capped."""


class Sort(StrEnum):
    """What a list is ordered by; newest first, due_at soonest first."""

    FAILED_AT = "failed_at"
    DUE_AT = "due_at"
    FINISHED_AT = "finished_at"
    CREATED_AT = "created_at"


DEFAULT_SORT = {Place.HOT: Sort.CREATED_AT, Place.ARCHIVE: Sort.FINISHED_AT, Place.DLQ: Sort.FAILED_AT}
SORTS = {
    Place.HOT: (Sort.DUE_AT, Sort.CREATED_AT),
    Place.ARCHIVE: (Sort.FINISHED_AT, Sort.CREATED_AT),
    Place.DLQ: (Sort.FAILED_AT, Sort.CREATED_AT),
}
"""The orders a place can be listed in: each has an index or is refused."""


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs. All given fields must hold. ``q`` (dlq only): words in id, type, error type or message.

    In the dlq, cancelled jobs are left out unless a reason is asked for or ``cancelled`` is set.
    """

    place: Place = Place.DLQ
    queue: str | None = None
    type: str | None = None
    state: HotState | None = None
    reason: Reason | None = None
    incident: str | None = None
    tag: str | None = None
    label: tuple[str, str] | None = None
    key: str | None = None
    operation: UUID | None = None
    life_min: int | None = None
    q: str | None = None
    failed_after: datetime | None = None
    failed_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None
    cancelled: bool = False

    def check(self) -> JobFilter:
        """The filter itself when every field goes with its place; a filter is refused, never widened."""
        fits = {
            "state": Place.HOT,
            "reason": Place.DLQ,
            "incident": Place.DLQ,
            "tag": Place.DLQ,
            "label": Place.DLQ,
            "q": Place.DLQ,
            "failed_after": Place.DLQ,
            "failed_before": Place.DLQ,
            "finished_after": Place.ARCHIVE,
            "finished_before": Place.ARCHIVE,
        }
        for item in fields(self):
            if getattr(self, item.name) is not None and item.name in fits and fits[item.name] is not self.place:
                raise InvalidField(
                    item.name, f"does not go with place {self.place}", expected=f"place {fits[item.name]}"
                )
            value = getattr(self, item.name)
            if isinstance(value, datetime):
                require_aware(item.name, value)
        return self


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page: ``cursor`` is the previous page's ``next_cursor``."""

    limit: int = PAGE_DEFAULT
    cursor: str | None = None
    sort: Sort | None = None

    def __post_init__(self) -> None:
        if type(self.limit) is not int or not 1 <= self.limit <= PAGE_MAX:
            raise InvalidField("limit", f"{self.limit!r}", expected=f"a whole number from 1 to {PAGE_MAX}")


@dataclass(frozen=True, slots=True)
class Count:
    """How many; ``capped`` when counting stopped there."""

    number: int
    capped: bool = False
