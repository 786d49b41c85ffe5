"""How a list is asked for: a filter is refused, never widened."""

from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest

from redrive.domain.errors import InvalidField
from redrive.domain.failures import Reason
from redrive.domain.filters import DEFAULT_SORT, PAGE_MAX, SORTS, JobFilter, PageRequest
from redrive.domain.states import HotState, Place
from tests.domain.given import NOW

ANYWHERE: dict[str, Any] = {
    "queue": "default",
    "type": "email.send.v1",
    "key": "k",
    "operation": UUID(int=1),
    "life_min": 2,
    "cancelled": True,
}
BOUND: dict[Place, dict[str, Any]] = {
    Place.HOT: {"state": HotState.PENDING},
    Place.ARCHIVE: {"finished_after": NOW, "finished_before": NOW},
    Place.DLQ: {
        "reason": Reason.ZOMBIE,
        "incident": "0123456789abcdef",
        "tag": "signup",
        "label": ("customer", "42"),
        "q": "smtp",
        "failed_after": NOW,
        "failed_before": NOW,
    },
}


def test_every_field_is_in_these_tables():
    assert {f.name for f in fields(JobFilter)} == {
        "place",
        *ANYWHERE,
        *(name for place in BOUND.values() for name in place),
    }


@pytest.mark.parametrize("place", Place)
def test_a_filter_may_ask_for_all_that_its_place_knows(place):
    asked = JobFilter(place, **ANYWHERE, **BOUND[place])
    assert asked.check() is asked


@pytest.mark.parametrize(
    ("place", "home", "field"),
    [(place, home, field) for place in Place for home in Place if home is not place for field in BOUND[home]],
)
def test_a_field_that_goes_with_another_place_is_refused(place, home, field):
    with pytest.raises(InvalidField) as refused:
        JobFilter(place, **{field: BOUND[home][field]}).check()
    assert refused.value.field == field
    assert str(refused.value) == f"{field}: does not go with place {place}; expected place {home}"


@pytest.mark.parametrize(
    ("place", "field"),
    [
        (Place.DLQ, "failed_after"),
        (Place.DLQ, "failed_before"),
        (Place.ARCHIVE, "finished_after"),
        (Place.ARCHIVE, "finished_before"),
    ],
)
def test_a_time_without_a_zone_is_refused(place, field):
    asked: dict[str, Any] = {field: NOW.replace(tzinfo=None)}
    with pytest.raises(InvalidField, match="has no time zone") as refused:
        JobFilter(place, **asked).check()
    assert refused.value.field == field


def test_the_default_is_everything_dead_but_cancelled():
    plain = JobFilter()
    assert plain.place is Place.DLQ
    assert not plain.cancelled


@pytest.mark.parametrize("limit", [1, 50, PAGE_MAX])
def test_pages(limit):
    assert PageRequest(limit).limit == limit


@pytest.mark.parametrize("limit", [0, -1, PAGE_MAX + 1, 10.0, True, "50", None])
def test_no_pages(limit):
    with pytest.raises(InvalidField) as refused:
        PageRequest(limit)
    assert refused.value.field == "limit"


def test_every_place_is_sorted_by_something_it_can_be_sorted_by():
    assert set(DEFAULT_SORT) == set(SORTS) == set(Place)
    assert all(DEFAULT_SORT[place] in SORTS[place] for place in Place)
