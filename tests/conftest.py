"""What every test can ask for: databases of its own, already migrated, and an environment without our settings."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

from scripts import services
from tests.databases import Databases

T = TypeVar("T")

# Examples are slow or quick with the machine's load; how long a test may take is pytest's timeout.
hypothesis.settings.register_profile("redrive", deadline=None)
hypothesis.settings.load_profile("redrive")


NEED_POSTGRES = {"postgres_server", "postgres_url", "new_postgres_url", "private_postgres"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if NEED_POSTGRES & set(getattr(item, "fixturenames", ())):
            item.add_marker("postgres")


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes what a test has measured; a run with ``-m soak`` ends with a page of it."""

    def say(text: str) -> None:
        request.node.user_properties.append(("report", text))

    return say


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The soak's one-page report, printed and written to the file that REDRIVE_TEST_REPORT names."""
    ended = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    soaked = sorted((one for one in ended if one.when == "call" and "soak" in one.keywords), key=_function)
    page = []
    for function, group in groupby(soaked, _function):
        runs = list(group)
        bad = sum(run.outcome == "failed" for run in runs)
        verdict = f"{bad} of {len(runs)} FAILED" if bad else f"{len(runs)} passed"
        page.append(f"{verdict:10} {sum(run.duration for run in runs):6.0f} s  {'::'.join(function)}")
        told = "\n".join(text for run in runs for name, text in run.user_properties if name == "report")
        page += [f"    {line}" for line in told.splitlines() if line.strip()]
    if page:
        terminalreporter.section("soak report")
        terminalreporter.write_line("\n".join(page))
        if name := os.environ.get("REDRIVE_TEST_REPORT"):
            Path(name).write_text("\n".join(page) + "\n")


def _function(test: pytest.TestReport) -> tuple[str, str]:
    return test.location[0], test.location[2].partition("[")[0]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("REDRIVE_") and not name.startswith("REDRIVE_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """The same test on both databases."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'redrive.db')}"


@pytest.fixture
def postgres_url(databases: Databases, postgres_template: str) -> Iterator[str]:
    from redrive.store.sql.tables import metadata  # slow to load, and not every test needs a database

    tables = [f"redrive.{table.name}" for table in metadata.sorted_tables]
    yield from map(databases.url, databases.lend(postgres_template, tables))


@pytest.fixture
def new_postgres_url(databases: Databases, postgres_template: str) -> Iterator[str]:
    """One that no test used before: for what the planner knows of its tables."""
    name = databases.create(template=postgres_template)
    yield databases.url(name)
    databases.drop(name)


@pytest.fixture
def private_postgres() -> Iterator[services.PrivatePostgres]:
    """A server of the test's own, running: to restart, crash and configure."""
    with started(services.PrivatePostgres) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server, not of a database of one's own: for tests about databases as such."""
    with started(services.postgres) as url:
        yield url


@contextlib.contextmanager
def started(service: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(service())
        except services.MissingError as missing:
            # A skip in CI would be a test that nobody runs.
            verdict = pytest.fail if os.environ.get("CI") else pytest.skip
            verdict(f"POSTGRESQL NOT TESTED: {missing}")
        yield server


@pytest.fixture(scope="session")
def databases(postgres_server: str) -> Iterator[Databases]:
    with contextlib.closing(Databases(postgres_server)) as databases:
        yield databases


@pytest.fixture(scope="session")
def postgres_template(databases: Databases) -> str:
    """Migrated once; a copy takes a fraction of the time of a migration."""
    name = databases.create()
    migrate(databases.url(name))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    template = tmp_path_factory.mktemp("sqlite") / "template.db"
    migrate(f"sqlite:///{template}")
    return template


def migrate(url: str) -> None:
    from redrive.store.sql.store import open_store  # slow to load, and not every test needs a database

    store = open_store(url)
    try:
        store.upgrade()
    finally:
        store.close()
