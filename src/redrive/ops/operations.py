"""Carrying operations out, and steering them.

A ``Runner`` may live in a worker, in a server, or in the command that started the operation: the lease sees to it that
one of them moves rows, and each batch commits with its cursor, so that it does not matter when one of them is killed.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import structlog

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.errors import NotFound, Retryable, Unavailable
from redrive.domain.lifecycle import Wish
from redrive.domain.operations import (
    LEASE,
    SLICES,
    Go,
    Halt,
    Hold,
    Operation,
    OperationState,
    Outcomes,
    Progress,
    looks,
    next_step,
)
from redrive.domain.states import Verb
from redrive.store.bulk import Advanced, Left
from redrive.store.port import BATCH, Store

log = structlog.get_logger("redrive.operations")

LOOK = 0.25
"""Seconds between two looks at jobs that have to end first, or at an operation that somebody else runs."""
ROUND = 2.0
"""Seconds a worker gives to one operation before it looks after the others."""

COLLECT = 30.0
"""Seconds between two looks for plans that nobody ran in time."""

Stopping = Callable[[], bool]
Watcher = Callable[[Progress], None]


def _never() -> bool:
    return False


@dataclass(slots=True)
class _Held:
    """An operation we own. ``not_before`` is when its rate lets it move on."""

    lease: int
    not_before: float = 0.0
    renewed: float = 0.0
    single: int = 0
    """Rows to move one by one, after a batch that the database refused."""


class Runner:
    """Runs operations one batch after the other. ``lease`` is after how many silent seconds others may take over."""

    def __init__(
        self,
        store: Store,
        *,
        batch: int = BATCH,
        lease: float = LEASE,
        wait: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._batch = min(batch, BATCH)
        self._lease = lease
        self._wait = wait
        self._clock = clock
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._held: dict[UUID, _Held] = {}
        self._collected = clock()

    def run(self, number: int, *, stopping: Stopping = _never, told: Watcher | None = None) -> Operation:
        """Run an operation to its end, or follow it while somebody else does; back when it stops for any reason."""
        while True:
            operation = self._store.operation(number)
            if operation is None:
                raise NotFound("operation", number)
            if told is not None:
                told(operation.progress)
            if operation.state is not OperationState.RUNNING or stopping():
                self._release(operation.id)
                return operation
            try:
                moved = self._slice(operation, self._clock() + self._lease / 4, stopping, told)
            except Retryable as error:
                log.warning("batch-waits", operation=number, error=str(error))
                moved = None
            if moved is None:
                self._wait(LOOK)

    def round(self, stopping: Stopping = _never) -> int:
        """A turn at every running operation nobody else runs; how many rows were moved."""
        rows = 0
        if self._clock() - self._collected > COLLECT:
            self._collected = self._clock()
            self._store.prune_plans()
        running = self._store.operations(unfinished=True)
        for operation in running:
            if not stopping():
                rows += self._slice(operation, self._clock() + ROUND, stopping, None) or 0
        for gone in self._held.keys() - {operation.id for operation in running}:
            del self._held[gone]
        if stopping():
            for held in list(self._held):
                self._release(held)
        return rows

    # -- inner ---------------------------------------------------------------------------------------------------------

    def _slice(self, operation: Operation, until: float, stopping: Stopping, told: Watcher | None) -> int | None:
        """Move what may be moved until then; None when it is not ours, or nothing can be moved now."""
        held = self._held.get(operation.id)
        if held is None:
            lease = self._store.take_operation(operation.id, self.owner, lease=self._lease)
            if lease is None:
                return None
            # Whoever had it before may have moved a moment ago: one wait first, so that the rate holds over both.
            rate = operation.options.rate
            pause = max(1.0 / rate, 1.0 / SLICES) if rate else 0.0
            held = self._held[operation.id] = _Held(lease, self._clock() + pause)
        progress, rows = operation.progress, 0
        while self._clock() < until and not stopping():
            now = self._clock()
            if held.not_before > now:
                self._wait(min(held.not_before - now, LOOK))
                if held.not_before > self._clock():
                    done = self._beat(operation.id, held)
                    if not self._goes_on(operation.id, done):
                        return rows
                    continue
            found = self._store.outcomes(operation.id, progress.moved) if looks(operation.options) else Outcomes()
            step = next_step(operation.options, progress, found, batch=self._batch)
            if isinstance(step, Halt):
                self._store.halt(operation.id, held.lease, step.why)
                self._held.pop(operation.id, None)
                return rows
            if isinstance(step, Hold):
                done = self._store.advance(operation.id, held.lease, 0, keep=step.progress)
                if told is not None and done.progress is not None:
                    told(done.progress)
                return (rows or None) if self._goes_on(operation.id, done) else rows
            done = self._move(operation.id, held, step)
            held.renewed = self._clock()
            held.not_before = self._clock() + step.wait * (done.rows / step.rows if done.rows else 1.0)
            rows += done.rows
            progress = done.progress or progress
            if told is not None:
                told(progress)
            if not self._goes_on(operation.id, done):
                return rows
        return rows

    def _move(self, operation_id: UUID, held: _Held, step: Go) -> Advanced:
        """One batch. What the database refuses is gone through row by row, and the row at fault is left out."""
        try:
            rows = 1 if held.single else step.rows
            done = self._store.advance(operation_id, held.lease, rows, keep=step.progress)
        except (Unavailable, Retryable, NotFound):  # no row is at fault
            raise
        except Exception as error:
            if not held.single:
                log.warning("batch-refused", operation=str(operation_id), error=f"{type(error).__name__}: {error}")
                held.single = step.rows
                return Advanced(True, OperationState.RUNNING)
            held.single -= 1
            log.exception("row-failed", operation=str(operation_id))
            return self._store.leave_out(operation_id, held.lease, f"{type(error).__name__}: {error}")
        held.single = max(0, held.single - 1)
        return done

    def _beat(self, operation_id: UUID, held: _Held) -> Advanced:
        if self._clock() - held.renewed < min(1.0, self._lease / 4):
            return Advanced(True, OperationState.RUNNING)
        held.renewed = self._clock()
        return self._store.advance(operation_id, held.lease, 0)

    def _goes_on(self, operation_id: UUID, done: Advanced) -> bool:
        if done.ours and done.state is OperationState.RUNNING:
            return True
        self._held.pop(operation_id, None)
        return False

    def _release(self, operation_id: UUID) -> None:
        held = self._held.pop(operation_id, None)
        if held is not None:
            self._store.let_go(operation_id, held.lease)


class Operations:
    """Looking at operations and steering them, in the name of one operator."""

    def __init__(self, store: Store, actor: Actor) -> None:
        self._store = store
        self._actor = actor

    def get(self, number: int) -> Operation:
        """An operation by its number."""
        operation = self._store.operation(number)
        if operation is None:
            raise NotFound("operation", number)
        return operation

    def outcomes(self, operation: Operation) -> Outcomes | None:
        """What became of the jobs it sent back; None where it sends none."""
        if operation.action != Verb.RESURRECT.value:
            return None
        return self._store.outcomes(operation.id, operation.progress.moved)

    def left_out(self, operation: Operation, *, after: int = 0, limit: int = BATCH) -> list[Left]:
        """Jobs it did not move, with the reasons."""
        return self._store.left_out(operation.id, after=after, limit=limit)

    def pause(self, number: int, *, note: str | None = None) -> Operation:
        """No batch begins any more when this returns."""
        return self._steer(number, OperationState.PAUSED, "pause-operation", note)

    def resume(self, number: int, *, note: str | None = None) -> Operation:
        """Let it go on, wherever a runner is."""
        return self._steer(number, OperationState.RUNNING, "resume-operation", note)

    def cancel(self, number: int, *, note: str | None = None) -> Operation:
        """End it where it is; what moved stays moved."""
        return self._steer(number, OperationState.CANCELLED, "cancel-operation", note)

    def take_back(self, number: int, *, note: str | None = None) -> tuple[int, int]:
        """Cancel it where it is not over, and put back what it resurrected and nobody has started.

        The answer is how many were put back, and how many had started or changed meanwhile.
        """
        operation = self.get(number)
        if not operation.state.over:
            operation = self.cancel(number, note=note)
        draft = AuditDraft(self._actor, Verb.TAKE_BACK.value, note, operation.id)
        back = kept = 0
        after: UUID | None = None
        while ids := self._store.unstarted(operation.id, after=after, limit=BATCH):
            answers = self._store.operate(Wish(Verb.TAKE_BACK), [(job_id, None) for job_id in ids], draft)
            back += sum(answer.ok for answer in answers)
            kept += sum(not answer.ok for answer in answers)
            after = ids[-1]
        return back, kept

    def _steer(self, number: int, state: OperationState, action: str, note: str | None) -> Operation:
        return self._store.steer(self.get(number).id, state, AuditDraft(self._actor, action, note))
