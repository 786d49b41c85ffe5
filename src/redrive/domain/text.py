"""Text from anywhere, made safe: to be stored, to stand in one line, to be shown in a terminal.

What cannot be stored or shown is written as its escape (``\\x00``, ``\\udc80``), so that nothing vanishes silently.
"""

from __future__ import annotations

import re

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
"""PostgreSQL refuses NUL in text; a lone surrogate has no UTF-8."""

_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSHOWABLE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}\u2028\u2029\ufeff\ud800-\udfff]")
"""Terminal controls (C0 but tab and newline, DEL, C1), bidi overrides and marks, hidden line breaks."""

_SPACES = re.compile(r"[\t\n\v\f\r\x1c-\x1f \x85\u2028\u2029]+")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def plain(text: object) -> str:
    """``str(text)`` as an exact ``str``, whatever ``__str__`` does: an error in it becomes a remark."""
    try:
        return str.__str__(str(text))
    except BaseException as error:  # a broken __str__ may raise anything; the text is evidence, not control flow
        return f"<{type(text).__name__}: its text cannot be had, __str__ raised {type(error).__name__}>"


def storable(text: object, limit: int = 10_000, *, tail: int = 0) -> str:
    """``text`` in at most ``limit`` characters that every database stores. Never raises.

    What is too long is cut with a marker naming the whole length; ``tail`` characters of the end are kept.
    """
    whole = plain(text)
    if len(whole) <= limit:
        shown = _UNSTORABLE.sub(_escape, whole)
        if len(shown) <= limit:
            return shown
    marker = f" [... cut, {len(whole)} characters in all]"
    room = limit - len(marker)
    if room < tail:
        return _UNSTORABLE.sub(_escape, whole[:limit])[:limit]
    head = _UNSTORABLE.sub(_escape, whole[: room - tail])[: room - tail]
    if not tail:
        return head + marker
    end = _UNSTORABLE.sub(_escape, whole[-(tail - 1) :])[-(tail - 1) :] if tail > 1 else ""
    return f"{head}{marker}\n{end}"


def printable(text: object, *, lines: bool = True) -> str:
    """``text`` without power over a terminal. ``lines`` keeps newlines and tabs; else they are escaped as well."""
    shown = _UNSHOWABLE.sub(_escape, plain(text))
    return shown if lines else shown.replace("\n", "\\n").replace("\t", "\\t")


def one_line(text: object, limit: int = 300) -> str:
    """``text`` in one line of at most ``limit`` characters: white space becomes one space, other controls escapes."""
    # A tenfold head is enough to fill the line; the whole of a huge text is not worked through.
    whole = plain(text)
    line = printable(_SPACES.sub(" ", whole[: limit * 10]).strip(" "), lines=False)
    if len(line) <= limit and len(whole) <= limit * 10:
        return line
    return line[: max(0, limit - 1)] + "…" if limit > 0 else ""
