"""Changing what a job carries: from options, from a file, or in the editor of the person at the keyboard."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from redrive.domain.edits import UNSET, Unset
from redrive.domain.errors import PayloadError, RedriveError
from redrive.domain.job import JobRecord
from redrive.domain.moves import Skipped
from redrive.domain.payload import diff as payload_diff
from redrive.domain.payload import is_json, parse
from redrive.domain.states import Place

from . import output, values
from .common import Note, Session, command, usage
from .jobs import Id
from .output import remark, say

PayloadText = Annotated[
    str | None, typer.Option("--payload", metavar="TEXT", help="The new payload; @file and - (stdin) as well.")
]
PayloadFile = Annotated[str | None, typer.Option("--file", metavar="FILE", help="The new payload, byte for byte.")]
Raw = Annotated[bool, typer.Option("--raw", help="Accept a payload that is not valid JSON.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="The new tags, one option each.")]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="The new labels.")]
Priority = Annotated[int | None, typer.Option("--priority", help="0 to 100; higher runs first.")]
Key = Annotated[str | None, typer.Option("--key", help="The new idempotency key.")]
Version = Annotated[int | None, typer.Option("--version", help="Refuse when the job is not at this version.")]


def add(group: typer.Typer) -> None:
    """Add the command to ``jobs`` and to ``dlq``."""
    command(group, "edit")(edit)


def edit(
    session: Session,
    job: Id,
    payload: PayloadText = None,
    file: PayloadFile = None,
    raw: Raw = False,
    tag: Tags = None,
    label: Labels = None,
    priority: Priority = None,
    key: Key = None,
    drop_key: Annotated[bool, typer.Option("--drop-key", help="Take the idempotency key away.")] = False,
    version: Version = None,
    note: Note = None,
) -> None:
    """Change a job that waits or is dead, where it is. Without any option its payload opens in $EDITOR.

    The difference is shown, and what was replaced is kept as a revision. Whoever changed the job meanwhile wins: your
    text is then kept in a file.
    """
    record = session.desk.get(job)
    marks = any(option is not None for option in (tag, label, priority, key)) or drop_key
    new, kept = new_payload(record, payload, file, editor=not marks, raw=raw)
    try:
        answer = session.desk.edit(
            record.head.id,
            payload=new,
            tags=values.given(tag),
            labels=UNSET if label is None else values.labels(label),
            priority=UNSET if priority is None else priority,
            idempotency_key=None if drop_key else UNSET if key is None else key,
            version=record.head.version if version is None else version,
            note=note,
        )
    except RedriveError:
        if kept is not None:
            remark(f"your text is kept in {kept}")
        raise
    if kept is not None:
        kept.unlink()
    if answer.skipped is Skipped.UNCHANGED:
        say("nothing changed, nothing written")
        return
    say(f"edited: job {record.head.id} is at version {answer.version}")
    about_key(record, new, None if drop_key else UNSET if key is None else key)
    if record.head.place is Place.DLQ:
        remark(f"next: redrive dlq resurrect {record.head.id}")


def about_key(record: JobRecord, payload: bytes | Unset, key: str | Unset | None) -> None:
    """The old and the new idempotency key; and that a new payload does not make a new one by itself."""
    old = record.head.idempotency_key
    if not isinstance(key, Unset) and key != old:
        say(f"idempotency key: {output.shown(old)} -> {output.shown(key)}")
    elif old is not None and not isinstance(payload, Unset) and payload != record.payload:
        remark(f"its idempotency key stays {output.shown(old)}; --key gives it another")


def new_payload(
    record: JobRecord, text: str | None, file: str | None, *, editor: bool, raw: bool
) -> tuple[bytes | Unset, Path | None]:
    """The payload that was asked for, checked and shown as a diff; and the file that an editor left."""
    kept: Path | None = None
    if text is not None and file is not None:
        usage("give --payload or --file, not both")
    if text is not None:
        new = values.content(text)
    elif file is not None:
        new = values.file(file)
    elif editor:
        new, kept = in_editor(record)
    else:
        return UNSET, None
    if new == record.payload:
        return new, kept
    output.diff(payload_diff(record.payload, new))
    if is_json(record.head.content_type) and not raw:
        try:
            parse(new)
        except PayloadError as error:
            hint = f"your text is in {kept}; repair it, then --file {kept}" if kept else "repair it"
            raise PayloadError(
                f"{error.problem} ({hint}, or say --raw to store it as it is)",
                code=error.code, offset=error.offset, line=error.line, column=error.column,
            ) from None  # fmt: skip
    return new, kept


def in_editor(record: JobRecord) -> tuple[bytes, Path]:
    """The payload as it came back from $VISUAL or $EDITOR, and the file it is in."""
    if not is_editable(record.payload):
        usage("the payload is not text: use --file")
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not chosen:
        usage("set $EDITOR, or give the new payload with --payload or --file")
    suffix = ".json" if is_json(record.head.content_type) else ".txt"
    descriptor, name = tempfile.mkstemp(prefix=f"redrive-{record.head.id}-", suffix=suffix)
    path = Path(name)
    with os.fdopen(descriptor, "wb") as draft:
        draft.write(record.payload)
    try:
        ended = subprocess.run([*shlex.split(chosen), name], check=False).returncode
    except OSError as error:
        path.unlink()
        usage(f"$EDITOR ({chosen}) cannot be started: {error.strerror}")
    if ended != 0:
        _give_up(path, record.payload, f"{chosen} ended with code {ended}: nothing was changed")
    try:
        new = path.read_bytes()
    except OSError as error:
        _give_up(path, record.payload, f"{chosen} left no file to read ({error.strerror}): nothing was changed")
    if new.endswith(b"\n") and not record.payload.endswith(b"\n"):
        new = new[:-1]  # most editors end the last line: that is their doing, not the person's
    return new, path


def is_editable(payload: bytes) -> bool:
    """Whether an editor gives these bytes back as they are."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in payload


def _give_up(path: Path, before: bytes, why: str) -> NoReturn:
    """End without a change; a text that somebody typed is kept, a copy of what is stored is not."""
    if path.exists() and path.read_bytes() != before:
        why += f"; what it wrote is in {path}"
    else:
        path.unlink(missing_ok=True)
    remark(why)
    raise typer.Exit(1)
