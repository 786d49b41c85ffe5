"""What the fault tests share: a nursery of worker processes, and a place for reports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.nursery import Nursery
from tests.faults.scene import Scene


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def scene(database_url: str, nursery: Nursery, tmp_path: Path) -> Iterator[Scene]:
    """Either database."""
    with Scene(database_url, nursery, tmp_path) as scene:
        yield scene
