"""How a worker works. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from redrive.domain.edits import check_name
from redrive.domain.errors import ConfigError
from redrive.domain.lifecycle import shortest_lease


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """``queues`` None: those of the handlers. ``build`` names the application's release in the ledger.
    ``isolated``: how many processes for handlers with ``isolation="process"``.

    With ``stuck_limit`` runs that were given up and still go on, the worker reports degraded and, as a process, leaves.
    """

    queues: tuple[str, ...] | None = None
    async_slots: int = 100
    threads: int = 20
    isolated: int = 4
    heartbeat: float = 10.0
    zombie_timeout: float = 60.0
    fetched_timeout: float = 60.0
    poll: float = 1.0
    grace: float = 30.0
    unserved_timeout: float = 600.0
    stuck_limit: int = 20
    build: str = ""

    def __post_init__(self) -> None:
        for name in ("async_slots", "threads", "isolated", "stuck_limit"):
            if not 1 <= getattr(self, name) <= 10_000:
                raise ConfigError(f"{name} = {getattr(self, name)!r} is out of range: allowed is 1 to 10000")
        for name in ("heartbeat", "poll", "unserved_timeout"):
            if not 0 < getattr(self, name) < 1e9:
                raise ConfigError(f"{name} = {getattr(self, name)!r} is out of range: allowed is more than 0")
        if not 0 <= self.grace < 1e9:
            raise ConfigError(f"grace = {self.grace!r} is out of range: allowed is 0 or more")
        for name in ("zombie_timeout", "fetched_timeout"):
            if not shortest_lease(self.heartbeat) <= getattr(self, name) < 1e9:
                raise ConfigError(
                    f"{name} = {getattr(self, name)!r} is out of range: allowed is {shortest_lease(self.heartbeat):g}"
                    f" or more, three times the heartbeat of {self.heartbeat:g}"
                )
        if self.queues is not None:
            if not self.queues:
                raise ConfigError("queues is empty: name at least one, or leave it out")
            for queue in self.queues:
                check_name("queues", queue)
