"""redrive schedules, and what the doctor says of them."""

import json
import re
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from redrive.store.sql.tables_later import schedules
from tests.cli.command import run


def declare(app: Any) -> None:
    """Two schedules, put in force by a worker that has ended since."""
    report = app.job("report.v1")(nothing)
    app.cron("0 3 * * *", tz="Europe/Berlin", name="nightly", catch_up="none")(report)
    app.every(timedelta(minutes=90), name="often")(report)
    app.worker().run(burst=True)


def nothing() -> None: ...


def late(app: Any, name: str, ago: timedelta) -> None:
    moved = update(schedules).where(schedules.c.name == name).values(next_slot=app.store.now() - ago)
    app.store._db.write(lambda connection: connection.execute(moved))


def test_list_pause_and_resume(app):
    assert run("schedules", "list").said.startswith("no schedules yet")
    assert json.loads(run("schedules", "list", "--json").text) == []
    declare(app)
    listed = run("schedules", "list").text.splitlines()
    assert listed[0].split() == ["schedule", "state", "when", "type", "last", "slot", "next", "slot", "late"]
    assert listed[1].startswith("nightly   undeclared  0 3 * * * Europe/Berlin  report.v1  -          ")
    assert listed[2].startswith("often     undeclared  every 1 h 30 min         report.v1  -          ")

    late(app, "nightly", timedelta(days=7))
    late(app, "often", timedelta(hours=-1))
    ran = run("schedules", "pause", "nightly", "--note", "holidays", "--version", "1", "--actor", "ann")
    assert (ran.code, ran.text) == (0, "schedule nightly is paused\n")
    nightly, often = json.loads(run("schedules", "list", "--json").text)
    assert (nightly["state"], nightly["paused"], nightly["version"]) == ("paused", True, 2)
    assert nightly["spec"]["cron"] == "0 3 * * *"
    assert (often["spec"]["every"], often["late"]) == (5400, 0.0)
    assert "holidays" in run("audit", "list", "--target", "schedule nightly", "--by", "ann").text

    stale = run("schedules", "resume", "nightly", "--version", "1")
    assert (stale.code, "at version 2, not 1" in stale.said) == (1, True)
    ran = run("schedules", "resume", "nightly")
    assert (ran.code, ran.text) == (0, "schedule nightly goes on\n")
    assert ran.said == "the slots missed meanwhile are left out\n"
    assert run("schedules", "resume", "often").said == "", "nothing was missed"
    for wrong, said in (("other", "no schedule other"), ("no spaces", "name")):
        ran = run("schedules", "pause", wrong)
        assert (ran.code, said in ran.said) == (1, True)
    assert run("schedules", "pause").code == 2


def test_the_doctor_names_schedules_that_do_not_move(app):
    declare(app)

    def problems() -> list[str]:
        return [one for one in json.loads(run("doctor", "--json").text)["problems"] if "schedule" in one]

    assert problems() == []
    late(app, "nightly", timedelta(hours=3))
    (problem,) = problems()
    assert "schedule nightly: its slot of " in problem
    hint = "no live worker declares it: redrive work MODULE:app, or redrive schedules pause nightly"
    assert re.search(rf" is 3 h( \d+ s)? late, {hint}$", problem)
    run("schedules", "pause", "nightly")
    assert problems() == [], "somebody has seen to it"
    ahead = update(schedules).values(last_slot=app.store.now() + timedelta(hours=2, seconds=30))
    app.store._db.write(lambda connection: connection.execute(ahead.where(schedules.c.name == "often")))
    (problem,) = problems()
    assert re.match(r"schedule often: its last slot is 2 h.* ahead, the clock was set back; it goes on at 20", problem)
