"""A suggestion for broken JSON: shown as a diff, never applied by itself.

First the smallest change is looked for: one character put in or taken out where the reader stopped, then the next such
place, so that nothing else in the text changes, not a space. Only where that leads nowhere does json-repair write the
whole text anew, and the suggestion says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from redrive.domain.errors import PayloadError
from redrive.domain.payload import diff, is_json, parse

SIZE_LIMIT = 1_000_000
"""Larger payloads get no suggestion: an operator could not judge it."""
REWRITE_LIMIT = 100_000
STEPS = 12
"""Most places mended one by one."""

_SPACE = b" \t\r\n"
_WORDS = {
    b"True": b"true",
    b"False": b"false",
    b"None": b"null",
    b"NaN": b"null",
    b"nan": b"null",
    b"undefined": b"null",
}
_WORD = re.compile(rb"[A-Za-z]+")
_COMMENT = re.compile(rb"[ \t]*(?://[^\n]*|#[^\n]*|/\*.*?\*/)", re.DOTALL)
_SINGLE = re.compile(rb"'([^'\"\\\n]*)'")
_BARE_NAME = re.compile(rb"[A-Za-z_$][\w$]*(?=\s*:)")
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)
_CLOSERS = {b"{": b"}", b"[": b"]"}
_CONTROLS = {bytes([code]): b"\\u%04x" % code for code in range(32)} | {b"\n": b"\\n", b"\t": b"\\t", b"\r": b"\\r"}


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A payload that parses. ``exact``: only the named places differ; else the whole text was written anew."""

    payload: bytes
    what: str
    exact: bool
    diff: tuple[str, ...]


def suggest(payload: bytes, content_type: str = "application/json") -> Suggestion | None:
    """How broken JSON might be meant; None when it parses, is not JSON, is too large, or nothing was found."""
    if not is_json(content_type) or len(payload) > SIZE_LIMIT:
        return None
    try:
        parse(payload)
    except PayloadError as error:
        if error.code not in ("json-syntax", "json-number"):
            return None
        found = _mend(payload, error) or _rewrite(payload)
    else:
        return None
    if found is None or found[0] == payload:
        return None
    mended, what, exact = found
    return Suggestion(mended, what, exact, tuple(diff(payload, mended)))


@dataclass(frozen=True, slots=True)
class _Change:
    """Replace ``payload[start:end]`` by ``text``."""

    start: int
    end: int
    text: bytes
    what: str

    def apply(self, payload: bytes) -> bytes:
        return payload[: self.start] + self.text + payload[self.end :]


def _mend(payload: bytes, error: PayloadError) -> tuple[bytes, str, bool] | None:
    """Change one place after the other, each time the change that lets the reader come farthest."""
    done: list[str] = []
    for _ in range(STEPS):
        reached = error.offset or 0
        best: tuple[int, bytes, PayloadError, _Change] | None = None
        for change in _changes(payload, reached):
            mended = change.apply(payload)
            try:
                parse(mended)
            except PayloadError as next_error:
                # Farther in the text that is left, not in the text as it grew.
                left = len(mended) - (next_error.offset or 0)
                if left < len(payload) - reached and (best is None or left < best[0]):
                    best = left, mended, next_error, change
            else:
                return mended, "; ".join([*done, change.what]), True
        if best is None:
            return None
        _, payload, error, change = best
        done.append(change.what)
    return None


def _changes(payload: bytes, at: int) -> Iterator[_Change]:
    """What may be meant at ``at``, where the reader stopped; the likeliest first."""
    line = payload.count(b"\n", 0, at) + 1
    before = len(payload[:at].rstrip(_SPACE))
    here = payload[at : at + 1]
    if payload.startswith(b"\xef\xbb\xbf") and at <= 3:
        yield _Change(0, 3, b"", "byte order mark removed")
    if comment := _COMMENT.match(payload, at):
        start = len(payload[:at].rstrip(b" \t"))
        yield _Change(start, comment.end(), b"", f"comment on line {line} removed")
    if (word := _WORD.match(payload, at)) and word[0] in _WORDS:
        new = _WORDS[word[0]]
        yield _Change(at, word.end(), new, f"{word[0].decode()} on line {line} written {new.decode()}")
    if single := _SINGLE.match(payload, at):
        yield _Change(at, single.end(), b'"' + single[1] + b'"', f"single quotes on line {line} made double")
    if name := _BARE_NAME.match(payload, at):
        yield _Change(at, name.end(), b'"' + name[0] + b'"', f"name on line {line} put in quotes")
    if here in _CONTROLS and here:
        yield _Change(at, at + 1, _CONTROLS[here], f"control character in the string on line {line} escaped")
    place = payload.count(b"\n", 0, before) + 1
    if at >= len(payload) and len(open_ones := _unclosed(payload)) > 1:
        yield _Change(before, before, open_ones, f"{open_ones.decode()} put in at the end")
    for sign, what in ((b",", "comma"), (b":", "colon"), (b"}", "brace"), (b"]", "bracket")):
        yield _Change(before, before, sign, f"{what} put in on line {place}")
    if here == b'"':
        end = payload.find(b"\n", at)
        end = len(payload) if end < 0 else end
        stop = len(payload[:end].rstrip(_SPACE + b",}]"))
        yield _Change(stop, stop, b'"', f"closing quote put in on line {line}")
    if here and here in b",:}]":
        yield _Change(at, at + 1, b"", f"{here.decode()} on line {line} removed")
    if (last := payload[before - 1 : before]) and last in b",:":
        yield _Change(before - 1, before, b"", f"{last.decode()} on line {place} removed")


def _unclosed(payload: bytes) -> bytes:
    """The brackets that are open at the end, as what closes them."""
    closers: list[bytes] = []
    for bracket in _BRACKETS.finditer(payload):
        if bracket[0] in _CLOSERS:
            closers.append(_CLOSERS[bracket[0]])
        elif bracket[0] in b"}]" and closers:
            closers.pop()
    return b"".join(reversed(closers))


def _rewrite(payload: bytes) -> tuple[bytes, str, bool] | None:
    if len(payload) > REWRITE_LIMIT:
        return None
    import json_repair  # most processes never repair anything: loaded when it is needed

    try:
        text = json_repair.repair_json(payload.decode(), ensure_ascii=False, skip_json_loads=True)
        mended = str(text).encode()
        value = parse(mended)
    except (PayloadError, ValueError, RecursionError, IndexError, TypeError):
        return None
    if value in ("", {}, [], None):
        return None  # what it did not understand it drops; a suggestion to lose everything is none
    return mended, "the text was written anew: spacing, spelling of numbers and doubled names may have changed", False
