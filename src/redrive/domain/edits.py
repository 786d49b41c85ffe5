"""What an operator may change in a job, and how a change is checked before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Final

from .errors import InvalidField


class Unset(Enum):
    """Tells "leave it" from "set it to None"."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-/]{0,199}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
NAME_EXPECTED = "1 to 200 letters, digits and _ . : - /, not starting with punctuation"
WORD_LIMIT, KEY_LIMIT, MARKS_LIMIT, NOTE_LIMIT = 200, 400, 50, 2000


@dataclass(frozen=True, slots=True)
class JobEdit:
    """New content for a job; ``UNSET`` fields stay as they are. ``queue`` and ``type`` go with a resurrection only."""

    payload: bytes | Unset = UNSET
    content_type: str | Unset = UNSET
    tags: tuple[str, ...] | Unset = UNSET
    labels: Mapping[str, str] | Unset = UNSET
    priority: int | Unset = UNSET
    idempotency_key: str | Unset | None = UNSET
    queue: str | Unset = UNSET
    type: str | Unset = UNSET

    def touched(self) -> tuple[str, ...]:
        """Names of the fields this edit sets."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) is not UNSET)


NO_EDIT: Final = JobEdit()

CONTENT_FIELDS: Final = ("payload", "content_type", "tags", "labels", "priority", "idempotency_key")
"""The fields a revision keeps."""


def check_name(field: str, value: object) -> str:
    """A queue's or type's name, as stored."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidField(field, f"{value!r} is not a name", expected=NAME_EXPECTED)
    return value


def check_word(field: str, value: object, limit: int = WORD_LIMIT) -> str:
    """One line of printable text: a tag, a label's name or value, a key, an actor."""
    if not isinstance(value, str) or not value or len(value) > limit or _CONTROL.search(value):
        shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
        raise InvalidField(field, f"{shown} is not accepted", expected=f"1 to {limit} characters without controls")
    return value


def check_priority(value: object, field: str = "priority") -> int:
    """0 to 100; higher runs first."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
        raise InvalidField(field, f"{value!r} is not a priority", expected="a whole number from 0 to 100")
    return value


def check_tags(value: object, field: str = "tags") -> tuple[str, ...]:
    """Up to 50 tags, in the order given, each once."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidField(field, f"{value!r} is not a list of tags", expected="a list of strings")
    tags = tuple(dict.fromkeys(check_word(f"{field}[{n}]", tag) for n, tag in enumerate(value)))
    if len(tags) > MARKS_LIMIT:
        raise InvalidField(field, f"{len(tags)} tags", expected=f"at most {MARKS_LIMIT}")
    return tags


def check_labels(value: object, field: str = "labels") -> dict[str, str]:
    """Up to 50 labels, names and values one line each."""
    if not isinstance(value, Mapping):
        raise InvalidField(field, f"{value!r} is not a set of labels", expected="names with text values")
    if len(value) > MARKS_LIMIT:
        raise InvalidField(field, f"{len(value)} labels", expected=f"at most {MARKS_LIMIT}")
    return {check_word(f"{field} name", name): check_word(f"{field}.{name}", text) for name, text in value.items()}


def check_key(value: object, field: str = "idempotency_key") -> str:
    """An idempotency or lock key."""
    return check_word(field, value, KEY_LIMIT)


def check_note(value: str | None) -> str | None:
    """An operator's note: several lines are fine, NUL and broken text are not."""
    if value is None or value == "":
        return None
    if len(value) > NOTE_LIMIT or re.search(r"[\x00\ud800-\udfff]", value):
        raise InvalidField("note", "is not accepted", expected=f"up to {NOTE_LIMIT} characters of text")
    return value


def check_edit(edit: JobEdit, *, payload_limit: int) -> JobEdit:
    """The edit with every field checked; ``payload_limit`` in bytes."""
    if not isinstance(edit.payload, bytes | Unset):
        raise InvalidField("payload", f"a {type(edit.payload).__name__} is not accepted", expected="bytes")
    if isinstance(edit.payload, bytes) and len(edit.payload) > payload_limit:
        raise InvalidField(
            "payload", f"{len(edit.payload)} bytes", expected=f"at most {payload_limit} bytes", code="payload-too-large"
        )
    return JobEdit(
        payload=edit.payload,
        content_type=edit.content_type
        if isinstance(edit.content_type, Unset)
        else check_word("content_type", edit.content_type),
        tags=edit.tags if isinstance(edit.tags, Unset) else check_tags(edit.tags),
        labels=edit.labels if isinstance(edit.labels, Unset) else check_labels(edit.labels),
        priority=edit.priority if isinstance(edit.priority, Unset) else check_priority(edit.priority),
        idempotency_key=edit.idempotency_key
        if isinstance(edit.idempotency_key, Unset) or edit.idempotency_key is None
        else check_key(edit.idempotency_key),
        queue=edit.queue if isinstance(edit.queue, Unset) else check_name("queue", edit.queue),
        type=edit.type if isinstance(edit.type, Unset) else check_name("type", edit.type),
    )
