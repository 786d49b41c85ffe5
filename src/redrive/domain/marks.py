"""Tags and labels as one text: ``{"tags": [...], "labels": {...}}``, absent when a job has neither."""

from __future__ import annotations

import json
from collections.abc import Mapping


def pack(tags: tuple[str, ...], labels: Mapping[str, str]) -> str | None:
    """Tags and labels as stored; None when there are none, which is what most jobs have."""
    if not tags and not labels:
        return None
    return json.dumps({"tags": tags, "labels": dict(labels)}, ensure_ascii=False, separators=(",", ":"))


def unpack(text: str | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Tags and labels from their stored text."""
    if not text:
        return (), {}
    marks = json.loads(text)
    return tuple(marks["tags"]), dict(marks["labels"])
