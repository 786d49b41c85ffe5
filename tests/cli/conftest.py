from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from redrive import Fatal, Redrive
from tests.app.shared import shared_url

__all__ = ["shared_url"]

SEED = b'{\n  "to": "user@example.com",\n  "subject": "Welcome!"\n  "body": "Hello, World!"\n}'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    return tmp_path


def make(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redrive]:
    """The database of the command line, through an application."""
    monkeypatch.setenv("REDRIVE_DATABASE_URL", url)
    made = Redrive(url, retry={"base": 0, "jitter": 0}, worker={"poll": 0.05})

    @made.job("email.send.v1", queue="notifications")
    def send(to: str, subject: str, body: str) -> str:
        if to == "refused":
            raise Fatal("550 no such \x1b[31muser\x1b[0m [bold]here[/bold]")
        return f"sent to {to}"

    yield made
    made.close()


@pytest.fixture
def app(database_url: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redrive]:
    yield from make(database_url, monkeypatch)


@pytest.fixture
def lite(sqlite_url: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redrive]:
    yield from make(sqlite_url, monkeypatch)


def die(app: Redrive, *payloads: bytes) -> list[UUID]:
    """Jobs that a worker buried: by default the one with the missing comma."""
    handles = [app.enqueue_raw("email.send.v1", payload) for payload in payloads or (SEED,)]
    app.worker().run(burst=True)
    return [handle.id for handle in handles]
