"""Payloads and parameters, both ways: what was enqueued is what the handler gets, or it is refused by name."""

import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import math
import pathlib
import uuid
import zoneinfo
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, computed_field, field_validator, model_validator
from typing_extensions import TypedDict

from redrive.domain.errors import InvalidField, PayloadError
from redrive.worker.binding import Binding
from redrive.worker.context import JobContext

from .make import shown

NEPAL = dt.timezone(dt.timedelta(hours=5, minutes=45))


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: float


class Address(BaseModel):
    street: str
    since: dt.date | None = None


class Order(BaseModel):
    number: int
    total: decimal.Decimal
    addresses: list[Address] = []


@dataclasses.dataclass
class Parcel:
    weight: float
    label: bytes = b""
    route: list[Point] = dataclasses.field(default_factory=list)


class Options(TypedDict):
    fast: bool


def taking(hint: Any) -> Binding:
    def handle(value): ...

    handle.__annotations__ = {"value": hint}
    return Binding(handle)


COMES_BACK = [
    (dt.datetime, dt.datetime(2026, 3, 1, 4, 5, 6, 123456, tzinfo=NEPAL)),
    (dt.datetime, dt.datetime(2026, 3, 1, 4, 5, 6, 7)),  # noqa: DTZ001
    (dt.datetime, dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1)),
    (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    (dt.date, dt.date(2026, 2, 28)),
    (dt.time, dt.time(23, 59, 59, 999999)),
    (dt.timedelta, dt.timedelta(days=-3, microseconds=1)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (uuid.UUID, uuid.UUID("018f0000-0000-7000-8000-0123456789ab")),
    (bytes, bytes(range(256))),
    (bytes, b""),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (int, 10**40),
    (int, -(2**63) - 1),
    (float, 0.1),
    (float, 5e-324),
    (float, -0.0),
    (bool, True),
    (str, "Здравствуй, \u0000 \U0001f600 <b>\\u0041"),
    (type(None), None),
    (int | None, None),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset("a")),
    (list[dt.date], [dt.date(2026, 1, 1)]),
    (dict[str, list[int]], {"a": [1], "": []}),
    (dict[int, str], {1: "a", 2: "b"}),
    (dict[dt.date, int], {dt.date(2026, 1, 1): 1}),
    (dict[str, bytes], {"a": b"\xff"}),
    (Literal["a", "b"], "b"),
    (int | str, "3"),
    (float | int, 3),
    (Any, {"a": [1, 2.5, None, True, "x"], "b": {}}),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("10.0.0.1")),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("/tmp/x")),
    (Point, Point(1, 2.5)),
    (Options, {"fast": True}),
    (list[Order], [Order(number=1, total=decimal.Decimal("0.00"), addresses=[Address(street="x")])]),
    (list[Parcel], [Parcel(1.5, b"\xff", [Point(1, 2.0)])]),
]


@pytest.mark.parametrize(("hint", "value"), COMES_BACK, ids=shown)
def test_a_value_comes_back_equal_in_value_and_type(hint, value):
    binding = taking(hint)
    back = binding.bind(binding.dump((), {"value": value}))["value"]
    assert type(back) is type(value)
    assert repr(back) == repr(value) if not isinstance(value, dt.datetime | set | frozenset) else back is not None
    if isinstance(value, dt.datetime):
        assert back.replace(tzinfo=None) == value.replace(tzinfo=None)
        assert back.utcoffset() == value.utcoffset()
    else:
        assert back == value


class Base(BaseModel):
    x: int


class Derived(Base):
    y: int = 0


REFUSED = [
    (float, math.nan, "nan is not JSON"),
    (float, math.inf, "inf is not JSON"),
    (list[float], [1.0, -math.inf], "value"),
    (Any, math.nan, "nan is not JSON"),
    (Any, [math.nan], "come back"),
    (Any, (1, 2), "come back"),
    (Any, dt.date(2026, 1, 1), "come back"),
    (Any, {1: "a"}, "come back"),
    (Any, object(), "cannot be written"),
    (int, True, "would come back as 1"),
    (int, "3", "valid integer"),
    (int, 3.0, "valid integer"),
    (str, 3, "valid string"),
    (str, "\ud800", "cannot be written"),
    (str, None, "valid string"),
    (int, Level.HIGH, "come back"),
    (float, 2**63 + 1, "come back"),
    (list[int], (1, 2), "come back"),
    (Sequence[int], (1, 2), "come back"),
    (tuple[int, ...], [1, 2], "come back"),
    (set[int], {True}, "expected set[int]"),
    (dt.date, dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC), "value"),
    (decimal.Decimal, 1.1, "come back"),
    (dt.datetime, dt.datetime(2026, 10, 25, 2, 30, fold=1), "come back"),  # noqa: DTZ001
    (list[Base], [Derived(x=1, y=2)], "come back"),
    (Options, {"fast": True, "more": 1}, "more"),
]


