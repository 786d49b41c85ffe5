from collections.abc import Iterator

import pytest

from redrive import Redrive
from redrive.ops.service import Desk
from tests.app.shared import shared_url

__all__ = ["shared_url"]


@pytest.fixture
def app(database_url: str) -> Iterator[Redrive]:
    made = Redrive(database_url, retry={"base": 0, "jitter": 0}, worker={"poll": 0.05})
    yield made
    made.close()


@pytest.fixture
def desk(app: Redrive) -> Desk:
    return app.desk("ann@example.com")


@pytest.fixture
def lite(sqlite_url: str) -> Iterator[Redrive]:
    """For what has nothing to do with the database behind it."""
    made = Redrive(sqlite_url)
    yield made
    made.close()
