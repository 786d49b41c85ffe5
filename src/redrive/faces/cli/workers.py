"""redrive workers: who works, how they are, and how many jobs each may run at a time."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.core import TyperGroup

from redrive.ops.insight import ALIVE_WITHIN
from redrive.store.port import WorkerView

from .common import Json, Note, Session, command, usage
from .output import as_json, plain, remark, say, span, table

HELP = ("-h", "--help")


class ListAlone(TyperGroup):
    """A group whose name alone lists: ``redrive workers --json``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Arguments without a command are those of ``list``."""
        if not args or (args[0].startswith("-") and args[0] not in HELP):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def add(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(cls=ListAlone, help="Who works, and how many jobs each may run.", rich_markup_mode=None)
    app.add_typer(group, name="workers")
    command(group, "list")(list_workers)
    command(group, "set")(set_workers)


def list_workers(session: Session, json: Json = False) -> None:
    """List workers: how they are, what they hold, and when they were last seen.

    "stuck" are runs that were given up at their timeout and still go on.
    """
    found = session.store.workers()
    if json:
        as_json([plain(view) for view in found])
        return
    if not found:
        remark("no workers: redrive work MODULE:app")
        return
    table(
        ("worker", "host", "pid", "build", "queues", "is", "holds", "slots", "stuck", "seen"),
        [
            (
                view.id, view.host, view.pid, view.build, view.queues, view.mode, view.holding, _slots(view),
                view.stuck, f"{span(view.silent)} ago{'' if view.silent <= ALIVE_WITHIN else ' (gone)'}",
            )
            for view in found
        ],
    )  # fmt: skip


def _slots(view: WorkerView) -> str:
    wanted = view.wanted_concurrency
    return str(view.concurrency) if wanted in (None, view.concurrency) else f"{view.concurrency} (wanted {wanted})"


def set_workers(
    session: Session,
    workers: Annotated[list[str], typer.Argument(metavar="WORKER...", help="Ids, as redrive workers shows them.")],
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, max=10_000, help="Jobs it may run at a time, over all pools.")
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Back to what it was started with.")] = False,
    note: Note = None,
) -> None:
    """Change how many jobs live workers run at a time. They follow at their next heartbeat; what runs goes on."""
    if (concurrency is None) is not default:
        usage("say --concurrency N, or --default")
    for worker in workers:
        view = session.desk.set_worker(worker, concurrency, note=note)
        wanted = "what it was started with" if concurrency is None else concurrency
        say(f"worker {view.id}: runs {view.concurrency} jobs at a time, from its next heartbeat {wanted}")
