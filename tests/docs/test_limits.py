"""What the page about limits shows is run, and its table of rates is computed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from redrive.domain.limits import parse_rate
from redrive.ops.insight import LONG, VERY_LONG
from tests.cli.command import run

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
((PYTHON,), (CONSOLE,)) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "console"))


def shown() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("queues", "show", "reports", "--json").text)
    return found


def test_the_example_and_its_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PYTHON, "limits.md", "exec"), scope)
    setting, *commands = [line.removeprefix("$ ") for line in CONSOLE.splitlines()]
    monkeypatch.setenv(*setting.removeprefix("export ").split("=", 1))
    said, states = {}, []
    for command in commands:
        program, *arguments = shlex.split(command)
        ran = run(*arguments)
        assert (program, ran.code) == ("redrive", 0), ran.said
        said[" ".join(arguments[:2])] = ran.text
        state = shown()
        states.append((state["paused"], state["max_running"], state["rate"]))
    limited = (False, 2, "100/min")
    paused = (True, 2, "100/min")
    assert states == [limited, limited, paused, paused, limited, (False, 2, None), (False, 2, None)]
    assert re.search(r"^max_running +2$", said["queues show"], re.MULTILINE)
    assert re.search(r"^reports +yes .* paused$", said["queues list"], re.MULTILINE)
    actions = [entry["action"] for entry in json.loads(run("audit", "list", "--json").text)]
    assert sorted(actions) == ["pause", "resume", "set-queue", "set-queue"]
    app = scope["app"]
    app.worker().run(burst=True)
    assert shown()["succeeded_total"] == 2
    app.close()


def test_the_table_of_rates_is_true():
    rows = re.findall(r"^\| `(\d+/\w+)` \| ([\d.]+) s \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for text, interval, burst in rows:
        rate = parse_rate(text)
        assert (f"{rate.interval:g}", str(rate.burst)) == (interval, burst)


def test_what_it_says_of_times():
    assert (LONG, VERY_LONG) == (60.0, 600.0)
    assert "wait for longer than a minute" in PAGE
    assert "has waited for ten minutes" in PAGE
