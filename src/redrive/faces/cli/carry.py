"""Carrying an operation out in the command itself, or following whoever does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, BinaryIO

import typer

from redrive.domain.operations import Operation, OperationState, Progress
from redrive.ops.operations import Runner

from .common import DONE, REFUSED, Session, usage
from .output import Counting, as_json, plain, remark, say

Rate = Annotated[float | None, typer.Option("--rate", help="Rows per second at most.")]
Canary = Annotated[int | None, typer.Option("--canary", help="So many first, then 10, 100 ..., if they do well.")]
StopAt = Annotated[
    float | None, typer.Option("--stop-at", metavar="SHARE", help="Halt when this share fails again, such as 0.1.")
]
Hold = Annotated[str | None, typer.Option("--hold", help="None starts before this long: time to take it back.")]
Detach = Annotated[bool, typer.Option("--detach", help="Leave it to a worker.")]
Export = Annotated[
    str | None, typer.Option("--export", metavar="FILE", help="Of a purge: write the jobs to a new file first.")
]
NoExport = Annotated[bool, typer.Option("--no-export", help="Of a purge: the evidence is not wanted.")]
LISTED = 20
"""Jobs that were left out and are listed one by one."""


@contextmanager
def exported(path: str | None) -> Iterator[BinaryIO | None]:
    """A new file for what is exported, on disk before anything is deleted; None where none is wanted."""
    if path is None:
        yield None
        return
    try:
        target = Path(path).open("xb")  # noqa: SIM115 - closed below
    except FileExistsError:
        usage(f"{path} is there already: it is not overwritten")
    except OSError as error:
        usage(f"{path}: {error.strerror}")
    try:
        with target:
            yield _Synced(target)  # type: ignore[misc]
    finally:
        if Path(path).stat().st_size == 0:
            Path(path).unlink()  # it was refused, or there was nothing to write


class _Synced:
    """A file whose flush reaches the disk."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.write = file.write

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


def carry_out(session: Session, operation: Operation, done: str, *, detach: bool = False, json: bool = False) -> int:
    """Run or follow an operation to where it stops; say what became of it. A signal pauses it."""
    number = operation.number
    if detach:
        remark(f"operation {number} goes on in a worker: redrive ops show {number}")
        return DONE
    counting = Counting(done, operation.progress.total)
    pressed: list[int] = []
    told: list[int] = []

    def watch(progress: Progress) -> None:
        if told[-1:] != [progress.done] and progress.done:
            told[:] = [progress.done]
            counting(progress.done)

    def press(number: int, _: FrameType | None) -> None:
        pressed.append(number)

    before = {one: signal.signal(one, press) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        runner = Runner(session.store, batch=session.settings.limits.batch)
        operation = runner.run(number, stopping=lambda: bool(pressed), told=watch)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    counting.end()
    if pressed and operation.state is OperationState.RUNNING:
        operation = session.desk.operations.pause(number)
        remark(f"operation {number} is paused: redrive ops run {number} goes on, ops cancel or take-back ends it")
    return report(session, operation, done, json=json)


def report(session: Session, operation: Operation, done: str, *, json: bool = False) -> int:
    """What an operation has come to, and the exit code that follows from it."""
    progress = operation.progress
    if json:
        as_json(told(operation))
    else:
        for one in session.desk.operations.left_out(operation, limit=LISTED):
            remark(f"{one.job_id} {one.result} ({one.reason}): {one.why}")
        left = sum(progress.skipped.values())
        if left + progress.failed > LISTED:
            remark(f"... and {left + progress.failed - LISTED} more: redrive ops show {operation.number}")
        parts = [f"{progress.moved} {done}"]
        parts += [f"{progress.unchanged} unchanged"] if progress.unchanged else []
        parts += [f"{left} skipped"] if left else []
        parts += [f"{progress.failed} failed"] if progress.failed else []
        parts += [f"{operation.left} not gone through"] if operation.left else []
        say(", ".join(parts))
    if operation.state is OperationState.HALTED:
        remark(f"operation {operation.number} halted: {progress.why}; redrive ops resume or take-back")
    return DONE if operation.state is OperationState.DONE and not operation.partly else REFUSED


def told(operation: Operation) -> dict[str, Any]:
    """An operation as JSON."""
    names = ("id", "number", "plan", "action", "state", "cursor", "owner", "actor", "note", "started_at", "finished_at")
    out = {name: plain(getattr(operation, name)) for name in names}
    stored = operation.progress.as_json()
    out |= {name: stored[name] for name in ("total", "moved", "unchanged", "skipped", "failed", "why")}
    return out | {"left": operation.left, "rows_per_second": operation.pace, "eta_seconds": operation.eta}
