"""Somebody in the wrong folder is told so, and no database is made by looking."""

import pytest
from typer.testing import CliRunner

from redrive.domain.errors import ConfigError
from redrive.faces.cli.main import app
from redrive.store.sql.store import open_store

LOOKS = ["dlq list", "dlq show 0198c0de-0000-7000-8000-000000000000", "jobs list", "queues list", "types", "workers",
         "archive list", "audit list", "audit verify", "doctor", "db check",
         "queues pause default"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", LOOKS)
@pytest.mark.parametrize("url", ["sqlite:///nothere.db", "sqlite://"])
def test_a_command_that_only_looks_makes_no_database(words, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, [*words.split(), "--database", url])
    assert ran.exit_code == 1
    assert "no such file" in ran.output or "temporary" in ran.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["enqueue", "a.v1", "{}"], ["db", "upgrade"]])
def test_a_command_that_makes_work_makes_the_database(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [*words, "--database", "sqlite:///new.db"]).exit_code == 0
    assert (tmp_path / "new.db").exists()


def test_the_statements_of_an_upgrade_need_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["db", "sql", "--database", "sqlite:///nothere.db"])
    assert "CREATE TABLE jobs_hot" in ran.output
    assert not list(tmp_path.iterdir())


def test_options_in_a_sqlite_url_are_refused_rather_than_ignored():
    with pytest.raises(ConfigError, match="mode"):
        open_store("sqlite:///redrive.db?mode=ro")
