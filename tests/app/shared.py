"""A database for all tests of a module: for tests that only add and look at their own jobs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import Databases


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def shared_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")
        yield f"sqlite:///{shutil.copy(template, tmp_path_factory.mktemp('shared') / 'redrive.db')}"
        return
    databases: Databases = request.getfixturevalue("databases")
    name = databases.create(template=request.getfixturevalue("postgres_template"))
    yield databases.url(name)
    databases.drop(name)
