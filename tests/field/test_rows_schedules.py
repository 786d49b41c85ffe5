"""Field reports about periodic work: what a change of the clock does to it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from redrive import Redrive
from redrive.domain.filters import JobFilter
from redrive.domain.states import Place
from redrive.worker.outages import Outage
from redrive.worker.schedules import Scheduler

HOUR = timedelta(hours=1)


class Told:
    """A store that tells a scheduler another time. It is long past, so the database agrees that what is due is due."""

    def __init__(self, store: Any, now: datetime) -> None:
        self._store = store
        self.now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def schedule_rows(self, names: Sequence[str]) -> Any:
        return self.now, self._store.schedule_rows(names)[1]


CASES = [
    # 2026-03-29 has no 02:30 in Berlin: it is due when the clock has gone from 02:00 to 03:00.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12", 72, ["03-29T01:00", "03-30T00:30", "03-31T00:30"]),
    # 2026-10-25 has it twice: it is due the first time.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12", 72, ["10-25T00:30", "10-26T01:30", "10-27T01:30"]),
    ("0 12 29 2 *", "Europe/Berlin", "2024-02-27T12", 72, ["02-29T11:00"]),
    ("30 2 * * *", "Asia/Kolkata", "2026-03-28T12", 72, ["03-28T21:00", "03-29T21:00", "03-30T21:00"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "zone", "begin", "hours", "expected"), CASES, ids=[f"{c[1]} {c[2]}" for c in CASES]
)
def test_row_28_each_occurrence_once_across_a_change_of_the_clock(
    app: Redrive, expression: str, zone: str, begin: str, hours: int, expected: list[str]
):
    """A crontab entry ran an hour late on the day daylight saving began.

    That delays between attempts keep their length across a change is in ``tests/store/test_days.py``.
    """

    @app.cron(expression, tz=zone)
    @app.job("report.v1")
    def report() -> None: ...

    (declared,) = app._schedules.values()
    told = Told(app.store, datetime.fromisoformat(begin + ":00").replace(tzinfo=UTC))
    hands = [Scheduler(told, [declared], interval=10, alive_within=60, wake=int, outage=Outage()) for _ in range(2)]
    slots: list[str] = []
    for _ in range(hours * 2):
        for hand in hands:
            hand.tick()
        row = app.store.schedule_rows(["report.v1"])[1]["report.v1"]
        last = row.last_slot
        if last is not None and (said := last.astimezone(UTC).strftime("%m-%dT%H:%M")) not in slots:
            slots.append(said)
            assert told.now - last < HOUR / 2, "in the first round after it"
        told.now += HOUR / 2
    assert slots == expected
    jobs = app.insight().jobs(JobFilter(place=Place.HOT)).jobs
    assert sorted(job.labels["slot"][5:16] for job in jobs) == expected, "stored as UTC, each once"
