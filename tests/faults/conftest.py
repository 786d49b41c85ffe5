"""What the fault tests share: a nursery of worker processes, and a place for reports."""

import os
from collections.abc import Callable, Iterator
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


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a report past the capture, and adds it to the file that REDRIVE_TEST_REPORT names."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="")
        if name := os.environ.get("REDRIVE_TEST_REPORT"):
            with Path(name).open("a") as file:
                file.write(f"{text}\n")

    return say
