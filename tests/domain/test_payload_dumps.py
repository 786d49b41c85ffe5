"""Writing payloads: what comes back equal, or an error that names the value."""

import math
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.payload import DEPTH, dumps, parse
from tests.domain.given import refusal_of


def nested(levels, value=None):
    for _ in range(levels):
        value = [value]
    return value


def circle():
    one: dict[str, object] = {}
    one["self"] = [one]
    return one


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, b"null"),
        ({"b": [1, 2.5, True], "a": "ü\x00\n"}, '{"b":[1,2.5,true],"a":"ü\\u0000\\n"}'.encode()),
        (2**63, b"9223372036854775808"),
        (-0.0, b"-0.0"),
        (5e-324, b"5e-324"),
        ("</script>\u2028", '"</script>\u2028"'.encode()),
    ],
)
def test_what_is_written(value, data):
    assert dumps(value) == data


DEEP = "is nested too deeply, or contains itself"
REFUSED = {
    "nan": (math.nan, "payload", "json-number", "nan is not JSON"),
    "inf": ({"body": {"items": [1, 2, 3, math.inf]}}, "body.items[3]", "json-number", "inf is not JSON"),
    "-inf": ([{"a": -math.inf}], "[0].a", "json-number", "-inf is not JSON"),
    "nan as a name": ({math.nan: 1}, "nan", "json-number", "nan is not JSON"),
    "4,301 digits": ({"n": 10**4300}, "n", "json-number", "the integer has too many digits"),
    "5,000 digits": ({"n": -(10**5000)}, "n", "json-number", "the integer has too many digits"),
    "half a character": ({"s": ["ok", "\ud800"]}, "s[1]", "json-surrogate", "half of a character (a lone surrogate)"),
    "half a name": ({"\udead": 1}, "\\udead", "json-surrogate", "half of a character (a lone surrogate)"),
    "a time": ({"at": datetime(2026, 5, 4, tzinfo=UTC)}, "at", "json-type", "a value of type datetime is not JSON"),
    "a decimal": ({"price": Decimal("1.10")}, "price", "json-type", "a value of type Decimal is not JSON"),
    "bytes": ({"raw": b"x"}, "raw", "json-type", "a value of type bytes is not JSON"),
    "a set": ({"set": {1}}, "set", "json-type", "a value of type set is not JSON"),
    "a tuple as a name": ({"a": {(1, 2): 3}}, "a.(1, 2)", "json-type", "a tuple as a name is not JSON"),
    "the first of two": ({"a": 1, "b": math.nan, "c": math.inf}, "b", "json-number", "nan is not JSON"),
    "one level too deep": (nested(DEPTH + 1), "[0]" * DEPTH, "json-depth", DEEP),
    "100,000 levels": (nested(100_000), "[0]" * DEPTH, "json-depth", DEEP),
    "a circle": (circle(), ".".join(["self[0]"] * (DEPTH // 2)), "json-depth", DEEP),
}


@pytest.mark.parametrize(("value", "field", "code", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_by_its_path(value, field, code, problem):
    error = refusal_of(dumps, value)
    assert (error.field, error.code, error.problem) == (field, code, problem)


def test_as_deep_as_can_be_read():
    data = dumps(nested(DEPTH))
    assert data == b"[" * DEPTH + b"null" + b"]" * DEPTH
    assert dumps(parse(data)) == data


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(json_values)
def test_what_was_written_comes_back_to_the_bit(value):
    assert repr(parse(dumps(value))) == repr(value)


@pytest.mark.slow
@given(json_values)
def test_writing_is_stable(value):
    assert dumps(parse(dumps(value))) == dumps(value)


anything = st.recursive(
    st.none() | st.floats() | st.text(st.characters() | st.characters(categories=["Cs"])) | st.binary() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.floats() | st.tuples(st.none()), inner),
)


@pytest.mark.slow
@given(anything)
def test_anything_is_written_or_refused_by_name(value):
    error = refusal_of(dumps, value)
    if error is None:
        parse(dumps(value))
    else:
        assert error.field
        assert error.code in {"json-number", "json-surrogate", "json-type"}
        str(error).encode()
