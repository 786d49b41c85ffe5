"""What the README shows is run: its application, its commands, its Python."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PYTHON, CONSOLE = (re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("python", "console"))


def commands(block: str) -> list[str]:
    return [line.removeprefix("$ ").split("   #")[0].strip() for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "app.py").write_text(PYTHON[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return tmp_path


def run(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_two_commands_are_words_of_make():
    words = [command.split()[1] for command in commands(CONSOLE[0])]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words == ["demo", "test"]
    assert set(words) <= set(targets)


@pytest.mark.slow
def test_the_first_job_runs_and_the_broken_one_is_repaired(folder, monkeypatch):
    accept, work = commands(CONSOLE[1])
    assert "pending" in run(accept)
    assert "mail to a@example.com: Hi" in run(work)

    setting, enqueue, work, dead, show, resurrect, again = commands(CONSOLE[2])
    name, url = setting.removeprefix("export ").split("=", 1)
    monkeypatch.setenv(name, url)
    run(enqueue)
    assert "mail to" not in run(work)
    listed = run(dead)
    (job_id,) = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", listed)
    assert "fatal" in listed
    shown = run(show.replace("ID", job_id))
    assert "line 1, column" in shown
    assert '"subject": "Hi", "body"' in shown
    assert job_id in run(resurrect.replace("ID", job_id))
    assert "mail to a@example.com: Hi" in run(again)
    assert "6 of 6 kept" in run("redrive doctor --promises")


def test_the_python_examples_run(folder):
    scope: dict[str, Any] = {}
    exec(compile(PYTHON[0].replace("redrive.db", "examples.db"), "app.py", "exec"), scope)
    dead = scope["app"].enqueue_raw("email.send.v1", b"{")
    scope["app"].desk("test").isolate(dead.id)
    engine = create_engine("sqlite:///examples.db")
    scope |= {"engine": engine, "job_id": dead.id, "repaired": {"to": "a@example.com", "subject": "", "body": ""}}
    exec(compile(PYTHON[1], "README.md", "exec"), scope)
    assert [scope["handle"].status(), scope["job"].head.spot, dead.status()] == ["scheduled", "dlq", "pending"]
    engine.dispose()
    scope["app"].close()


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
