"""One database, an application on it, the worker processes that serve it, and the file of their runs."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from redrive import JobHandle, Redrive
from tests.faults.evidence import Evidence
from tests.faults.handlers import QUEUE, RUNS, Line, make, written
from tests.faults.nursery import Child, Nursery
from tests.faults.waiting import until

SETTINGS = {
    "REDRIVE_WORKER__CONCURRENCY": "4",  # and fewer threads: jobs for these come back fetched and are started later
    "REDRIVE_WORKER__THREADS": "2",
    "REDRIVE_WORKER__POLL": "0.05",
}


def patience(heartbeat: float, timeout: float) -> dict[str, str]:
    """Settings for heartbeats and leases."""
    return {
        "REDRIVE_WORKER__HEARTBEAT": str(heartbeat),
        "REDRIVE_RECOVERY__ZOMBIE_TIMEOUT": str(timeout),
        "REDRIVE_RECOVERY__FETCHED_TIMEOUT": str(timeout),
    }


@dataclass
class Scene:
    """``url`` is that of a migrated database, ``folder`` is for the outputs of the workers."""

    url: str
    nursery: Nursery
    folder: Path
    workers: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.app: Redrive = make(self.url)
        self.evidence = Evidence(self.url)
        self.runs = self.folder / "runs"

    def start(self, **settings: str) -> Child:
        """A worker process; its environment is nothing but these settings on top of ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        environ = {**kept, "REDRIVE_DATABASE_URL": self.url, RUNS: str(self.runs), **SETTINGS, **settings}
        child = self.nursery.start(environ, self.folder / f"worker-{len(self.workers)}")
        self.workers.append(child)
        return child

    def enqueue(self, kind: str, **payload: object) -> JobHandle:
        return self.app.enqueue(f"fault.{kind}.v1", payload, queue=QUEUE)

    def lines(self) -> list[Line]:
        return written(self.runs)

    def begun(self, number: int) -> list[Line]:
        """Wait until so many runs have begun."""

        def enough() -> list[Line]:
            lines = [line for line in self.lines() if line.how == "in"]
            return lines if len(lines) >= number else []

        return until(enough, why=self.outputs)

    def outputs(self) -> str:
        """What the workers have said: for the message of a failure."""
        return "\n".join(f"-- {child.pid}, ended with {child.code}\n{child.text()}" for child in self.workers)

    def promises(self) -> None:
        offences = {found.promise: found.examples for found in self.app.store.promises() if found.number}
        assert offences == {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Workers that still live are killed."""
        for child in self.workers:
            child.signal(signal.SIGKILL)
            assert child.ended.wait(30)
        self.app.close()