@pytest.mark.parametrize(("hint", "value", "said"), REFUSED, ids=shown)
def test_what_would_not_come_back_equal_is_refused_by_name(hint, value, said):
    with pytest.raises(InvalidField) as refused:
        taking(hint).dump((), {"value": value})
    assert refused.value.field == "value"
    assert said in str(refused.value)


def test_the_parameter_at_fault_is_named_among_others():
    def handle(a: str, b: str, c: float): ...

    for bad in ({"a": 1}, {"b": "\ud800"}, {"c": math.nan}, {"c": "x"}):
        with pytest.raises(InvalidField) as refused:
            Binding(handle).dump((), {"a": "", "b": "", "c": 1.0} | bad)
        assert refused.value.field == next(iter(bad))


def test_an_int_may_stand_for_the_equal_float():
    binding = taking(float)
    assert binding.dump((), {"value": 3}) == b'{"value":3.0}'


def test_wrong_types_are_fatal_with_the_field_named():
    def handle(count: int, when: dt.datetime, lines: list[Parcel]): ...

    good = b'"when":"2026-01-01T00:00:00Z"'
    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"count":"3",%s,"lines":[]}' % good)
    assert refused.value.field == "payload.count"
    assert "found a string" in str(refused.value)
    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"count":3,%s,"lines":[{"weight":1.5},{"weight":"heavy"}]}' % good)
    assert refused.value.field == "payload.lines.1.weight"
    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"count":null,"when":5}')
    text = str(refused.value)
    assert all(
        part in text for part in ("3 problems", "payload.count", "payload.when", "payload.lines: Field required")
    )


def test_many_problems_are_not_all_shown():
    with pytest.raises(PayloadError) as refused:
        taking(list[int]).bind(b'{"value":[%s]}' % b",".join([b'"x"'] * 50))
    assert "50 problems" in str(refused.value)
    assert len(str(refused.value)) < 600


def test_text_stands_for_what_json_has_no_word_for_but_not_for_numbers():
    assert taking(decimal.Decimal).bind(b'{"value":"1.10"}') == {"value": decimal.Decimal("1.10")}
    assert taking(bytes).bind(b'{"value":"/w=="}') == {"value": b"\xff"}
    with pytest.raises(PayloadError):
        taking(float).bind(b'{"value":"1.5"}')
    with pytest.raises(PayloadError):
        taking(bool).bind(b'{"value":1}')


def test_strictness_can_be_lifted_for_one_parameter():
    def handle(count: Annotated[int, Field(strict=False)], other: int): ...

    assert Binding(handle).bind(b'{"count":"3","other":4}') == {"count": 3, "other": 4}


def test_a_model_keeps_its_own_configuration():
    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)
        count: int

    class Lax(BaseModel):
        count: int

    def handle(lax: list[Lax], strict: list[Strict]): ...

    bound = Binding(handle).bind(b'{"lax":[{"count":"3"}],"strict":[{"count":3}]}')
    assert bound["lax"] == [Lax(count=3)]
    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"lax":[],"strict":[{"count":"3"}]}')
    assert refused.value.field == "payload.strict.0.count"


# -- names -------------------------------------------------------------------------------------------------------------


def test_parameters_are_keys_and_defaults_may_be_left_out():
    def handle(ctx: JobContext, to: str, copies: int = 1, *, note: str | None = None): ...

    binding = Binding(handle)
    assert binding.context == "ctx"
    assert binding.bind(b'{"to":"x"}') == {"to": "x"}
    assert binding.bind(b'{"note":null,"to":"x","copies":2}') == {"note": None, "to": "x", "copies": 2}
    assert binding.dump(("x",), {"note": "n"}) == b'{"to":"x","note":"n"}'


