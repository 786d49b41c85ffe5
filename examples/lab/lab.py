"""What the scenes of the demo share: the application with its stage and teller, and how they look and wait."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from examples.lab.accepted import Accepted
from examples.lab.stage import Stage
from examples.lab.story import StoryError, Teller
from redrive import JobFilter, Redrive
from redrive.domain.filters import PageRequest
from redrive.domain.job import JobHead

ACCOUNT = "acct-2026-07"
BOOKED, ENTRIES = 3, 12  # of the ledger's job: when its worker is killed, and in all
ADMIN = "admin@example.com"


@dataclass
class Lab:
    """What every scene works with."""

    stage: Stage
    teller: Teller
    app: Redrive
    accepted: list[Accepted]
    killed: int = 0  # process id of the worker that was killed

    def of_group(self, name: str) -> list[str]:
        """The ids of the jobs that were accepted for a group."""
        return [job.id for job in self.accepted if job.group == name]

    def heads(self, job_filter: JobFilter) -> list[JobHead]:
        """Every job that matches, page by page."""
        found: list[JobHead] = []
        cursor = None
        while True:
            page = self.app.insight().jobs(job_filter, PageRequest(1000, cursor))
            found += page.jobs
            if (cursor := page.next_cursor) is None:
                return found

    def wait_until_succeeded(self, jobs: list[str], progress: Callable[[], str] | None = None) -> None:
        """Wait for the success of jobs that were sent back; one that died again ends the story."""
        desk = self.app.desk(ADMIN)
        spots: dict[str, str] = {}

        def done() -> bool:
            if progress is not None:
                self.teller.progress(progress())
            spots.update((job, desk.get(job).head.spot.value) for job in jobs if spots.get(job) != "archive")
            if died := [job for job, spot in spots.items() if spot == "dlq"]:
                otherwise(f"resurrected, and dead again: {', '.join(died)}")
            return set(spots.values()) == {"archive"}

        self.stage.wait_for("the success of what was resurrected", done, lambda: str(spots))
        self.teller.progressed()


def expect(holds: bool, what_was_found: str) -> None:
    """A point of the story that must be as it is told."""
    if not holds:
        otherwise(what_was_found)


def otherwise(what_was_found: str) -> NoReturn:
    """The story goes otherwise than it is told."""
    raise StoryError(what_was_found)
