"""Reading payloads: strict JSON, or an error that says what is wrong and where."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.payload import DEPTH, locate, parse
from tests.domain.given import refusal_of

SEED = b"""{
  "to": "user@example.com",
  "subject": "Welcome!"
  "body": "Hello, World!"
}"""


TOO_DEEP = "lists and objects are nested too deeply"


def test_the_seeds_missing_comma():
    error = refusal_of(parse, SEED)
    assert (error.code, error.offset, error.line, error.column) == ("json-syntax", 56, 4, 3)
    assert SEED[error.offset :].startswith(b'"body"')
    assert str(error) == (
        'payload: a comma is missing after the value that ends on line 3, before "body" at line 4, column 3 (byte 56)'
    )


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"null", None),
        (b"{}", {}),
        (b"[]", []),
        (b'""', ""),
        (b" \t\r\n 1 ", 1),
        (b"9223372036854775808", 2**63),
        (b"1" + b"0" * 40, 10**40),
        (b"9" * 4300, 10**4300 - 1),
        (b"-0.0", -0.0),
        (b"5e-324", 5e-324),
        (b"1e-400", 0.0),
        (b"1.7976931348623157e308", sys.float_info.max),
        (rb'"\u0000"', "\x00"),
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\\ud800"', "\\ud800"),
        ('"ü"'.encode(), "ü"),
        (b'{"b": 1, "a": 2, "a": 3}', {"b": 1, "a": 3}),  # the last of duplicate names
        (b"[" * DEPTH + b"]" * DEPTH, ...),
        (b"[" + b"[]," * 5000 + b"[]]", [[]] * 5001),  # wide is not deep
        (b'["' + b"[{" * 5000 + b'"]', ["[{" * 5000]),  # neither are brackets in a string
        (b'["' + rb"\"[" * 5000 + b'"]', ['"[' * 5000]),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_what_is_read(data, value):
    assert value is ... or repr(parse(data)) == repr(value)


def test_names_keep_their_order():
    assert str(parse(b'{"b":1,"a":2,"c":3}')) == "{'b': 1, 'a': 2, 'c': 3}"


SYNTAX = [
    (b'{"a": 1 "b": 2}', 8, 'a comma is missing after the value that ends on line 1, before "b"'),
    (b"[1 2]", 3, "a comma is missing after the value that ends on line 1, before 2"),
    (b"[01]", 2, "a comma is missing after the value that ends on line 1, before 1"),
    (b'{"a": 1]', 7, "a comma or the matching bracket is missing before ]"),
    (b'["a": 1]', 4, "a comma or the matching bracket is missing before :"),
    (b"[1,]", 2, "a comma stands before the closing bracket: remove it"),
    (b'{"a": 1 , \n }', 8, "a comma stands before the closing bracket: remove it"),
    (b'{"a" 1}', 5, "a colon is missing after the name"),
    (b"{'a': 1}", 1, "names and strings take double quotes"),
    (b"['a']", 1, "names and strings take double quotes"),
    (b"{a: 1}", 1, "a name in double quotes is missing before a"),
    (b'{"a": True}', 6, "True is not JSON: write true"),
    (b'{"a": None}', 6, "None is not JSON: write null"),
    (b"[undefined]", 1, "undefined is not JSON: write null"),
    (b"[1, // one\n2]", 4, "comments are not JSON"),
    (b"[1 /* one */]", 3, "comments are not JSON"),
    (b"# one\n[1]", 0, "comments are not JSON"),
    (b"[.5]", 1, "a value is missing or cannot be read at .5"),
    (b"[+1]", 1, "a value is missing or cannot be read at +1"),
    (b"hello", 0, "a value is missing or cannot be read at hello"),
    (b"<html>", 0, "a value is missing or cannot be read at <"),
    (b'{"a": 1', 7, "it ends too early: something is not closed"),
    (b"[", 1, "it ends too early: something is not closed"),
    (b'{"a":', 5, "it ends too early: something is not closed"),
    (b'["b', 1, "this string is not closed: a double quote is missing"),
    (b'["b\nc"]', 3, "a control character stands in a string: write \\n, \\t or \\u00.."),
    (b'["b\x00c"]', 3, "a control character stands in a string: write \\n, \\t or \\u00.."),
    (rb'["C:\data"]', 4, "this escape is unknown: a backslash itself is written \\\\"),
    (rb'["\u12"]', 3, "a \\u escape needs four hex digits"),
    (b"{} {}", 3, "the value ends before this: only one value is allowed"),
    (rb"\"" + b"[" * 600 + b'"', 0, "a value is missing or cannot be read at \\"),  # no depth in what is no JSON
    (b"\xef\xbb\xbf{}", 0, "a byte order mark stands before the value: remove its three bytes"),
]


@pytest.mark.parametrize(("data", "offset", "problem"), SYNTAX, ids=lambda value: repr(value)[:24])
def test_what_is_no_json(data, offset, problem):
    error = refusal_of(parse, data)
    assert (error.code, error.offset, error.field) == ("json-syntax", offset, "payload")
    assert error.problem == f"{problem} at line {error.line}, column {error.column} (byte {error.offset})"


REFUSED = {
    "no bytes": (b"", "empty", 0, "it is empty"),
    "white space": (b" \n\t", "empty", 0, "it is empty"),
    "a byte that is not UTF-8": (b'{"a": "\xff"}', "not-utf8", 7, "byte 0xff is not UTF-8"),
    "the end of a character": (b"\x80", "not-utf8", 0, "byte 0x80 is not UTF-8"),
    "the beginning of one": (b'["\xc3', "not-utf8", 2, "byte 0xc3 is not UTF-8"),
    "a surrogate in the clothes of UTF-8": (b'["\xed\xa0\x80"]', "not-utf8", 2, "byte 0xed is not UTF-8"),
    "UTF-16": ("{}".encode("utf-16"), "not-utf8", 0, "it looks like UTF-16 or UTF-32"),
    "UTF-16, little end first": ("{}".encode("utf-16-le"), "not-utf8", 0, "it looks like UTF-16 or UTF-32"),
    "UTF-16, big end first": ("{}".encode("utf-16-be"), "not-utf8", 0, "it looks like UTF-16 or UTF-32"),
    "UTF-32": ("{}".encode("utf-32"), "not-utf8", 0, "it looks like UTF-16 or UTF-32"),
    "NaN": (b"[NaN]", "json-number", 1, "NaN is not JSON"),
    "Infinity, after text that names it": (b'["NaN", Infinity]', "json-number", 8, "Infinity is not JSON"),
    "-Infinity": (b"-Infinity", "json-number", 0, "-Infinity is not JSON"),
    "1e400": (b"[1e308, -1e400]", "json-number", 8, "-1e400 is too large for a float"),
    "a float of 309 digits": (b"9" * 309 + b".0", "json-number", 0, "9" * 39 + "… is too large for a float"),
    "an integer of 5,000 digits": (b"[1,\n" + b"9" * 5000, "json-number", 4, "an integer of 5000 digits"),
    "an integer one digit too long": (b"-" + b"9" * 4301, "json-number", 0, "an integer of 4301 digits"),
    "half a character": (rb'["\ud800"]', "json-surrogate", 2, r"\ud800 is half of a character"),
    "half a character before a whole one": (
        rb'["\uD83D\uD83D\uDE00"]',
        "json-surrogate",
        2,
        r"\uD83D is half of a character",
    ),
    "halves the wrong way round": (rb'["\ude00\ud83d"]', "json-surrogate", 2, r"\ude00 is half of a character"),
    "half a character in a name": (rb'{"\\\udead": 1}', "json-surrogate", 4, r"\udead is half of a character"),
    "one level too deep": (b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1), "json-depth", DEPTH, TOO_DEEP),
    "5,000 levels": (b'{"a":' * 5000 + b"1" + b"}" * 5000, "json-depth", 5 * DEPTH, TOO_DEEP),
    "1,000,000 levels": (b"[" * 1_000_000, "json-depth", DEPTH, TOO_DEEP),
    "levels behind brackets in strings": (rb'["\"]]]",' * 600, "json-depth", 9 * DEPTH, TOO_DEEP),
}


@pytest.mark.parametrize(("data", "code", "offset", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_for_another_reason(data, code, offset, problem):
    error = refusal_of(parse, data)
    assert (error.code, error.offset) == (code, offset)
    assert error.problem == f"{problem} at line {error.line}, column {error.column} (byte {error.offset})"
    assert (error.line, error.column) == locate(data, offset)


def test_a_stack_that_is_nearly_full_is_no_crash():
    def deeper(n):
        return deeper(n - 1) if n else refusal_of(parse, b"[" * DEPTH + b"]" * DEPTH).code

    if sys.version_info < (3, 12):  # later ones do not count frames of Python here
        assert deeper(sys.getrecursionlimit() - 300) == "json-depth"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(json_values, st.sampled_from([None, 2]), st.booleans())
def test_valid_json_is_read_as_python_reads_it(value, indent, ascii_only):
    data = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert repr(parse(data)) == repr(json.loads(data))


@pytest.mark.slow
@given(json_values, st.data())
def test_damaged_json_is_read_or_refused_with_a_place_within_it(value, data):
    whole = json.dumps(value, ensure_ascii=False).encode()
    at = data.draw(st.integers(0, len(whole)))
    damaged = whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + data.draw(st.integers(0, 3)) :]
    error = refusal_of(parse, damaged)
    assert error is None or 0 <= error.offset <= len(damaged)
    assert error is None or (error.line, error.column) == locate(damaged, error.offset)


@given(st.text(max_size=60), st.data())
def test_a_place_is_told_in_lines_and_characters(text, data):
    encoded = text.encode()
    at = data.draw(st.integers(0, len(text)))
    before = text[:at]
    assert locate(encoded, len(before.encode())) == (before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1)


@given(st.text(st.characters(codec="utf-8", min_codepoint=0x80), min_size=1), st.data())
def test_every_byte_of_a_character_is_at_that_character(text, data):
    encoded = text.encode()
    offset = data.draw(st.integers(0, len(encoded) - 1))
    start = offset
    while 0x80 <= encoded[start] < 0xC0:
        start -= 1
    assert locate(encoded, offset) == locate(encoded, start)


@pytest.mark.parametrize(("offset", "place"), [(-5, (1, 1)), (0, (1, 1)), (4, (2, 2)), (99, (2, 2))])
def test_a_place_outside_is_the_nearest_end(offset, place):
    assert locate(b"ab\nc", offset) == place


@given(st.binary(max_size=40), st.integers(-5, 50))
def test_any_bytes_have_places(data, offset):
    line, column = locate(data, offset)
    assert 1 <= line <= data.count(b"\n") + 1
    assert column >= 1
