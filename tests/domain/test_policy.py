"""Budget and waits of a type."""

from datetime import timedelta
from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.errors import InvalidField
from redrive.domain.policy import LONGEST, MOST_ATTEMPTS, RetryPolicy


def test_the_defaults_of_the_design():
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.base, policy.factor) == (3, 3, 2)
    assert (policy.cap, policy.jitter, policy.max_age) == (3600, 1, 86_400)


@pytest.mark.parametrize(
    ("charged", "jitter", "waits"),
    [
        (0, 0.0, 3),  # there is no wait before the first attempt, but a wait all the same
        (1, 0.0, 3),
        (2, 0.0, 6),
        (3, 0.0, 12),
        (3, 0.5, 12.5),
        (11, 0.0, 3072),
        (12, 0.0, 3600),
        (12, 1.0, 3600),
    ],
)
def test_waits_double_up_to_an_hour(charged, jitter, waits):
    assert RetryPolicy().delay(charged, jitter) == waits


def test_the_cap_is_a_true_cap_also_for_jitter():
    assert RetryPolicy(base=9.5, cap=10, jitter=4).delay(1, 1.0) == 10


def test_durations_are_seconds_or_timedelta():
    spelled = RetryPolicy(
        base=timedelta(seconds=3), cap=timedelta(hours=1), jitter=timedelta(seconds=1), max_age=timedelta(days=1)
    )
    assert spelled.jitter_seconds == 1.0
    for charged in range(1, 20):
        assert spelled.delay(charged, 0.3) == RetryPolicy().delay(charged, 0.3)
    assert not spelled.outlives(86_400.0)
    assert spelled.outlives(86_400.001)


@pytest.mark.parametrize(("age", "late"), [(-5, False), (0, False), (100, False), (100.001, True), (inf, True)])
def test_the_lifetime_ends_after_its_last_moment(age, late):
    assert RetryPolicy(max_age=100).outlives(age) is late


@pytest.mark.parametrize("cap", [3600, LONGEST])
@pytest.mark.parametrize("factor", [5, 5.0, 1000])
def test_two_thousand_failures_still_have_a_wait(cap, factor):
    policy = RetryPolicy(max_attempts=MOST_ATTEMPTS, base=5, factor=factor, cap=cap)
    waits = [policy.delay(charged, 1.0) for charged in range(1, 2001)]
    assert waits == sorted(waits)
    assert waits[0] == 6
    assert waits[-1] == cap
    assert policy.delay(MOST_ATTEMPTS, 1.0) == cap


def test_no_base_is_no_wait_however_often():
    assert [RetryPolicy(base=0, jitter=2).delay(charged, 0.5) for charged in (1, 2, 5000)] == [1, 1, 1]


@given(
    policy=st.builds(
        RetryPolicy,
        base=st.floats(0, LONGEST),
        factor=st.floats(1, 1000),
        cap=st.floats(0, LONGEST),
        jitter=st.floats(0, LONGEST),
    ),
    charged=st.integers(0, MOST_ATTEMPTS),
    jitter=st.floats(0, 1),
)
def test_any_wait_is_finite_and_within_the_cap(policy, charged, jitter):
    wait = policy.delay(charged, jitter)
    assert isfinite(wait)
    assert 0 <= wait <= policy.cap
    assert policy.delay(charged, 0.0) <= wait


WHOLE = "a whole number from 0 to 1000000"
FACTOR = "a number from 1 to 1000"
DURATION = "seconds or a timedelta, from 0 to a century"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_attempts", -1, WHOLE),
        ("max_attempts", 1_000_001, WHOLE),
        ("max_attempts", 3.0, WHOLE),
        ("max_attempts", True, WHOLE),
        ("max_attempts", "3", WHOLE),
        ("max_attempts", None, WHOLE),
        ("factor", 0.99, FACTOR),
        ("factor", 1001, FACTOR),
        ("factor", nan, FACTOR),
        ("factor", inf, FACTOR),
        ("factor", True, FACTOR),
        ("factor", "2", FACTOR),
        *[
            (field, value, DURATION)
            for field in ("base", "cap", "jitter", "max_age")
            for value in (-0.001, nan, inf, LONGEST * 2, 10**400, True, "5", None, timedelta(seconds=-1), timedelta.max)
        ],
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value, expected):
    with pytest.raises(InvalidField) as refused:
        RetryPolicy(**{field: value})
    assert (refused.value.field, refused.value.expected) == (field, expected)
    assert refused.value.problem == f"{value!r} is not accepted"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("max_attempts", value) for value in (0, 1, 25, MOST_ATTEMPTS)],
        *[("factor", value) for value in (1, 1.5, 1000)],
        *[(field, value) for field in ("base", "cap", "jitter", "max_age") for value in (0, 0.5, LONGEST, timedelta())],
    ],
)
def test_a_value_at_the_edge_is_accepted(field, value):
    assert getattr(RetryPolicy(**{field: value}), field) == value
