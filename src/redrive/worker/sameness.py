"""Whether a value that went through JSON came back as it was: equal in value and in type, all the way down."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, time
from typing import Any

from pydantic import BaseModel

_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def same(sent: Any, back: Any) -> bool:
    """Whether ``back`` can stand for ``sent``.

    An ``int`` may come back as the equal ``float``: type checkers accept it where a float is annotated. Moments are
    the same when wall clock and offset are, whatever object names the zone.
    """
    kind = type(sent)
    if kind is not type(back):
        return kind is int and type(back) is float and bool(sent == back)
    if kind in _PLAIN:
        return bool(sent == back)
    if kind is datetime or kind is time:
        # Across zones, == is False for every moment that a clock change makes ambiguous.
        return bool(
            sent.replace(tzinfo=None) == back.replace(tzinfo=None)
            and sent.utcoffset() == back.utcoffset()
            and (sent.fold == back.fold or sent.tzinfo is not None)
        )
    if isinstance(sent, Mapping):
        return len(sent) == len(back) and all(
            same(name, other) and same(sent[name], back[other]) for name, other in zip(sent, back, strict=True)
        )
    if isinstance(sent, set | frozenset):
        return bool(sent == back) and Counter(map(type, sent)) == Counter(map(type, back))
    if isinstance(sent, BaseModel):
        return bool(sent == back) and same(vars(sent), vars(back))
    if dataclasses.is_dataclass(kind):
        return all(same(getattr(sent, f.name), getattr(back, f.name)) for f in dataclasses.fields(sent))
    if isinstance(sent, list | tuple):
        return len(sent) == len(back) and all(map(same, sent, back))
    return bool(sent == back)
