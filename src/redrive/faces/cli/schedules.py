"""redrive schedules: periodic jobs, when they are due, and whether they are paused."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.store.port import ScheduleView

from .common import Json, Note, Session, command
from .output import as_json, plain, remark, say, span, table

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name.")]
Version = Annotated[int | None, typer.Option("--version", help="Refuse when it is not at this version.")]
CATCH_UP = {
    "latest": "of the slots missed meanwhile the newest is enqueued",
    "none": "the slots missed meanwhile are left out",
    "all": "the slots missed meanwhile are enqueued, up to 100",
}


def add(schedules: typer.Typer) -> None:
    """Add the commands of this group."""
    command(schedules, "list")(list_schedules)
    command(schedules, "pause")(pause)
    command(schedules, "resume")(resume)


def list_schedules(session: Session, json: Json = False) -> None:
    """List schedules: paused, undeclared (no live worker has this declaration), late, or waiting for the next slot."""
    found = session.insight.schedules()
    if json:
        as_json([{"state": schedule.state, **plain(schedule)} for schedule in found])
        return
    if not found:
        remark("no schedules yet: they appear with the first worker that declares them")
        return
    table(
        ("schedule", "state", "when", "type", "last slot", "next slot", "late"),
        [
            (
                schedule.name, schedule.state, when(schedule), schedule.spec["type"], schedule.last_slot,
                schedule.next_slot, span(schedule.late or None),
            )
            for schedule in found
        ],
    )  # fmt: skip


def when(schedule: ScheduleView) -> str:
    """Its rhythm in words."""
    spec = schedule.spec
    return f"{spec['cron']} {spec['tz']}" if "cron" in spec else f"every {span(spec['every'])}"


def pause(session: Session, name: Name, version: Version = None, note: Note = None) -> None:
    """Let no slot of a schedule be enqueued. When this answers, none is any more; jobs of earlier ones go on."""
    session.desk.pause_schedule(name, version=version, note=note)
    say(f"schedule {name} is paused")


def resume(session: Session, name: Name, version: Version = None, note: Note = None) -> None:
    """Let a paused schedule go on; what it missed is caught up as its declaration says."""
    schedule = session.desk.resume_schedule(name, version=version, note=note)
    say(f"schedule {name} goes on")
    if schedule.late:
        remark(CATCH_UP[schedule.spec["catch_up"]])
