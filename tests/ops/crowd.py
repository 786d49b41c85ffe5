"""Many dead jobs at once, as whole as those that a worker buried: row, ledger line, total."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import insert
from uuid_utils.compat import uuid7

from redrive import Redrive
from redrive.store.sql.tables import job_ledger, jobs_dlq, queue_totals

SLOT = 7


def die(app: Redrive, number: int, *, queue: str = "q", payload: bytes = b"{}", **but: Any) -> list[UUID]:
    """``number`` jobs that died of a ValueError, the first of them first."""
    db: Any = app.store._db  # type: ignore[attr-defined]
    start = app.store.now() - timedelta(microseconds=number)
    ids = [uuid7() for _ in range(number)]
    common: dict[str, Any] = {"queue": queue, "type": "t", "started_at": start, "attempt": 1, "life": 1, "revision": 1,
                              "spent": 1}  # fmt: skip
    rows = [
        {
            **common, "id": job, "due_at": start, "created_at": start, "updated_at": start, "life_started_at": start,
            "content_type": "application/json", "payload": payload, "reason": "fatal", "version": 3,
            "failed_at": start + timedelta(microseconds=n), "error_type": "builtins.ValueError", "error_message": "no",
            **but,
        }
        for n, job in enumerate(ids)
    ]  # fmt: skip
    lines = [
        {**common, "job_id": row["id"], "kind": "failed", "ended_at": row["failed_at"], "reason": "fatal",
         "error_type": "builtins.ValueError", "error_message": "no"}
        for row in rows
    ]  # fmt: skip
    total = db.insert(queue_totals)

    def work(connection: Any) -> None:
        connection.execute(insert(jobs_dlq), rows)
        connection.execute(insert(job_ledger), lines)
        added = {"failed": queue_totals.c.failed + total.excluded.failed}
        counted = total.values(queue=queue, shard=SLOT, failed=number)
        connection.execute(counted.on_conflict_do_update(index_elements=["queue", "shard"], set_=added))

    db.write(work)
    return ids
