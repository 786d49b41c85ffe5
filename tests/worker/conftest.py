"""A shop on an empty, migrated database, one test after the other on SQLite and PostgreSQL."""

from collections.abc import Iterator

import pytest

from redrive.store.sql.store import open_store
from redrive.worker import moments

from .shop import Shop


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    store = open_store(database_url)
    shop = Shop(store)
    yield shop
    assert shop.kept()
    store.close()


@pytest.fixture
def lite_shop(sqlite_url: str) -> Iterator[Shop]:
    """For what does not depend on the database."""
    store = open_store(sqlite_url)
    shop = Shop(store)
    yield shop
    assert shop.kept()
    store.close()


@pytest.fixture(autouse=True)
def no_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "hook", None)
