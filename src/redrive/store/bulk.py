"""What the store promises about plans and operations: a part of the port (``store/port.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from redrive.domain.audit import AuditDraft
from redrive.domain.filters import Count, JobFilter
from redrive.domain.job import JobHead
from redrive.domain.operations import Operation, OperationState, Outcomes, Progress, RunOptions
from redrive.domain.plans import Action, Counts, Plan, PlanItem, PlanOptions

After = tuple[Any, ...]
"""Where a batch of a plan ended."""


@dataclass(frozen=True, slots=True)
class Filled:
    """One batch of a plan: its jobs in order, what was found about them by reason, and where it ended.

    ``after`` None: no job is left.
    """

    items: tuple[tuple[UUID, int], ...]
    found: dict[str, int]
    after: After | None


@dataclass(frozen=True, slots=True)
class Advanced:
    """One batch of an operation. ``ours`` False: somebody else has taken it over, and nothing was done."""

    ours: bool
    state: OperationState
    rows: int = 0
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """A job that an operation did not move, and why. ``result`` is ``skipped`` or ``failed``."""

    ordinal: int
    job_id: UUID
    result: str
    reason: str
    why: str


class PlanPort(Protocol):
    """Making plans, and looking at them."""

    def begin_plan(self, action: Action, job_filter: JobFilter | None, options: PlanOptions, actor: str) -> Plan:
        """A plan without jobs; its ``created_at``, by the database's clock, is the cut-off."""
        ...

    def fill_plan(self, plan: Plan, start: int, after: After | None, *, payloads: bool = False) -> Filled:
        """Add the next ``BATCH`` jobs that match, oldest first, from ordinal ``start``; one short transaction.

        ``payloads``: look for payloads that cannot be read as well, of a resurrection.
        """
        ...

    def add_to_plan(
        self, plan: Plan, start: int, targets: Sequence[tuple[UUID, int | None]], *, payloads: bool = False
    ) -> Filled:
        """Add up to ``BATCH`` jobs by id, at their present versions; those that are nowhere are counted as found."""
        ...

    def seal_plan(self, plan: Plan, digest: str, counts: Counts) -> Plan:
        """The plan is complete."""
        ...

    def plan(self, number: int) -> Plan | None:
        """A plan by its number."""
        ...

    def plans(self, *, limit: int = 100, before: int | None = None) -> list[Plan]:
        """Plans, newest first; ``before`` is the last number of the page before."""
        ...

    def plan_items(self, plan_id: UUID, *, after: int = 0, limit: int) -> list[PlanItem]:
        """Jobs of a plan in their order."""
        ...

    def plan_heads(self, plan_id: UUID, *, after: int = 0, limit: int) -> list[JobHead]:
        """The same as heads, as they are now; those that are nowhere are left out."""
        ...

    def arrived_since(self, plan: Plan) -> tuple[Count, list[UUID]]:
        """How many jobs match the plan's filter that died after its cut-off, and the first of them.

        What the plan's own operation sent back does not count.
        """
        ...

    def prune_plans(self) -> int:
        """Delete up to ``BATCH`` items of plans nobody ran in time, or whose operation is long over; how many."""
        ...


class OperationPort(Protocol):
    """Carrying plans out. An operation has one owner at a time, by a lease."""

    def start_operation(self, plan: Plan, options: RunOptions, audit: AuditDraft) -> tuple[Operation, bool]:
        """The operation of a plan, made now (True) or before. Raises ``PlanExpired`` where it waited too long."""
        ...

    def operation(self, number: int) -> Operation | None:
        """An operation by its number."""
        ...

    def operations(self, *, limit: int = 100, before: int | None = None, unfinished: bool = False) -> list[Operation]:
        """Operations, newest first."""
        ...

    def take_operation(self, operation_id: UUID, owner: str, *, lease: float) -> int | None:
        """Own a running operation whose owner was silent for ``lease`` seconds; None: it is owned, or not running."""
        ...

    def advance(self, operation_id: UUID, lease: int, rows: int, *, keep: Progress | None = None) -> Advanced:
        """Move the next ``rows`` items in one transaction, with the cursor; 0 renews the lease.

        ``keep`` says where the operation's gate and window stand. When no item is left it is done.
        """
        ...

    def leave_out(self, operation_id: UUID, lease: int, why: str) -> Advanced:
        """Pass by the next item, which cannot be moved, and keep why."""
        ...

    def let_go(self, operation_id: UUID, lease: int) -> None:
        """Give up the lease, so that somebody else need not wait for its end."""
        ...

    def halt(self, operation_id: UUID, lease: int, why: str) -> None:
        """The operation stops by itself."""
        ...

    def steer(self, operation_id: UUID, state: OperationState, audit: AuditDraft) -> Operation:
        """Pause, resume or cancel; effective between batches when this returns. Asked twice it is no error.

        Raises ``NotAllowed`` where the operation is over.
        """
        ...

    def outcomes(self, operation_id: UUID, moved: int) -> Outcomes:
        """What became of the jobs the operation sent back."""
        ...

    def unstarted(self, operation_id: UUID, *, after: UUID | None, limit: int) -> list[UUID]:
        """Jobs it sent back that no worker has started, by id."""
        ...

    def left_out(self, operation_id: UUID, *, after: int = 0, limit: int = 1000) -> list[Left]:
        """Jobs that were not moved, in the plan's order."""
        ...