def test_a_missing_or_unknown_key_is_fatal_and_named():
    def handle(to: str, subject: str): ...

    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"to":"x"}')
    assert refused.value.field == "payload.subject"
    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"to":"x","subject":"y","Subject":"y"}')
    assert refused.value.field == "payload.Subject"
    assert "subject, to" in str(refused.value)


def test_further_names_are_taken_by_kwargs_and_checked():
    def handle(to: str, **more: int): ...

    binding = Binding(handle)
    assert binding.bind(b'{"to":"x","a":1,"b":2}') == {"to": "x", "a": 1, "b": 2}
    with pytest.raises(PayloadError) as refused:
        binding.bind(b'{"to":"x","a":"1"}')
    assert refused.value.field == "payload.a"
    assert binding.bind(binding.dump((), {"to": "x", "a": 10**30})) == {"to": "x", "a": 10**30}
    with pytest.raises(InvalidField) as bad:
        binding.dump((), {"to": "x", "a": 1.5})
    assert bad.value.field == "a"


def test_the_contexts_name_is_no_key():
    def handle(ctx: JobContext, **more: Any): ...

    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"ctx":1}')
    assert refused.value.field == "payload.ctx"


def test_a_call_with_wrong_names_is_refused_before_anything_is_stored():
    def handle(to: str, subject: str = ""): ...

    binding = Binding(handle)
    for args, kwargs, field in (
        ((), {}, "to"),
        ((), {"to": "x", "subjet": ""}, "subjet"),
        (("x", "y", "z"), {}, "arguments"),
        (("x",), {"to": "y"}, "to"),
    ):
        with pytest.raises(InvalidField) as refused:
            binding.dump(args, kwargs)
        assert refused.value.field == field


def test_an_alias_is_the_key():
    def handle(sender: Annotated[str, Field(alias="from")]): ...

    binding = Binding(handle)
    assert binding.dump((), {"sender": "x"}) == b'{"from":"x"}'
    assert binding.bind(b'{"from":"x"}') == {"sender": "x"}


# -- one record takes it all -------------------------------------------------------------------------------------------


def test_a_single_model_or_dataclass_takes_the_whole_object():
    def model(ctx: JobContext, order: Order): ...

    def plain(*, parcel: Parcel): ...

    order = Order(number=1, total=decimal.Decimal("1.10"), addresses=[Address(street="x", since=dt.date(2026, 1, 1))])
    data = Binding(model).dump((order,), {})
    assert data == b'{"number":1,"total":"1.10","addresses":[{"street":"x","since":"2026-01-01"}]}'
    assert Binding(model).bind(data) == {"order": order}
    parcel = Parcel(1.5, b"\xff\x00", [Point(1, 2.0)])
    data = Binding(plain).dump((), {"parcel": parcel})
    assert data.startswith(b'{"weight":1.5')
    assert Binding(plain).bind(data) == {"parcel": parcel}


def test_a_record_beside_others_or_with_a_default_is_an_ordinary_parameter():
    def two(order: Order, n: int): ...

    def optional(order: Order = Order(number=0, total=decimal.Decimal(0))): ...  # noqa: B008

    assert set(Binding(two).bind(b'{"order":{"number":1,"total":"1"},"n":2}')) == {"order", "n"}
    assert Binding(optional).bind(b"{}") == {}
    assert Binding(optional).bind(b'{"order":{"number":1,"total":"1"}}')["order"].number == 1


@pytest.mark.parametrize("payload", [b'{"number":1,"total":"1"},{"number":1,"total":"1"}', b"", b"null", b"[]", b'"x"'])
def test_a_record_is_bound_to_one_object_and_nothing_else(payload):
    def handle(order: Order): ...

    with pytest.raises(PayloadError):
        Binding(handle).bind(payload)


