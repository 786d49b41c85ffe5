"""redrive queues: what is in them, and their settings."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.domain.errors import NotFound
from redrive.store.port import QueueChange, QueueInfo

from . import values
from .common import Json, Note, Session, command, usage
from .output import as_json, facts, plain, remark, say, span, table

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
Version = Annotated[int | None, typer.Option("--version", help="Refuse when it is not at this version.")]
SETTINGS = ("max_running", "rate", "zombie_timeout", "fetched_timeout", "owner")


UNLIMITED = "none"


def add(queues: typer.Typer) -> None:
    """Add the commands of this group."""
    command(queues, "list")(list_queues)
    command(queues, "show")(show)
    command(queues, "set")(set_queue)
    command(queues, "pause")(pause)
    command(queues, "resume")(resume)


def list_queues(session: Session, json: Json = False) -> None:
    """List queues with what is in them, how long the oldest pending job has waited, and what holds jobs back."""
    found = session.store.queues()
    if json:
        as_json([{**plain(queue), "held_back": queue.held_back} for queue in found])
        return
    if not found:
        remark("no queues yet: they appear with their first job")
        return
    table(
        (
            "queue", "paused", "pending", "oldest", "scheduled", "running", "max", "rate", "dead", "succeeded",
            "failed", "held back",
        ),
        [
            (
                queue.name, queue.paused, queue.pending, span(queue.oldest_pending), queue.scheduled,
                queue.fetched + queue.processing, queue.max_running, queue.rate, queue.dead, queue.succeeded_total,
                queue.failed_total, "; ".join(queue.held_back) or None,
            )
            for queue in found
        ],
    )  # fmt: skip


def show(session: Session, name: Name, json: Json = False) -> None:
    """Show one queue: its settings, what is in it, what holds jobs back."""
    queue = next((one for one in session.store.queues() if one.name == name), None)
    if queue is None:
        raise NotFound("queue", name)
    if json:
        as_json({**plain(queue), "held_back": queue.held_back})
        return
    running = f"{queue.processing}, and {queue.fetched} fetched" if queue.fetched else queue.processing
    waits = None if queue.next_start <= 0 else f"in {span(queue.next_start)}"
    facts(
        [
            *_settings(queue), ("pending", queue.pending), ("oldest pending", span(queue.oldest_pending)),
            ("blocked by a lock key", queue.blocked), ("scheduled", queue.scheduled), ("running", running),
            ("next start", waits), ("held back", "; ".join(queue.held_back) or None), ("dead", queue.dead),
            ("succeeded", queue.succeeded_total), ("failed", queue.failed_total), ("retried", queue.retried_total),
        ]
    )  # fmt: skip


def set_queue(
    session: Session,
    name: Name,
    max_running: Annotated[
        str | None,
        typer.Option("--max-running", help="Jobs that may run at a time, over all workers; none: any number."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", help="Starts per time, such as 10/s, 100/min, 5000/hour; none: unlimited.")
    ] = None,
    zombie_timeout: Annotated[
        str | None, typer.Option("--zombie-timeout", help="Give a lost running job up after this.")
    ] = None,
    fetched_timeout: Annotated[
        str | None, typer.Option("--fetched-timeout", help="The same for one not started.")
    ] = None,
    owner: Annotated[str | None, typer.Option("--owner", help="Who to ask about it.")] = None,
    clear: Annotated[list[str] | None, typer.Option("--clear", help="A setting that goes back to its default.")] = None,
    version: Version = None,
    note: Note = None,
) -> None:
    """Change settings of a queue; what is not named stays. Limits act on the next claim and end nothing that runs."""
    cleared = tuple(setting.replace("-", "_") for setting in clear or ())
    if unknown := set(cleared) - set(SETTINGS):
        usage(f"--clear {min(unknown)}: there are {', '.join(SETTINGS)}")
    cleared += tuple(name for name, value in (("max_running", max_running), ("rate", rate)) if value == UNLIMITED)
    change = QueueChange(
        max_running=None if max_running == UNLIMITED else values.running("max_running", max_running),
        rate=None if rate == UNLIMITED else rate,
        zombie_timeout=values.seconds("zombie_timeout", zombie_timeout),
        fetched_timeout=values.seconds("fetched_timeout", fetched_timeout),
        owner=owner,
        clear=cleared,
    )
    if change == QueueChange():
        usage("nothing to change: see --help for the settings")
    _show(session.desk.set_queue(name, change, version=version, note=note))


def pause(session: Session, name: Name, version: Version = None, note: Note = None) -> None:
    """Stop starts from a queue. When this answers, none happens any more; what runs goes on."""
    session.desk.pause(name, version=version, note=note)
    say(f"queue {name} is paused")


def resume(session: Session, name: Name, version: Version = None, note: Note = None) -> None:
    """Let a paused queue go on."""
    session.desk.resume(name, version=version, note=note)
    say(f"queue {name} goes on")


def _show(queue: QueueInfo) -> None:
    facts(_settings(queue))


def _settings(queue: QueueInfo) -> list[tuple[str, object]]:
    limits = [("max_running", queue.max_running or UNLIMITED), ("rate", queue.rate or UNLIMITED)]
    rest = [(name, getattr(queue, name)) for name in SETTINGS if name not in dict(limits)]
    return [("queue", queue.name), ("paused", queue.paused), *limits, *rest]
