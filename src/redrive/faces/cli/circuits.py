"""redrive circuits: the breakers of dependencies, which of them keep jobs off, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.store.port import CircuitView

from .common import Json, Session, command
from .output import as_json, plain, remark, say, span, table

Name = Annotated[str, typer.Argument(metavar="CIRCUIT", help="The circuit's name.")]
Why = Annotated[str, typer.Option("--reason", help="Why, for the audit.")]


def add(circuits: typer.Typer) -> None:
    """Add the commands of this group."""
    command(circuits, "list")(list_circuits)
    command(circuits, "reset")(reset)


def list_circuits(session: Session, json: Json = False) -> None:
    """List circuits: closed, open (their jobs wait, unchanged), or half-open (a few runs try the dependency)."""
    found = session.insight.circuits()
    if json:
        as_json([plain(circuit) for circuit in found])
        return
    if not found:
        remark("no circuits yet: they appear with the first worker whose handlers declare a breaker")
        return
    table(
        ("circuit", "state", "for", "next", "failures", "types", "why"),
        [
            (
                circuit.name, circuit.state, span(circuit.opened_for), next_step(circuit), circuit.failures,
                circuit.types, circuit.reason,
            )
            for circuit in found
        ],
    )  # fmt: skip


def next_step(circuit: CircuitView) -> str | None:
    """What it does next; None for a closed one."""
    if not circuit.blocks:
        return None
    if circuit.probing:
        return f"{circuit.probing} of {circuit.breaker.get('probes', '?')} probes under way"
    return f"probes in {span(circuit.probe_in)}" if circuit.probe_in else "probes with the next job"


def reset(session: Session, name: Name, reason: Why) -> None:
    """Close a circuit: its jobs start again at once, in every worker."""
    session.desk.reset_circuit(name, note=reason)
    say(f"circuit {name} is closed")
