"""What pydantic and JSON refuse, in words for the person who repairs the payload or the call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from redrive.domain import payload as json_payload
from redrive.domain.errors import InvalidField, PayloadError
from redrive.domain.text import one_line

SHOWN = 5
"""Problems that one refusal names."""

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_JSON_WORDS = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def unreadable(payload: bytes, error: ValidationError, known: Iterable[str], skip: int) -> PayloadError:
    """Why ``payload`` does not bind. ``skip`` is how many parts of each path are not the payload's."""
    problems = error.errors(include_url=False, include_context=False)
    if problems[0]["type"] == "json_invalid":
        json_payload.parse(payload)  # raises, with the place, but for what only the validator refuses
        return PayloadError(problems[0]["msg"], expected="lists and objects nested at most 200 deep")
    told = [
        (
            path(problem["loc"][skip:]),
            _known(known) if problem["type"] in _UNKNOWN else problem["msg"] + _found(problem),
        )
        for problem in problems
    ]
    if len(told) == 1:
        return PayloadError(told[0][1], field=told[0][0])
    shown = "; ".join(f"{field}: {text}" for field, text in told[:SHOWN])
    return PayloadError(f"{len(told)} problems: {shown}" + ("; ..." if len(told) > SHOWN else ""))


def path(parts: Iterable[object]) -> str:
    """A place in the payload, as in ``payload.lines.3.amount``."""
    return ".".join(("payload", *(one_line(part, 60) for part in parts)))


def unknown_key(key: str, known: Iterable[str]) -> PayloadError:
    """A key of the payload that no field takes."""
    return PayloadError(_known(known), field=path((key,)))


def _known(known: Iterable[str]) -> str:
    names = ", ".join(sorted(known))
    return f"unknown name; expected one of {names}" if names else "unknown name"


def _found(problem: Any) -> str:
    word = _JSON_WORDS.get(type(problem["input"]))
    return f" (found {word})" if word and problem["type"] != "missing" else ""


def unequal(name: str, value: Any, hint: Any, said: str) -> InvalidField:
    """An argument that would not reach the handler as it is."""
    if isinstance(value, float) and value - value != 0.0:
        return InvalidField(name, f"{value!r} is not JSON", expected="a finite number")
    kind = one_line(hint.__name__ if isinstance(hint, type) else hint, 80)
    return InvalidField(name, said, expected=f"{kind}, as the handler declares it")