def test_unknown_keys_of_a_record_are_refused_unless_it_says_otherwise():
    class Open(BaseModel):
        model_config = ConfigDict(extra="ignore")
        x: int

    class Aliased(BaseModel):
        model_config = ConfigDict(populate_by_name=True)
        x: int = Field(alias="X")
        y: int = Field(default=0, validation_alias=AliasChoices("why", "Y"))

    class Upgraded(BaseModel):
        x: int

        @model_validator(mode="before")
        @classmethod
        def old_name(cls, data: Any) -> Any:
            return {"x": data.get("ex", data.get("x"))}

    def unsaid(order: Order): ...
    def plain(parcel: Parcel): ...
    def open_(it: Open): ...
    def aliased(it: Aliased): ...
    def upgraded(it: Upgraded): ...

    for function, payload, field in (
        (unsaid, b'{"number":1,"total":"1","totl":2}', "payload.totl"),
        (plain, b'{"weight":1.5,"wight":2}', "payload.wight"),
        (aliased, b'{"X":1,"z":2}', "payload.z"),
    ):
        with pytest.raises(PayloadError) as refused:
            Binding(function).bind(payload)
        assert refused.value.field == field
    assert Binding(open_).bind(b'{"x":1,"z":2}')["it"].x == 1
    assert Binding(aliased).bind(b'{"x":1,"why":2}')["it"] == Aliased(x=1, why=2)
    assert Binding(aliased).bind(b'{"X":1,"Y":2}')["it"].y == 2
    assert Binding(upgraded).bind(b'{"ex":1}')["it"].x == 1


def test_computed_fields_do_not_stand_in_the_way():
    class Square(BaseModel):
        side: int

        @computed_field
        def area(self) -> int:
            return self.side**2

    def handle(square: Square): ...

    binding = Binding(handle)
    assert binding.bind(binding.dump((Square(side=3),), {}))["square"].area == 9


def test_a_secret_is_refused_rather_than_masked():
    from pydantic import SecretStr

    with pytest.raises(InvalidField):
        taking(SecretStr).dump((), {"value": SecretStr("x")})


# -- payloads that are no JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "line", "column"),
    [
        (b'{"to": "a"\n "subject": "b"}', 2, 2),
        (b"", 1, 1),
        (b"\xef\xbb\xbf{}", 1, 1),
        (b'{"to": "\xff"}', 1, 9),
        (b'{"to": NaN}', 1, 8),
        (b'{"to": "\\ud800"}', 1, 9),
        (b'{"to": 1} x', 1, 11),
    ],
)
def test_broken_json_is_refused_with_line_and_column(payload, line, column):
    with pytest.raises(PayloadError) as refused:
        taking(str).bind(payload)
    assert (refused.value.line, refused.value.column) == (line, column)


def test_the_words_nan_and_infinity_are_harmless_in_text():
    assert taking(str).bind(b'{"value":"NaN to Infinity"}') == {"value": "NaN to Infinity"}


def test_of_duplicate_keys_the_last_is_bound():
    assert taking(int).bind(b'{"value":1,"value":2}') == {"value": 2}


def test_deep_nesting_is_refused_and_not_a_crash():
    with pytest.raises(PayloadError):
        taking(Any).bind(b'{"value":' + b"[" * 300 + b"]" * 300 + b"}")
    with pytest.raises(PayloadError):
        taking(Any).bind(b"[" * 100_000)


def test_a_payload_that_is_not_json_by_its_type_is_not_bound():
    assert taking(int).bind(b'{"value":1}', "application/vnd.x+json; charset=utf-8") == {"value": 1}
    with pytest.raises(PayloadError) as refused:
        taking(int).bind(b'{"value":1}', "application/octet-stream")
    assert "application/octet-stream" in str(refused.value)


def test_whatever_a_validator_raises_is_a_binding_failure():
    class Broken(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def check(cls, value: int) -> int:
            return {0: 0}[value]

    def handle(it: Broken): ...

    assert Binding(handle).bind(b'{"x":0}')
    with pytest.raises(PayloadError) as refused:
        Binding(handle).bind(b'{"x":1}')
    assert "KeyError" in str(refused.value)


def test_binding_takes_the_payload_as_it_is():
    payload = b'{"value": [1,  2]}'
    bound = taking(list[int]).bind(payload)
    bound["value"].append("\ud800")
    assert taking(list[int]).bind(payload) == {"value": [1, 2]}


# -- schema ------------------------------------------------------------------------------------------------------------


def test_the_schema_describes_the_payload():
    def handle(ctx: JobContext, to: str, copies: int = 1): ...

    def whole(order: Order): ...

    schema = Binding(handle).schema()
    assert schema["required"] == ["to"]
    assert set(schema["properties"]) == {"to", "copies"}
    assert schema["additionalProperties"] is False
    assert set(Binding(whole).schema()["properties"]) == {"number", "total", "addresses"}
