"""Operations: how a plan is carried out, batch by batch, and when it stops by itself.

Nothing here reads a clock or a database: ``next_step`` decides from what the operation and its jobs have come to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from .errors import InvalidField

WINDOW = 20
"""Ended jobs over which the share that failed is judged, while an operation moves on."""
SHARE = 0.1
"""The share that may fail where a canary is wanted and no limit is named."""
LEASE = 10.0
"""Seconds after which an operation whose owner is silent is anybody's."""
SLICES = 20
"""Steps in which one second's worth of rows is moved, so that no second has many more than its rate."""


class OperationState(StrEnum):
    """What an operation is doing. ``halted`` stopped by itself; like ``paused`` it can be resumed."""

    RUNNING = "running"
    PAUSED = "paused"
    HALTED = "halted"
    CANCELLED = "cancelled"
    DONE = "done"

    @property
    def over(self) -> bool:
        """Whether it will move nothing any more."""
        return self in (OperationState.CANCELLED, OperationState.DONE)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a plan.

    ``rate`` is rows per second. ``canary`` moves that many first and waits for the end of their first attempt, then
    10, then ten times as many. ``stop_at`` is the share of failures (0 to 1) at which it halts. ``hold`` is seconds
    before the first start: until then everything can be taken back.
    """

    rate: float | None = None
    canary: int | None = None
    stop_at: float | None = None
    hold: float | None = None

    def check(self) -> RunOptions:
        """The options when they are in their range."""
        for name, lowest, highest in (("rate", 0.01, 1e6), ("hold", 0.0, 30 * 86_400.0), ("stop_at", 0.0, 1.0)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and lowest <= value <= highest):
                raise InvalidField(name, f"{value!r}", expected=f"a number from {lowest:g} to {highest:g}")
        if self.canary is not None and (type(self.canary) is not int or not 1 <= self.canary <= 1000):
            raise InvalidField("canary", f"{self.canary!r}", expected="a whole number from 1 to 1000")
        return self

    @property
    def limit(self) -> float | None:
        """The share of failures at which it halts; None: it does not look."""
        return SHARE if self.stop_at is None and self.canary is not None else self.stop_at


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What became of the jobs an operation moved.

    ``waiting`` have not ended a first attempt, ``retrying`` failed one and will be tried again, ``moved_on`` were
    resurrected again or purged since, by somebody else.
    """

    waiting: int = 0
    retrying: int = 0
    succeeded: int = 0
    died_again: int = 0
    moved_on: int = 0

    @property
    def ended(self) -> int:
        """Whose first attempt has ended."""
        return self.retrying + self.succeeded + self.died_again

    @property
    def failing(self) -> int:
        """Who failed."""
        return self.retrying + self.died_again


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an operation is. ``skipped`` by reason; ``failed`` could not be moved for a reason of the database."""

    total: int
    moved: int = 0
    unchanged: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    failed: int = 0
    gate: int = 0
    """Moved jobs that have to end their first attempt before more are moved; the next gate is ten times as far."""
    seen: tuple[int, int] = (0, 0)
    """(ended, failing) where the window of judging began."""
    why: str = ""
    """Why it halted."""

    @property
    def done(self) -> int:
        """Rows gone through."""
        return self.moved + self.unchanged + sum(self.skipped.values()) + self.failed

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "total": self.total, "moved": self.moved, "unchanged": self.unchanged, "skipped": dict(self.skipped),
            "failed": self.failed, "gate": self.gate, "seen": list(self.seen), "why": self.why,
        }  # fmt: skip

    @classmethod
    def load(cls, stored: Mapping[str, Any]) -> Progress:
        """From what ``as_json`` wrote."""
        return cls(**(dict(stored) | {"seen": tuple(stored["seen"])}))

    def plus(self, *, moved: int, unchanged: int, skipped: Mapping[str, int], failed: int) -> Progress:
        """After one more batch."""
        names = {**self.skipped, **skipped}
        sums = {name: self.skipped.get(name, 0) + skipped.get(name, 0) for name in names}
        return replace(
            self, moved=self.moved + moved, unchanged=self.unchanged + unchanged, skipped=sums,
            failed=self.failed + failed,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as it is stored. ``cursor`` is the ordinal of the last plan item that was gone through."""

    id: UUID
    number: int
    plan_id: UUID
    plan: int
    action: str
    state: OperationState
    cursor: int
    options: RunOptions
    progress: Progress
    owner: str | None
    actor: str
    started_at: datetime
    finished_at: datetime | None
    note: str | None = None
    pace: float | None = None
    """Rows per second since it was last taken up."""

    @property
    def left(self) -> int:
        """Rows not gone through yet."""
        return max(0, self.progress.total - self.progress.done)

    @property
    def eta(self) -> float | None:
        """Seconds until it is through, at the present pace; None when nothing can be said."""
        return self.left / self.pace if self.pace and self.state is OperationState.RUNNING else None

    @property
    def partly(self) -> bool:
        """Whether some of its rows were not moved."""
        return bool(self.progress.skipped or self.progress.failed)


@dataclass(frozen=True, slots=True)
class Go:
    """Move up to so many rows, then wait so many seconds; the progress to keep with it."""

    rows: int
    wait: float = 0.0
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Move nothing now: jobs that were moved have to end first."""

    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop by itself."""

    why: str


Step = Go | Hold | Halt


def looks(options: RunOptions) -> bool:
    """Whether the next step depends on what became of the jobs."""
    return options.limit is not None


def next_step(options: RunOptions, progress: Progress, outcomes: Outcomes, *, batch: int) -> Step:
    """What to do next. ``outcomes`` is looked at only where ``looks`` says so."""
    rows, wait = batch, 0.0
    if options.rate is not None:
        rows = max(1, min(batch, math.floor(options.rate / SLICES)))
        wait = rows / options.rate
    limit = options.limit
    if limit is None:
        return Go(rows, wait)
    ended, failing = outcomes.ended - progress.seen[0], outcomes.failing - progress.seen[1]
    gated = options.canary is not None and progress.gate > 0 and progress.moved >= progress.gate
    through = gated and outcomes.waiting == 0
    if (ended >= WINDOW or through) and ended > 0:
        if failing / ended > limit:
            return Halt(f"{failing} of {ended} jobs failed, and the limit is {limit:.0%}")
        progress = replace(progress, seen=(outcomes.ended, outcomes.failing))
    if options.canary is None:
        return Go(rows, wait, progress)
    if progress.gate == 0:
        progress = replace(progress, gate=progress.moved + options.canary)
    elif gated and not through:
        return Hold(progress)
    elif gated:
        progress = replace(progress, gate=progress.moved + max(10, 10 ** len(str(progress.moved))))
    return Go(min(rows, progress.gate - progress.moved), wait, progress)
