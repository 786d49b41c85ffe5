"""redrive doctor: what is set, what is there, what does not move; and whether the promises are kept."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from redrive.domain.errors import RedriveError
from redrive.ops.insight import ALIVE_WITHIN, Standstill
from redrive.store.port import CircuitView, ScheduleView

from .circuits import next_step
from .common import DONE, REFUSED, Json, Session, command
from .output import as_json, facts, plain, say, shown, span, table

CLOCK_TOLERANCE = 2.0


def add(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor")(doctor)


def doctor(
    session: Session,
    promises: Annotated[bool, typer.Option("--promises", help="Check the promises on the data instead.")] = False,
    json: Json = False,
) -> int:
    """Show every setting and where it comes from, the database, and what keeps work from moving.

    Exit code 1 when the database cannot be used, or with --promises when one is broken.
    """
    if promises:
        return _promises(session, json=json)
    settings = list(session.settings.effective())
    found: dict[str, Any] = {"settings": settings}
    try:
        found["database"] = dict(session.store.describe())
        state = session.store.schema_state()
        found["schema"] = {"current": state.current, "head": state.head, "ready": state.ready}
        if state.ready:
            found["workers"] = _workers(session)
        problems = _problems(session, found)
    except RedriveError as error:
        problems = [str(error)]
        found["unusable"] = True
    found["problems"] = problems
    broken = bool(found.get("unusable")) or not found["schema"]["ready"]
    if json:
        as_json(plain(found))
        return REFUSED if broken else DONE
    table(("setting", "value", "from"), [(one.name, one.shown, one.origin) for one in settings])
    for part in ("database", "schema", "workers"):
        if part in found:
            say(f"\n{part}")
            facts((f"  {name}", value) for name, value in found[part].items())
    say("\nproblems")
    for problem in problems or ["none found"]:
        say(f"  {problem}")
    return REFUSED if broken else DONE


def _workers(session: Session) -> dict[str, int]:
    workers = session.store.workers()
    alive = sum(worker.silent <= ALIVE_WITHIN for worker in workers)
    return {"alive": alive, "gone": len(workers) - alive}


def _problems(session: Session, found: dict[str, Any]) -> list[str]:
    schema = found["schema"]
    if not schema["ready"]:
        current = schema["current"] or "none"
        return [f"the schema is at {current}, this Redrive needs {schema['head']}: redrive db upgrade"]
    problems = [_stuck(stuck) for stuck in session.insight.standstills()]
    problems += [_open(circuit) for circuit in session.insight.circuits() if circuit.blocks]
    problems += [problem for schedule in session.insight.schedules() if (problem := _late(schedule)) is not None]
    difference = _clock(found["database"])
    if abs(difference) > CLOCK_TOLERANCE:
        problems.append(f"this host's clock differs from the database's by {difference:.1f} s: set it by NTP")
    return problems


def _stuck(stuck: Standstill) -> str:
    oldest = "" if stuck.oldest is None else f", the oldest for {span(stuck.oldest)}"
    return f"queue {stuck.queue}: {stuck.waiting} jobs wait{oldest}, {stuck.why}"


def _open(circuit: CircuitView) -> str:
    state = f"circuit {circuit.name}: {circuit.state} for {span(circuit.opened_for)} ({circuit.reason})"
    reset = f"redrive circuits reset {circuit.name} --reason TEXT"
    if not circuit.types:
        return f"{state}, but no type declares it any more: {reset}"
    return f"{state}, jobs of {', '.join(circuit.types)} wait; {next_step(circuit)}, or {reset}"


def _late(schedule: ScheduleView) -> str | None:
    name = schedule.name
    if schedule.overdue:
        said = f"schedule {name}: its slot of {shown(schedule.next_slot)} is {span(schedule.late)} late"
        if schedule.declared:
            return f"{said}, though a live worker declares it: its log says why"
        return f"{said}, no live worker declares it: redrive work MODULE:app, or redrive schedules pause {name}"
    if schedule.ahead > CLOCK_TOLERANCE:
        ahead = f"schedule {name}: its last slot is {span(schedule.ahead)} ahead, the clock was set back"
        return f"{ahead}; it goes on at {shown(schedule.next_slot)}"
    return None


def _clock(facts: dict[str, str]) -> float:
    """Seconds between the two clocks, as the store wrote them: ``the server's, +0.01 s from this host's``."""
    found = re.search(r"[-+]\d+(?:\.\d+)? s", facts.get("clock", ""))
    return float(found[0].removesuffix(" s")) if found else 0.0


def _promises(session: Session, *, json: bool) -> int:
    results = session.store.promises()
    broken = [result for result in results if result.number]
    if json:
        as_json([plain(result) for result in results])
        return REFUSED if broken else DONE
    for result in results:
        say(f"{'BROKEN' if result.number else 'kept':<6}  {result.promise}: {result.title}  [{result.number}]")
        for line in result.query.strip().splitlines():
            say(f"        {line}")
        if result.examples:
            say(f"        for example: {', '.join(result.examples)}")
        say()
    say(f"{len(results) - len(broken)} of {len(results)} kept")
    return REFUSED if broken else DONE
