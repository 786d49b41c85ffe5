"""Exactness of payloads: bytes are parsed strictly or refused with a place, and never rewritten.

``parse`` accepts what RFC 8259 calls JSON, in UTF-8, and refuses what Python would quietly change or could not write
again: NaN and Infinity, floats beyond range, lone surrogate escapes, nesting deeper than ``DEPTH``. Of duplicate names
the last wins, as everywhere in Python; the stored bytes keep them all. Integers are exact up to the interpreter's limit
of digits. Codes: ``empty``, ``not-utf8``, ``json-syntax``, ``json-number``, ``json-depth``, ``json-surrogate``; and of
``dumps`` also ``json-type``.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import sys
from array import array
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Never

from .errors import PayloadError
from .text import one_line, printable

DEPTH = 500
"""Deepest nesting. Python 3.11 stops its JSON reader somewhere below 1,000, depending on the caller's own stack."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BRACKETS = re.compile(_STRING + rb"|[\[{\]}]", re.DOTALL)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_SIGNS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[{]}"'))
_NUMBERS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|NaN|-?Infinity|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?', re.DOTALL)
_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(_PAIR + r"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL)
_TOKEN = re.compile(r'"[^"\n]*"?|[\w.+-]+|//|/\*|.', re.DOTALL)


def _refuse_constant(name: str) -> Never:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise ValueError(text)
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def parse(data: bytes) -> object:
    """The value of JSON ``data``, or ``PayloadError`` with code, byte offset, line and column."""
    # The good case costs little more than json.loads: what is rare is looked for only where a cheap test suspects it.
    if _is_too_deep(data):
        _refuse_depth(data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(data, error) from None
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _syntax(data, text, error) from None
    except RecursionError:
        raise PayloadError("nested too deeply to be read here", code="json-depth", **_spot(data, 0)) from None
    except ValueError:
        raise _number(data, text) from None
    if b"\\ud" in data or b"\\uD" in data:
        _check_surrogates(data, text)
    return value


def locate(data: bytes, offset: int) -> tuple[int, int]:
    """Line and column (in characters), both from 1, of the byte at ``offset``; inside a character: that character's."""
    offset = max(0, min(offset, len(data)))
    start = data.rfind(b"\n", 0, offset) + 1
    begun = len(data[start:offset].translate(None, _CONTINUATION))
    inside = offset < len(data) and 0x80 <= data[offset] < 0xC0 and begun > 0
    return data.count(b"\n", 0, offset) + 1, begun + (not inside)


_CONTINUATION = bytes(range(0x80, 0xC0))


def _spot(data: bytes, offset: int) -> dict[str, Any]:
    line, column = locate(data, offset)
    return {"offset": offset, "line": line, "column": column}


def _refusal(data: bytes, text: str, at: int, problem: str, code: str, expected: str = "") -> PayloadError:
    offset = len(text[:at].encode())
    return PayloadError(problem, code=code, expected=expected, **_spot(data, offset))


def _is_too_deep(data: bytes) -> bool:
    """Whether nesting goes beyond ``DEPTH``, at the speed of C: large payloads of many small objects come here too."""
    if len(data) <= DEPTH or data.count(b"[") + data.count(b"{") <= DEPTH:
        return False
    if b"\\" in data:
        data = _ESCAPED.sub(b"", data)
    brackets = data.translate(_SIGNS, _NO_STRUCTURE).replace(b'""', b"")
    if b'"' in brackets:  # brackets within strings: every second part is outside
        brackets = b"".join(brackets.split(b'"')[::2])
    return max(accumulate(array("b", brackets)), default=0) > DEPTH


def _refuse_depth(data: bytes) -> None:
    """Raise with the bracket that goes too deep; in what is no JSON there may be none, and its syntax is the error."""
    depth = 0
    for bracket in _BRACKETS.finditer(data):
        depth += 1 if bracket[0] in b"[{" else -1 if bracket[0] in b"]}" else 0
        if depth > DEPTH:
            problem, expected = "lists and objects are nested too deeply", f"at most {DEPTH} levels"
            raise PayloadError(problem, code="json-depth", expected=expected, **_spot(data, bracket.start()))


def _check_surrogates(data: bytes, text: str) -> None:
    for escape in _ESCAPES.finditer(text):
        if escape["lone"]:
            problem = f"{escape[0]} is half of a character"
            raise _refusal(data, text, escape.start(), problem, "json-surrogate", "a pair such as \\ud83d\\ude00")


def _not_utf8(data: bytes, error: UnicodeDecodeError) -> PayloadError:
    what = _WIDE if data[:2] in (b"\xff\xfe", b"\xfe\xff") else f"byte 0x{data[error.start]:02x} is not UTF-8"
    return PayloadError(what, code="not-utf8", expected="JSON in UTF-8", **_spot(data, error.start))


_WIDE = "it looks like UTF-16 or UTF-32"


def _number(data: bytes, text: str) -> PayloadError:
    longest = sys.get_int_max_str_digits()
    for token in _NUMBERS.finditer(text):
        word = token[0]
        if word.startswith('"'):
            continue
        if word[-1] not in "0123456789":
            return _refusal(
                data, text, token.start(), f"{word} is not JSON", "json-number", "a number, null or a string"
            )
        digits = len(word.lstrip("-"))
        if word.lstrip("-").isdigit():
            if 0 < longest < digits:
                problem = f"an integer of {digits} digits"
                expected = f"at most {longest} digits; longer ones as a string"
                return _refusal(data, text, token.start(), problem, "json-number", expected)
        elif math.isinf(float(word)):
            problem = f"{one_line(word, 40)} is too large for a float"
            return _refusal(data, text, token.start(), problem, "json-number", "a smaller number, or a string")
    return PayloadError("a number in it cannot be read", code="json-number", **_spot(data, 0))


_WORDING = (
    ("Unterminated string", "this string is not closed: a double quote is missing"),
    ("Invalid control character", "a control character stands in a string: write \\n, \\t or \\u00.."),
    ("Invalid \\u", "a \\u escape needs four hex digits"),
    ("Invalid \\", "this escape is unknown: a backslash itself is written \\\\"),
    ("Expecting ':'", "a colon is missing after the name"),
    ("Extra data", "the value ends before this: only one value is allowed"),
)
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", "undefined": "null", "nan": "null"}


def _syntax(data: bytes, text: str, error: json.JSONDecodeError) -> PayloadError:
    if not text.strip(" \t\r\n"):
        return PayloadError("it is empty", code="empty", expected="a JSON value", **_spot(data, 0))
    if b"\0" in data[:2]:
        return PayloadError(_WIDE, code="not-utf8", expected="JSON in UTF-8", **_spot(data, 0))
    problem, at = _explain(text, error.msg, error.pos)
    return _refusal(data, text, at, problem, "json-syntax")


def _explain(text: str, said: str, at: int) -> tuple[str, int]:
    """What is wrong, in words for the person who repairs it, and where."""
    before = text[:at].rstrip(" \t\r\n")
    token = _TOKEN.match(text, at)
    found = token[0] if token else ""
    if found.startswith("\ufeff"):
        return "a byte order mark stands before the value: remove its three bytes", at
    if said.startswith("Illegal trailing comma"):
        return "a comma stands before the closing bracket: remove it", at
    if found in ("}", "]") and before.endswith(","):
        return "a comma stands before the closing bracket: remove it", len(before) - 1
    for start, wording in _WORDING:
        if said.startswith(start):
            return wording, at
    if not found:
        return "it ends too early: something is not closed", at
    if found in ("//", "/*", "#"):
        return "comments are not JSON", at
    if said.startswith("Expecting ','"):
        if found not in ("}", "]", ":"):
            line = before.count("\n") + 1
            return f"a comma is missing after the value that ends on line {line}, before {one_line(found, 40)}", at
        return f"a comma or the matching bracket is missing before {found}", at
    if found == "'":
        return "names and strings take double quotes", at
    if found in _PYTHON_WORDS:
        return f"{found} is not JSON: write {_PYTHON_WORDS[found]}", at
    if said.startswith("Expecting property name"):
        return f"a name in double quotes is missing before {one_line(found, 40)}", at
    return f"a value is missing or cannot be read at {one_line(found, 40)}", at


def dumps(value: object) -> bytes:
    """``value`` as compact JSON in UTF-8, or ``PayloadError`` whose field is the path of what cannot be written.

    What JSON has no word for but Python writes all the same (a tuple, a name that is a number) is the caller's to see:
    it does not come back equal from ``parse``.
    """
    try:
        data = _ENCODER.encode(value).encode()
    except (ValueError, TypeError, RecursionError):  # UnicodeEncodeError is a ValueError
        raise _unwritable(value) from None
    if _is_too_deep(data):
        raise _unwritable(value)
    return data


def _unwritable(value: object) -> PayloadError:
    """Why ``value`` has no JSON: the first part in reading order that cannot be written. Without recursion."""
    waiting: list[tuple[str, object, int]] = [("", value, 0)]
    while waiting:
        path, part, above = waiting.pop()
        refusal = _TOO_DEEP if above == DEPTH and isinstance(part, _CONTAINERS) else _cannot_write(part)
        if refusal is not None:
            problem, code, expected = refusal
            return PayloadError(problem, field=path or "payload", code=code, expected=expected)
        waiting.extend((below, inner, above + 1) for below, inner in reversed(_inside(path, part)))
    return PayloadError("cannot be written as JSON here", code="json-type")


_CONTAINERS = (dict, list, tuple)
_TOO_DEEP = "is nested too deeply, or contains itself", "json-depth", f"at most {DEPTH} levels"


def _inside(path: str, part: object) -> list[tuple[str, object]]:
    """What ``part`` holds, each with its path: items, and the names of an object as values of their own."""
    if isinstance(part, dict):
        paths = {name: f"{path}.{one_line(name, 60)}".removeprefix(".") for name in part}
        return [pair for name, item in part.items() for pair in ((paths[name], _Name(name)), (paths[name], item))]
    if isinstance(part, list | tuple):
        return [(f"{path}[{n}]", item) for n, item in enumerate(part)]
    return []


@dataclass(frozen=True, slots=True)
class _Name:
    value: object


def _cannot_write(part: object) -> tuple[str, str, str] | None:
    """Problem, code and what was expected, where ``part`` by itself has no JSON."""
    if isinstance(part, _Name):
        if isinstance(part.value, _CONTAINERS):
            return f"a {type(part.value).__name__} as a name is not JSON", "json-type", "a string"
        return _cannot_write(part.value)
    if isinstance(part, float) and not math.isfinite(part):
        return f"{part!r} is not JSON", "json-number", "a finite number, null or a string"
    if isinstance(part, str) and re.search("[\ud800-\udfff]", part):
        return "half of a character (a lone surrogate)", "json-surrogate", "text that has a UTF-8 form"
    if isinstance(part, int) and abs(part) >= 10 ** (sys.get_int_max_str_digits() or part.bit_length()):
        return "the integer has too many digits", "json-number", f"at most {sys.get_int_max_str_digits()} digits"
    if not isinstance(part, (*_CONTAINERS, str, int, float, type(None))):
        expected = "an object, list, string, number, true, false or null"
        return f"a value of type {type(part).__qualname__} is not JSON", "json-type", expected
    return None


def is_json(content_type: str) -> bool:
    """Whether the payload is JSON by its content type."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def is_text(content_type: str) -> bool:
    """Whether people can read the payload, by its content type."""
    kind = content_type.partition(";")[0].strip().lower()
    written = ("application/xml", "application/x-www-form-urlencoded", "application/yaml", "application/x-ndjson")
    return is_json(kind) or kind.startswith("text/") or kind.endswith(("+xml", "+yaml")) or kind in written


def preview(data: bytes, limit: int = 500) -> str:
    """The first ``limit`` bytes for people: text cut between characters and safe to show, or hex; size where cut."""
    head = data[:limit]
    rest = f" [... {len(data)} bytes in all]" if len(data) > limit else ""
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if not rest or error.reason != "unexpected end of data":
            shown = head[: max(1, limit // 3)]
            return f"{shown.hex(' ')} [binary, {len(data)} bytes]"
        text = head[: error.start].decode()
    return printable(text) + rest


DIFF_LINES = 20_000


def diff(old: bytes, new: bytes) -> list[str]:
    """What changed from ``old`` to ``new``, line by line in the unified form; empty when nothing did. For people."""
    if old == new:
        return []
    try:
        before, after = old.decode().split("\n"), new.decode().split("\n")
    except UnicodeDecodeError:
        return [f"{sign}{_digest(data)}" for sign, data in (("-", old), ("+", new))]
    if len(before) + len(after) > DIFF_LINES:
        return [f"{sign}{_digest(data)}" for sign, data in (("-", old), ("+", new))]
    return [printable(line) for line in difflib.unified_diff(before, after, "before", "after", lineterm="")]


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
