"""redrive dlq export and import: dead jobs as lines of JSON."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from redrive.ops.exchange import export_dead, import_dead

from .answers import report
from .choose import Cancelled, FailedAfter, FailedBefore, Incident, Label, ReasonName, Tag, Words, dead
from .common import Json, Note, Queue, Session, Type, command, usage
from .output import Counting, remark


def add(group: typer.Typer) -> None:
    """Add the commands."""
    command(group, "export")(export)
    command(group, "import", creates=True)(import_)


def export(
    session: Session,
    queue: Queue = None,
    type: Type = None,
    reason: ReasonName = None,
    incident: Incident = None,
    with_tag: Tag = None,
    with_label: Label = None,
    q: Words = None,
    failed_after: FailedAfter = None,
    failed_before: FailedBefore = None,
    cancelled: Cancelled = False,
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="A new file; - is stdout.")] = "-",
) -> None:
    """Write dead jobs as NDJSON, exact payloads, ledger and revisions included."""
    wanted = dead(
        queue=queue, type=type, reason=reason, incident=incident, tag=with_tag, label=with_label, q=q,
        failed_after=failed_after, failed_before=failed_before, cancelled=cancelled,
    )  # fmt: skip
    counting = Counting("exported")
    number = 0
    try:
        with nullcontext(sys.stdout.buffer) if out == "-" else Path(out).open("xb") as target:
            for line in export_dead(session.desk, wanted, progress=counting):
                target.write(line)
                number += 1
            target.flush()
    except BrokenPipeError:
        raise  # whoever read us has enough: no error of the command
    except FileExistsError:
        usage(f"{out} is there already: it is not overwritten")
    except OSError as error:
        usage(f"{out}: {error.strerror}")
    counting.end()
    remark(f"{number} dead jobs exported")


def import_(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="FILE|-", help="NDJSON as exported; - is stdin.")],
    note: Note = None,
    json: Json = False,
) -> int:
    """Take dead jobs in from NDJSON. Every line is checked before the first is written; ids that exist are skipped."""
    with _seekable(source) as lines:
        return report("imported", import_dead(session.desk, lines, note=note), json=json)


def _seekable(source: str) -> BinaryIO:
    if source != "-":
        try:
            return Path(source).open("rb")
        except OSError as error:
            usage(f"{source}: {error.strerror}")
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    shutil.copyfileobj(sys.stdin.buffer, spool)
    spool.seek(0)
    return spool
