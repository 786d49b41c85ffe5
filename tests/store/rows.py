"""The tables below the port, for what no port method shows or does."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Table, delete, func, insert, select, text, update

from redrive.store.sql.store import SqlStore
from redrive.store.sql.tables import (
    job_ledger,
    job_revisions,
    jobs_archive,
    jobs_dlq,
    jobs_hot,
    metric_buckets,
    queue_totals,
)

PLACES = (jobs_hot, jobs_archive, jobs_dlq)


class Rows:
    """Reads and writes rows of one store."""

    def __init__(self, store: SqlStore) -> None:
        self._db = store._db
        self._store = store
        self.sqlite = store._db.name == "sqlite"

    def all(self, statement: Any) -> list[Any]:
        return list(self._db.read(lambda connection: connection.execute(statement).all()))

    def run(self, statement: Any, values: Any = None) -> int:
        """Execute a change; returns how many rows it touched."""
        return int(self._db.write(lambda connection: connection.execute(statement, values).rowcount))

    def sql(self, statement: str) -> None:
        """Run SQL text as it is; ``{s}`` stands for the schema with its dot."""
        prefix = "" if self.sqlite else "redrive."
        self._db.write(lambda connection: connection.execute(text(statement.replace("{s}", prefix))))

    def count(self, table: Table) -> int:
        return int(self.all(select(func.count()).select_from(table))[0][0])

    def row(self, job: UUID) -> Any:
        """The job's row, from whichever of the three places has it."""
        (found,) = [row for table in PLACES for row in self.all(select(table).where(table.c.id == job))]
        return found

    def set(self, table: Table, job: UUID, **values: Any) -> None:
        column = table.c.id if "id" in table.c and table is not job_ledger else table.c.job_id
        assert self.run(update(table).where(column == job).values(**values)) > 0

    def add(self, table: Table, values: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        rows = [dict(values)] if isinstance(values, Mapping) else [dict(value) for value in values]
        self.run(insert(table), rows)

    def remove(self, table: Table, *where: Any) -> None:
        assert self.run(delete(table).where(*where)) > 0

    def earlier(self, job: UUID, column: str, seconds: float) -> None:
        """Move a time of a hot job into the past."""
        before: datetime = getattr(self.row(job), column)
        self.set(jobs_hot, job, **{column: before - timedelta(seconds=seconds)})

    def silent(self, job: UUID, seconds: float = 3600) -> None:
        """As if the job's lease had not been renewed for so long."""
        self.earlier(job, "heartbeat_at", seconds)

    def ledger(self, job: UUID) -> list[Any]:
        return self.all(select(job_ledger).where(job_ledger.c.job_id == job).order_by(job_ledger.c.id))

    def revisions(self, job: UUID) -> list[Any]:
        kept = select(job_revisions).where(job_revisions.c.job_id == job)
        return self.all(kept.order_by(job_revisions.c.revision))

    def totals(self, queue: str) -> dict[str, int]:
        """The queue's counters, summed over their shards; those at zero are left out."""
        names = ("succeeded", "failed", "retried", "purged_succeeded", "purged_failed")
        sums = select(*(func.coalesce(func.sum(queue_totals.c[name]), 0) for name in names))
        (found,) = self.all(sums.where(queue_totals.c.queue == queue))
        return {name: int(value) for name, value in zip(names, found, strict=True) if value}

    def buckets(self) -> dict[tuple[str, str, str, str], tuple[int, int]]:
        """(queue, type, outcome, reason) to (number, milliseconds), over all seconds and shards."""
        c = metric_buckets.c
        keys = (c.queue, c.type, c.outcome, c.reason)
        found = self.all(select(*keys, func.sum(c.n), func.sum(c.ms)).group_by(*keys))
        return {tuple(row[:4]): (int(row[4]), int(row[5])) for row in found}

    def places(self) -> dict[UUID, list[str]]:
        """Every job's tables: more than one is a job in two places."""
        found: dict[UUID, list[str]] = {}
        for table in PLACES:
            for row in self.all(select(table.c.id)):
                found.setdefault(row[0], []).append(table.name)
        return found
