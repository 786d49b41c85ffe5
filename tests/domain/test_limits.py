"""Rates: how they are written, and that no stretch of time ever has more starts than they say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.errors import InvalidField
from redrive.domain.limits import MOST, Rate, check_running, parse_rate


@pytest.mark.parametrize(
    ("text", "rate", "stored"),
    [
        ("100/min", Rate(100, 60), "100/min"),
        (" 100 / Minute ", Rate(100, 60), "100/min"),
        ("7/s", Rate(7, 1), "7/s"),
        ("7/second", Rate(7, 1), "7/s"),
        ("5000/hour", Rate(5000, 3600), "5000/hour"),
        ("5000/h", Rate(5000, 3600), "5000/hour"),
        ("1/day", Rate(1, 86_400), "1/day"),
        ("1000000/s", Rate(MOST, 1), "1000000/s"),
    ],
)
def test_a_rate_is_read_and_written_in_one_way(text: str, rate: Rate, stored: str):
    assert parse_rate(text) == rate
    assert str(rate) == stored
    assert parse_rate(str(rate)) == rate


@pytest.mark.parametrize(
    "text", ["", "100", "100/", "/min", "0/min", "-1/s", "1.5/s", "1000001/s", "5/week", "5/min/s", "five/min", 5, None]
)
def test_what_is_no_rate_is_refused_with_an_example(text: object):
    with pytest.raises(InvalidField, match=r"^rate: .*; expected starts per time.*100/min") as refused:
        parse_rate(text)
    assert refused.value.field == "rate"


@pytest.mark.parametrize("number", [0, -1, MOST + 1, True, 1.0, "3", None])
def test_what_is_no_number_of_jobs_is_refused(number: object):
    with pytest.raises(InvalidField, match=r"^max_running"):
        check_running(number)
    assert check_running(1) == 1


def test_a_burst_is_what_is_due_in_a_second_and_at_least_one():
    assert [parse_rate(text).burst for text in ("100/min", "150/min", "1/day", "50/s")] == [1, 2, 1, 50]


def test_starts_are_spread_evenly():
    rate = parse_rate("60/min")
    assert rate.allowed(-1e9) == 1, "a long time without work is worth no more than the burst"
    ahead = rate.after(-5.0, 1)
    assert (ahead, rate.allowed(ahead), rate.wait(ahead)) == (1.0, 0, 1.0)
    assert (rate.allowed(ahead - 0.5), rate.wait(ahead - 0.5)) == (0, 0.5)
    assert (rate.allowed(ahead - 1.0), rate.wait(ahead - 1.0)) == (1, 0.0)


def test_a_clock_that_was_set_back_and_another_rate_cost_no_more_than_the_burst():
    rate = parse_rate("4/s")
    assert rate.wait(3600.0) == pytest.approx(0.25)
    assert rate.after(3600.0, 0) == pytest.approx(1.0)


@st.composite
def attempts(draw: st.DrawFn) -> tuple[Rate, list[tuple[float, int]]]:
    rate = Rate(draw(st.integers(1, 500)), draw(st.sampled_from([1, 60, 3600])))
    steps = st.tuples(st.floats(0, 4), st.integers(1, 40))
    return rate, [(step * rate.interval, wanted) for step, wanted in draw(st.lists(steps, max_size=60))]


@pytest.mark.slow
@given(attempts(), st.integers(1, 9))
def test_no_stretch_of_time_has_more_starts_than_burst_and_rate(
    given_: tuple[Rate, list[tuple[float, int]]], held: int
):
    rate, steps = given_
    now, tat, starts = 0.0, 0.0, list[tuple[float, int]]()
    for pause, wanted in steps:
        now += pause
        allowed = rate.allowed(tat - now)
        assert (allowed > 0) == (rate.wait(tat - now) == 0)
        assert (allowed > held) == (rate.wait(tat - now, held) == 0), "what others have is theirs"
        if number := min(wanted, allowed):
            tat = now + rate.after(tat - now, number)
            starts.append((now, number))
    for first, (began, _) in enumerate(starts):
        total = 0
        for moment, number in starts[first:]:
            total += number
            assert total <= rate.burst + math.ceil((moment - began) / rate.interval + 1e-3)


@given(st.integers(1, 500), st.sampled_from([1, 60, 3600]), st.integers(1, 100))
def test_whoever_takes_what_is_allowed_as_soon_as_it_is_gets_the_whole_rate(count: int, per: int, rounds: int):
    rate = Rate(count, per)
    now, tat, done = 0.0, 0.0, 0
    for _ in range(rounds):
        now += rate.wait(tat - now)
        number = rate.allowed(tat - now)
        assert number >= 1
        tat = now + rate.after(tat - now, number)
        done += number
    assert done >= rate.burst + math.floor(now / rate.interval - 1e-3)
