"""Which payloads of locked rows no handler could read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from sqlalchemy import Connection, select

from redrive.domain.errors import PayloadError
from redrive.domain.job import JobHead
from redrive.domain.payload import is_json, parse
from redrive.domain.states import Place

from .rows import PLACES

ROOM = 8_000_000
"""Bytes of payloads that are read at once: a batch of large ones must not fill the memory."""


def unreadable(connection: Connection, heads: Iterable[JobHead]) -> dict[UUID, str]:
    """Of dead jobs with a JSON payload, those that cannot be parsed, each with what is wrong."""
    table = PLACES[Place.DLQ]
    problems: dict[UUID, str] = {}
    for ids in _portions(head for head in heads if head.place is Place.DLQ and is_json(head.content_type)):
        for job_id, payload in connection.execute(select(table.c.id, table.c.payload).where(table.c.id.in_(ids))):
            try:
                parse(payload)
            except PayloadError as error:
                problems[job_id] = str(error)
    return problems


def _portions(heads: Iterable[JobHead]) -> Iterator[list[UUID]]:
    ids: list[UUID] = []
    size = 0
    for head in heads:
        if ids and size + head.payload_size > ROOM:
            yield ids
            ids, size = [], 0
        ids.append(head.id)
        size += head.payload_size
    if ids:
        yield ids
