"""Plans: which jobs a bulk action will touch, at which versions, fixed before anything moves.

A plan is the preview and the order at once. Its digest covers action, options, filter and every (id, version): whoever
runs it says the digest, so that what was looked at is what runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from .edits import UNSET, JobEdit, Unset
from .errors import Conflict, InvalidField
from .filters import JobFilter
from .lifecycle import Wish
from .moves import Skipped
from .states import Place, Verb

PLAN_LIFE = timedelta(hours=24)
"""How long a plan may wait to be run."""
SAMPLE = 10
"""Jobs shown of a plan."""
DIGEST_SHOWN = 12
"""Digits of a digest that people type; programs may give all of them."""
COUNTS = ("matched", "affected")


class Action(StrEnum):
    """What a plan does to its jobs."""

    RESURRECT = "resurrect"
    CANCEL = "cancel"
    ISOLATE = "isolate"
    PURGE = "purge"
    EDIT = "edit"

    @property
    def verb(self) -> Verb:
        """The move of the lifecycle."""
        return Verb(self.value)

    @property
    def places(self) -> tuple[Place, ...]:
        """Where its jobs may be; the first is meant where nothing is said."""
        match self:
            case Action.RESURRECT | Action.PURGE:
                return (Place.DLQ,)
            case Action.CANCEL | Action.ISOLATE:
                return (Place.HOT,)
            case Action.EDIT:
                return (Place.DLQ, Place.HOT)


PAST = {
    Action.RESURRECT: "resurrected",
    Action.CANCEL: "cancelled",
    Action.ISOLATE: "isolated",
    Action.PURGE: "purged",
    Action.EDIT: "edited",
}
"""What was done, in a word."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What goes with an action. ``delay`` in seconds; ``include`` names findings that shall not keep a job back."""

    tags: tuple[str, ...] | Unset = UNSET
    labels: Mapping[str, str] | Unset = UNSET
    priority: int | Unset = UNSET
    queue: str | Unset = UNSET
    type: str | Unset = UNSET
    delay: float | None = None
    drop_key: bool = False
    include: tuple[str, ...] = ()

    def check(self, action: Action) -> PlanOptions:
        """The options when each goes with the action."""
        given = self.given()
        allowed = {
            Action.RESURRECT: {"tags", "labels", "priority", "queue", "type", "delay", "drop_key", "include"},
            Action.EDIT: {"tags", "labels", "priority"},
        }.get(action, set())
        for name in given:
            if name not in allowed:
                fits = ", ".join(sorted(allowed)) or "no option"
                raise InvalidField(name, f"does not go with {action}", expected=fits)
        if action is Action.EDIT and not given:
            raise InvalidField("edit", "changes nothing", expected="tags, labels or priority")
        for name in self.include:
            if name not in INCLUDABLE:
                raise InvalidField("include", f"{name!r} cannot be included", expected=" or ".join(INCLUDABLE))
        return self

    def given(self) -> dict[str, Any]:
        """Those that are set, as JSON has them."""
        edit = {n: getattr(self, n) for n in ("tags", "labels", "priority", "queue", "type")}
        found: dict[str, Any] = {name: value for name, value in edit.items() if value is not UNSET}
        if "tags" in found:
            found["tags"] = list(found["tags"])
        if "labels" in found:
            found["labels"] = dict(found["labels"])
        if self.delay is not None:
            found["delay"] = self.delay
        if self.drop_key:
            found["drop_key"] = True
        if self.include:
            found["include"] = sorted(self.include)
        return found

    @classmethod
    def load(cls, given: Mapping[str, Any]) -> PlanOptions:
        """From what ``given`` wrote."""
        values = dict(given)
        for name in ("tags", "include"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)

    @property
    def edit(self) -> JobEdit:
        """What is changed in each job."""
        return JobEdit(
            tags=self.tags, labels=self.labels, priority=self.priority, queue=self.queue, type=self.type
        )  # fmt: skip


INCLUDABLE = (Skipped.UNREADABLE.value,)
"""Findings that a plan may include by name; the others keep the job where it is, whatever is said."""


def wish_of(action: Action, options: PlanOptions, *, hold: float | None = None) -> Wish:
    """What a batch of the plan asks. ``hold`` seconds is the least delay before a first start."""
    delay = max(options.delay or 0.0, hold or 0.0)
    resurrects = action is Action.RESURRECT
    return Wish(
        action.verb,
        options.edit,
        timedelta(seconds=delay) if resurrects and delay else None,
        options.drop_key,
        place=Place.DLQ if action is Action.PURGE else None,
        readable=resurrects and Skipped.UNREADABLE.value not in options.include,
    )


class PlanState(StrEnum):
    """What can be done with a plan: ``building`` is not complete, ``run`` has its operation, others wait for it."""

    BUILDING = "building"
    READY = "ready"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Counts:
    """``matched`` jobs are in the plan; ``affected`` of them have no finding; ``skipped`` is by finding."""

    matched: int = 0
    affected: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    sampled: Mapping[str, int] = field(default_factory=dict)
    """Findings among the first jobs only: payloads are all checked when the plan runs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan as it is stored. ``created_at`` is its cut-off: what died later is not in it."""

    id: UUID
    number: int
    action: Action
    filter: JobFilter | None
    options: PlanOptions
    state: PlanState
    counts: Counts
    digest: str | None
    actor: str
    created_at: datetime
    expires_at: datetime

    @property
    def short(self) -> str:
        """The part of the digest that people type."""
        return (self.digest or "")[:DIGEST_SHOWN]

    def check_digest(self, given: str) -> None:
        """Refuse what is not this plan's digest."""
        shown = given.strip().lower()
        if len(shown) < DIGEST_SHOWN or self.digest is None or not self.digest.startswith(shown):
            raise InvalidField(
                "digest", "is not that of this plan", expected=f"the digest that redrive plan show {self.number} says"
            )


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One job of a plan. ``ordinal`` counts from 1, in the order in which they move."""

    ordinal: int
    job_id: UUID
    version: int


class Digest:
    """The digest of a plan, fed with its items in their order."""

    def __init__(self, action: Action, options: PlanOptions, filtered: Mapping[str, Any] | None) -> None:
        head = {"action": action.value, "options": options.given(), "filter": filtered}
        self._hash = hashlib.sha256(json.dumps(head, sort_keys=True, separators=(",", ":")).encode())

    def add(self, items: Iterable[tuple[UUID, int]]) -> None:
        """The next items."""
        for job_id, version in items:
            self._hash.update(f"\n{job_id}:{version}".encode())

    def value(self) -> str:
        """As 64 hex digits."""
        return self._hash.hexdigest()


class PlanExpired(Conflict):
    """The plan waited too long: what it previewed may be another picture by now."""

    code = "plan-expired"

    def __init__(self, number: int, expired_at: datetime) -> None:
        when = expired_at.isoformat(timespec="minutes")
        super().__init__(f"plan {number} expired at {when} and nothing was done: make it anew and look again")
