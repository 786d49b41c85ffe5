"""What the page about schedules shows is run, and its table of clock changes is computed."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from redrive.worker import crontab

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text()


def test_the_example_declares_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "schedules.md", "exec"), scope)
    app = scope["app"]
    app.worker().run(burst=True)  # type: ignore[attr-defined]
    said = {view.name: view.spec for view in app.insight().schedules()}  # type: ignore[attr-defined]
    app.close()  # type: ignore[attr-defined]
    assert said.keys() == {"report.daily.v1", "report-us", "inbox.poll.v1"}
    assert [said["report-us"][name] for name in ("cron", "tz", "catch_up", "queue")] == [
        "0 4 * * *",
        "UTC",
        "none",
        "slow",
    ]
    assert (said["inbox.poll.v1"]["every"], said["inbox.poll.v1"]["key"]) == (900, "poll")


@pytest.mark.parametrize(
    ("expression", "spring", "autumn"),
    [
        ("30 2 * * *", ["01:00"], ["00:30"]),
        ("*/30 2 * * *", [], ["00:00", "00:30", "01:00", "01:30"]),
        ("0 * * * *", [f"{n:02}:00" for n in range(23)], [f"{n:02}:00" for n in range(23)]),
    ],
)
def test_the_table_of_changes_is_true(expression: str, spring: list[str], autumn: list[str]):
    assert f"| `{expression}`" in PAGE
    rhythm, _ = crontab.cron(expression, "Europe/Berlin")
    for day, expected in ((datetime(2026, 3, 29, tzinfo=UTC), spring), (datetime(2026, 10, 25, tzinfo=UTC), autumn)):
        found, moment = [], day - timedelta(microseconds=1)
        while (slot := rhythm.after(moment)) is not None and slot < day + timedelta(hours=23):
            found.append(slot.strftime("%H:%M"))
            moment = slot
        assert found == expected
