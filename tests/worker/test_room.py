"""Shares of the pools when an operator says another total."""

import pytest

from redrive.worker.handler import Kind
from redrive.worker.room import share


@pytest.mark.parametrize(
    ("configured", "wanted", "expected"),
    [
        ({"async": 100, "thread": 20}, None, {"async": 100, "thread": 20}),
        ({"async": 100}, 7, {"async": 7}),
        ({"async": 100, "thread": 20}, 60, {"async": 50, "thread": 10}),
        ({"async": 100, "thread": 20}, 240, {"async": 200, "thread": 40}),
        ({"async": 100, "thread": 20}, 10, {"async": 8, "thread": 2}),
        ({"async": 100, "thread": 20}, 3, {"async": 2, "thread": 1}),
        ({"async": 1000, "thread": 1}, 4, {"async": 3, "thread": 1}),
        ({"async": 100, "thread": 20}, 1, {"async": 1, "thread": 1}),  # none may stand still
    ],
)
def test_a_total_is_shared_in_proportion(configured, wanted, expected):
    assert share(configured, wanted) == expected


def test_the_shares_add_up():
    configured: dict[Kind, int] = {"async": 100, "thread": 20}
    for wanted in range(2, 400):
        slots = share(configured, wanted)
        assert sum(slots.values()) == wanted, wanted
        assert min(slots.values()) >= 1
