"""Failures that users of other job systems have reported, by their number in our list: each must not happen here."""

from collections.abc import Iterator

import pytest

from redrive import Redrive
from tests.faults.nursery import Nursery


@pytest.fixture
def app(database_url: str) -> Iterator[Redrive]:
    """An application on either database; the test declares its handlers."""
    app = Redrive(database_url, worker={"poll": 0.02})
    yield app
    offences = {found.promise: found.examples for found in app.store.promises() if found.number}
    app.close()
    assert offences == {}


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery
