"""The pytest plugin: ``redrive_kit``. With the ini option ``redrive_app = package.module:app`` also ``redrive_app``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redrive import Redrive

    from .kit import Kit


def pytest_addoption(parser: pytest.Parser) -> None:
    """The ini option."""
    parser.addini("redrive_app", "the Redrive application of the tests, such as package.module:app", default="")


@pytest.fixture
def redrive_app(request: pytest.FixtureRequest) -> Redrive:
    """The application under test: the one that the ini option ``redrive_app`` names. Override it to say another."""
    import importlib

    named = str(request.config.getini("redrive_app"))
    module, _, name = named.partition(":")
    if not module or not name:
        raise pytest.UsageError(
            "redrive_kit needs an application: write redrive_app = package.module:app into the pytest settings,"
            " or define a fixture redrive_app"
        )
    app: Redrive = getattr(importlib.import_module(module), name)
    return app


@pytest.fixture
def redrive_kit(redrive_app: Redrive) -> Iterator[Kit]:
    """A ``redrive.testing.Kit`` around the application: an empty database and a clock of the test's own."""
    from .kit import Kit

    with Kit(redrive_app) as kit:
        yield kit
