"""Dead for thirty days, and resurrected: the new life has all its attempts and all its time, the old one stays told."""

import asyncio
import contextlib
from datetime import timedelta

from redrive import Place, Reason, Redrive, RetryPolicy
from tests.faults.evidence import Evidence

DAYS = 30
TIMES = {
    "jobs_dlq": ("failed_at", "created_at", "updated_at", "life_started_at", "due_at", "started_at"),
    "job_ledger": ("started_at", "ended_at"),
    "incidents": ("first_seen", "last_seen"),
}


def age(url: str) -> None:
    """Let thirty days pass for what is in the database."""
    moved = (
        "{column} - interval '30 days'" if url.startswith("postgres") else f"{{column}} - {DAYS * 86400 * 1_000_000}"
    )
    for table, columns in TIMES.items():
        changes = ", ".join(f"{column} = {moved.format(column=column)}" for column in columns)
        assert Evidence(url).change(f"UPDATE {{s}}{table} SET {changes}") > 0


def test_dead_for_thirty_days_then_three_full_attempts(database_url: str):
    runs: list[tuple[int, int]] = []
    app = Redrive(database_url, worker={"poll": 0.02})
    policy = RetryPolicy(max_attempts=3, base=0, jitter=0, max_age=timedelta(hours=24))

    @app.job("report.render.v1", retry=policy)
    async def render(page: int) -> None:
        runs.append((page, len(runs) + 1))
        raise ConnectionError(f"the printer is away, time {len(runs)}")

    def drain() -> None:
        asyncio.run(app.worker().serve(asyncio.Event(), burst=True))

    with contextlib.closing(app):
        desk = app.desk("operator")
        job = render.enqueue(page=7)
        drain()
        assert len(runs) == 3
        age(database_url)
        first = desk.get(job.id)
        assert app.store.now() - first.head.created_at > timedelta(days=DAYS)

        assert desk.resurrect(job.id, note="the printer is back").ok
        again = desk.get(job.id)
        assert (again.head.attempt, again.head.spent, again.head.life) == (0, 0, 2)
        drain()

        assert len(runs) == 6, "three full attempts"
        second = desk.get(job.id)
        assert (second.head.place, second.head.reason) == (Place.DLQ, Reason.RETRIES_EXHAUSTED)
        assert second.head.failed_at is not None
        assert app.store.now() - second.head.failed_at < timedelta(minutes=5)
        assert second.ledger[:3] == first.ledger, "what was known of the first life is untouched"
        assert [(line.life, line.attempt, line.kind) for line in second.ledger[3:]] == [
            (2, 1, "failed"),
            (2, 2, "failed"),
            (2, 3, "failed"),
        ]
        assert [line.error_message for line in second.ledger] == [
            f"the printer is away, time {number}" for number in range(1, 7)
        ]
        assert second.payload == first.payload
        assert (second.head.created_at, second.head.created_by) == (first.head.created_at, first.head.created_by)
        assert {found.promise: found.examples for found in app.store.promises() if found.number} == {}
