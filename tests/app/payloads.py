"""Payloads that other systems change or choke on, once as bytes and, where Python has it, as a value.

For each: the refusal (code and byte offset) of an entrance that reads the bytes as JSON, and the refusal (code and
field) of the library, which is given the value. None: stored exactly.
"""

from dataclasses import dataclass
from typing import Any

LIMIT = 2_000
"""The payload limit of the tests, so that "one byte over" is cheap."""
RAISED = 6_000_000

NOTHING: Any = object()
"""Where Python has no value for the bytes."""


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    read: tuple[str, int] | None = None
    value: Any = NOTHING
    written: tuple[str, str] | None = None
    limit: int = RAISED

    def __str__(self) -> str:
        return self.name


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


DIGITS = "7" * 5_000

CASES = [
    Case("missing comma", b'{"to": "x" "b": 1}', ("json-syntax", 11)),
    Case("seed", b'{\n  "subject": "Welcome!"\n  "body": "Hello"\n}', ("json-syntax", 28)),
    Case("NUL escaped", b'{"s":"a\\u0000b"}', value={"s": "a\0b"}),
    Case("NUL raw", b'{"s":"a\0b"}', ("json-syntax", 7)),
    Case("lone surrogate", b'{"s":"\\ud800"}', ("json-surrogate", 6), {"s": "\ud800"}, ("json-surrogate", "payload.s")),
    Case("pair of surrogates", b'{"s":"\\ud83d\\ude00"}'),
    Case("unicode", '{"s":"Привет, 🎉\u2028"}'.encode(), value={"s": "Привет, 🎉\u2028"}),
    Case("2^63", b'{"n":9223372036854775808}', value={"n": 2**63}),
    Case("-2^63 - 1", b'{"n":-9223372036854775809}', value={"n": -(2**63) - 1}),
    Case("10^40", b'{"n":%d}' % 10**40, value={"n": 10**40}),
    Case(
        "5,000 digits",
        b'{"n":%s}' % DIGITS.encode(),
        ("json-number", 5),
        {"n": sum(int(digit) * 10**n for n, digit in enumerate(DIGITS))},
        ("json-number", "payload.n"),
    ),
    Case("floats", b'{"a":-0.0,"b":0.1,"c":5e-324}', value={"a": -0.0, "b": 0.1, "c": 5e-324}),
    Case("spelling of floats", b'{"a":1.10,"b":1E2,"c":1e-0}'),
    Case(
        "nested 5,000",
        b'{"l":' + b"[" * 5_000 + b"1" + b"]" * 5_000 + b"}",
        ("json-depth", 504),
        {"l": nested(5_000)},
        ("json-depth", "payload.l" + "[0]" * 499),
    ),
    Case("nested 400", b'{"l":' + b"[" * 400 + b"1" + b"]" * 400 + b"}", value={"l": nested(400)}),
    Case("duplicate keys", b'{"b":1,"a":2,"a":3}'),
    Case("order of keys", b'{"b":1,"a":2}', value={"b": 1, "a": 2}),
    Case("white space", b' {"a" :\t1}\r\n'),
    Case("NaN", b'{"x":NaN}', ("json-number", 5), {"x": float("nan")}, ("json-number", "payload.x")),
    Case("Infinity", b'{"x":[-Infinity]}', ("json-number", 6), {"x": [-float("inf")]}, ("json-number", "payload.x[0]")),
    Case("1e400", b'{"x":1e400}', ("json-number", 5)),
    Case("empty", b"", ("empty", 0)),
    Case("null", b"null"),
    Case("empty object", b"{}", value={}),
    Case("empty list", b"[]"),
    Case("empty string", b'""'),
    Case("binary", bytes(range(256)), ("not-utf8", 128)),
    Case("latin-1", b'{"s":"caf\xe9"}', ("not-utf8", 9)),
    Case("5 MB", b'{"s":"%s"}' % (b"x" * 5_000_000), value={"s": "x" * 5_000_000}),
    Case("at the limit", b'{"s":"%s"}' % (b"x" * (LIMIT - 8)), value={"s": "x" * (LIMIT - 8)}, limit=LIMIT),
    Case(
        "one over the limit",
        b'{"s":"%s"}' % (b"x" * (LIMIT - 7)),
        ("payload-too-large", LIMIT),
        {"s": "x" * (LIMIT - 7)},
        ("payload-too-large", "payload"),
        LIMIT,
    ),
]  # fmt: skip
