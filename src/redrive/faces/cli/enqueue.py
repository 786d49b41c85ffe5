"""redrive enqueue: accept one job by its type."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.domain.errors import PayloadError
from redrive.domain.job import JSON
from redrive.domain.payload import is_json, parse
from redrive.handles import Options

from . import values
from .common import Json, Session, command
from .output import as_json, remark, say


def add(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "enqueue", creates=True)(enqueue)


def enqueue(
    session: Session,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The type's key, such as email.send.v1.")],
    payload: Annotated[str, typer.Argument(metavar="JSON|-|@FILE", help="The payload, stdin, or a file.")],
    queue: Annotated[str | None, typer.Option("--queue", help="The queue; by default the one of live workers.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="0 to 100; higher runs first.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: no second live job with it.")] = None,
    delay: Annotated[str | None, typer.Option("--delay", help="Start it only after this long, such as 10m.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag; as often as wanted.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="A label.")] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", help="Instead of the handler's.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Accept bytes that are not valid JSON.")] = False,
    content_type: Annotated[str, typer.Option("--content-type", help="What the bytes are.")] = JSON,
    json: Json = False,
) -> None:
    """Accept one job. The payload is stored as the very bytes given; malformed JSON is refused unless --raw."""
    content = values.content(payload)
    if is_json(content_type) and not raw:
        try:
            parse(content)
        except PayloadError:
            remark("the payload is not valid JSON; --raw stores it as it is")
            raise
    options: Options = {"created_by": session.actor.name}
    wait = values.seconds("delay", delay)
    if wait is not None:
        options["run_after"] = wait
    if priority is not None:
        options["priority"] = priority
    if key is not None:
        options["idempotency_key"] = key
    if tag:
        options["tags"] = tag
    if label:
        options["labels"] = values.labels(label)
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    options["queue"] = queue or _queue(session, type)
    handle = session.app.enqueue_raw(type, content, content_type=content_type, **options)
    if json:
        as_json({"id": handle.id, "duplicate": handle.duplicate})
        return
    say(str(handle.id))
    if handle.duplicate:
        remark("a live job holds this key: nothing was added, this is its id")


def _queue(session: Session, type: str) -> str:
    """Where workers have announced the type; without any, the default queue."""
    return next((view.queue for view in session.store.types() if view.type == type), "default")
