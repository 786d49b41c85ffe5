"""A wrong argument of an enqueue is an error before anything runs: for mypy and for pyright."""

import json
import re
import subprocess
import sys
from pathlib import Path

import mypy.api
import pytest

import redrive

SOURCE = Path(redrive.__file__).parents[1]
TEXT = Path(__file__).with_name("given.txt").read_text()  # no module: it would be wrong for everybody's checker
WRONG = {number for number, line in enumerate(TEXT.splitlines(), 1) if "# wrong: " in line}


@pytest.fixture
def given(tmp_path):
    path = tmp_path / "given.py"
    path.write_text(TEXT)
    return path


@pytest.mark.slow
def test_mypy(given, tmp_path, monkeypatch):
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    monkeypatch.setenv("MYPYPATH", str(SOURCE))
    said, failed, _ = mypy.api.run([*options, str(given)])
    assert not failed, failed
    assert {int(line) for line in re.findall(r"given\.py:(\d+): error", said)} == WRONG, said


@pytest.mark.slow
def test_pyright(given, tmp_path):
    """basedpyright is pyright with its JavaScript inside the wheel; ``standard`` are pyright's own rules."""
    config = {
        "include": [str(given)],
        "typeCheckingMode": "standard",
        "extraPaths": [str(SOURCE)],
        "reportUnusedVariable": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "-p",
        str(tmp_path),
        "--pythonpath",
        sys.executable,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    said = json.loads(done.stdout)["generalDiagnostics"]
    wrong = {one["range"]["start"]["line"] + 1 for one in said if one["severity"] == "error"}
    assert wrong == WRONG, [one["message"] for one in said]


def test_the_types_are_shipped():
    assert (Path(redrive.__file__).parent / "py.typed").exists()
