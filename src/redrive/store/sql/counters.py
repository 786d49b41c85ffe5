"""Counting what a batch did, and adding it up: totals, then buckets, then incidents, each one sorted upsert.

That order is the same in every transaction and comes after the job rows: with another order two workers that share a
shard can wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sqlalchemy import Connection, bindparam, update

from redrive.domain.failures import FAILURES, Reason

from .dialect import Dialect
from .tables import incidents, metric_buckets, queue_totals


@dataclass(slots=True)
class Totals:
    """Additions to one queue's totals; resurrections subtract from ``failed``."""

    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    purged_succeeded: int = 0
    purged_failed: int = 0


@dataclass(slots=True)
class Death:
    """Deaths of one incident in a batch."""

    title: str
    type: str
    deaths: int = 0


@dataclass(slots=True)
class Tally:
    """What one transaction did, by queue, by bucket and by incident."""

    totals: dict[str, Totals] = field(default_factory=lambda: defaultdict(Totals))
    buckets: dict[tuple[str, str, str, str], tuple[int, int]] = field(default_factory=dict)
    deaths: dict[str, Death] = field(default_factory=dict)

    def succeeded(self, queue: str, type_: str, ms: int) -> None:
        """A job was archived."""
        self.totals[queue].succeeded += 1
        self._bucket(queue, type_, "succeeded", "", ms)

    def skipped(self, queue: str, type_: str, ms: int) -> None:
        """A job was archived without a run. It is among the archived of its queue, and not among the succeeded runs."""
        self.totals[queue].succeeded += 1
        self._bucket(queue, type_, "skipped", "", ms)

    def late(self, queue: str, type_: str, kind: str, ms: int) -> None:
        """An end came too late and changed nothing; ``kind`` is that of its line in the ledger."""
        self._bucket(queue, type_, kind, "", ms)

    def retried(self, queue: str) -> None:
        """A job will be tried again."""
        self.totals[queue].retried += 1

    def buried(self, queue: str, type_: str, reason: Reason, ms: int, incident: str | None, title: str) -> None:
        """A job died, or was taken out of the way."""
        if reason in FAILURES:
            self.totals[queue].failed += 1
            self._bucket(queue, type_, "failed", reason.value, ms)
            if incident is not None:
                self.deaths.setdefault(incident, Death(title, type_)).deaths += 1
        else:
            self._bucket(queue, type_, reason.value, reason.value, ms)

    def _bucket(self, queue: str, type_: str, outcome: str, reason: str, ms: int) -> None:
        key = (queue, type_, outcome, reason)
        n, total = self.buckets.get(key, (0, 0))
        self.buckets[key] = (n + 1, total + ms)


def add_up(db: Dialect, connection: Connection, tally: Tally, slot: int) -> None:
    """Add the tally to the counters. Call it last in a transaction, before the audit."""
    if tally.totals:
        insert = db.insert(queue_totals)
        changes = {
            name: queue_totals.c[name] + insert.excluded[name]
            for name in ("succeeded", "failed", "retried", "purged_succeeded", "purged_failed")
        }
        connection.execute(
            insert.on_conflict_do_update(index_elements=["queue", "shard"], set_=changes),
            [
                {
                    "queue": queue,
                    "shard": slot,
                    "succeeded": numbers.succeeded,
                    "failed": numbers.failed,
                    "retried": numbers.retried,
                    "purged_succeeded": numbers.purged_succeeded,
                    "purged_failed": numbers.purged_failed,
                }
                for queue, numbers in sorted(tally.totals.items())
            ],
        )
    if tally.buckets:
        insert = db.insert(metric_buckets).values(
            at=db.this_second(),
            queue=bindparam("queue"),
            type=bindparam("type"),
            outcome=bindparam("outcome"),
            reason=bindparam("reason"),
            shard=bindparam("shard"),
            n=bindparam("n"),
            ms=bindparam("ms"),
        )
        connection.execute(
            insert.on_conflict_do_update(
                index_elements=["at", "queue", "type", "outcome", "reason", "shard"],
                set_={"n": metric_buckets.c.n + insert.excluded.n, "ms": metric_buckets.c.ms + insert.excluded.ms},
            ),
            [
                {"queue": q, "type": t, "outcome": o, "reason": r, "shard": slot, "n": n, "ms": ms}
                for (q, t, o, r), (n, ms) in sorted(tally.buckets.items())
            ],
        )
    if tally.deaths:
        _count_deaths(db, connection, tally)


def _count_deaths(db: Dialect, connection: Connection, tally: Tally) -> None:
    insert = db.insert(incidents).values(
        id=bindparam("id"),
        title=bindparam("title"),
        type=bindparam("type"),
        deaths=bindparam("deaths"),
        first_seen=db.now(),
        last_seen=db.now(),
    )
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["id"],
            set_={
                "deaths": incidents.c.deaths + insert.excluded.deaths,
                "last_seen": insert.excluded.last_seen,
                "version": incidents.c.version + 1,
            },
        ),
        [
            {"id": incident, "title": death.title, "type": death.type, "deaths": death.deaths}
            for incident, death in sorted(tally.deaths.items())
        ],
    )
    # Numbered in a second step: a number drawn by the upsert itself would be used up at every repeated death.
    connection.execute(
        update(incidents)
        .where(incidents.c.id == bindparam("incident"), incidents.c.number.is_(None))
        .values(number=db.numbering(incidents.c.number)),
        [{"incident": incident} for incident in sorted(tally.deaths)],
    )
