"""What the demo holds of the work it handed in: the id of each accepted job and the SHA-256 of its payload.

Nobody but who handed the work in can prove that none of it is missing and that no byte was changed. So these are kept
outside the database, in ``accepted.ndjson``.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from examples.lab.make_jobs import FILE as JOBS
from examples.lab.story import StoryError
from redrive import Redrive

NAME = "accepted.ndjson"


@dataclass(frozen=True)
class Accepted:
    """One accepted job."""

    id: str
    sha256: str
    group: str


def hand_in(app: Redrive, folder: Path) -> tuple[list[Accepted], int]:
    """Enqueue every line of the jobs file; what was accepted, and how many lines were duplicates."""
    accepted: list[Accepted] = []
    holders: dict[str, UUID] = {}
    duplicates = 0
    with (folder / NAME).open("x", encoding="ascii") as kept:
        for job in _jobs():
            payload = job["payload"].encode()
            key: str | None = job.get("key")
            options: Any = {name: job[name] for name in ("queue", "priority", "tags", "labels") if name in job}
            handle = app.enqueue_raw(job["type"], payload, idempotency_key=key, created_by="lab", **options)
            if handle.duplicate:
                if key is None or holders.get(key) != handle.id:
                    raise StoryError(f"key {key}: answered with {handle.id}, which does not hold it")
                duplicates += 1
                continue
            one = Accepted(str(handle.id), hashlib.sha256(payload).hexdigest(), job["labels"]["group"])
            kept.write(json.dumps(asdict(one)) + "\n")
            accepted.append(one)
            if key is not None:
                holders[key] = handle.id
    return accepted, duplicates


def read(folder: Path) -> list[Accepted]:
    """What was accepted, from the file."""
    with (folder / NAME).open(encoding="ascii") as kept:
        return [Accepted(**json.loads(line)) for line in kept]


def _jobs() -> Iterator[dict[str, Any]]:
    with JOBS.open(encoding="ascii") as file:
        for line in file:
            yield json.loads(line)
