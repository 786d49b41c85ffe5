"""One cause, one fingerprint: how dead jobs fold into incidents.

The rule, version 1. Two failures have one cause when all of these are equal:

1. the job's type, the failure's kind (a reason, a class, an HTTP status; may be empty) and the error's type;
2. the innermost three application frames, as base name of the file and function. Line numbers are left out, so that an
   unrelated edit of the file does not begin a new incident; a function that calls itself counts once;
3. the message after ``normal``: numbers, hex, UUIDs, times, quoted text, paths and what follows the host of a URL are
   each written ``#``, a list of such things as one ``#``, white space as one space.

A change of the rule takes a new ``VERSION``: fingerprints are stored, and compared only within a version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from ntpath import basename  # splits at both kinds of slash

from .text import one_line, storable

VERSION = 1
FRAMES = 3
READ, KEPT = 8_000, 1_000
"""Characters of a message that are looked at, and of its normal form that are compared."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in a traceback, outermost first in a sequence."""

    file: str
    function: str


# One pattern, so that neither the tail of a float is taken for hex, nor the head of a UUID after a dash for a number.
_UUID = r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
_TIME = r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|\s?[+-]\d\d:?\d\d)?)?"
_HEX = r"\b0[xX][0-9a-fA-F]+\b|\b(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"
_NUMBER = r"\d+(?:[.,:_]\d+)*(?:[eE][-+]?\d+)?"

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]{1,15}://[^\s/?#\"'<>]{1,255})[^\s\"'<>]*"), r"\1/#"),
    (re.compile(r"""(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`"""), "#"),
    (re.compile(r"(?<![\w:/\\.])(?:[A-Za-z]:|~|\.{1,2})?(?:[\\/][\w.@%+~-]+){2,}[\\/]?"), "#"),
    (re.compile(f"[-+]?(?:{_UUID}|{_TIME}|{_HEX}|{_NUMBER})"), "#"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"[-+]?#(?:[ ,;]*[-+]?#)*"), "#"),
)


def normal(message: str) -> str:
    """``message`` without what differs from one failure to the next of the same cause."""
    text = message[:READ]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text.strip()[:KEPT]


def fingerprint(job_type: str, reason_or_class: str, error_type: str, message: str, frames: Sequence[Frame]) -> str:
    """The cause of a failure as 16 hex characters; see the rule above."""
    places = [f"{basename(frame.file)}:{frame.function}" for frame in frames]
    innermost = [place for place, _ in groupby(places)][-FRAMES:]
    parts = (str(VERSION), job_type, reason_or_class, error_type, normal(message), *innermost)
    # NUL parts the fields and cannot occur in them.
    content = "\0".join(storable(part) for part in parts)
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def title(job_type: str, error_type: str, message: str) -> str:
    """What people read as an incident's name: the first failure's message, in one line."""
    name = error_type.rpartition(".")[2] or "error"
    said = one_line(message, 160)
    return one_line(f"{job_type}: {name}" + (f": {said}" if said else ""), 300)
