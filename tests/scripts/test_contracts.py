"""The import contracts catch what they forbid: each is shown one import that breaks it, and must say so."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORBIDDEN = {
    "The layers, top to bottom": {"worker/planted.py": "import redrive.ops"},
    "The domain is standard library only": {"domain/planted.py": "import pydantic"},
    "Callers see the port, never its SQL: only wiring names the store": {"ops/planted.py": "import redrive.store.sql"},
    "SQLAlchemy, Alembic and drivers stay in the store": {"worker/planted.py": "import psycopg"},
    "The terminal stays in the command line": {"ops/planted.py": "import rich"},
    "The cron library is behind one door": {"worker/planted.py": "import cronsim"},
    "No circles, at any depth": {"ops/one.py": "import redrive.ops.two", "ops/two.py": "import redrive.ops.one"},
}


def lint(folder: Path) -> str:
    env = os.environ | {"PYTHONPATH": str(folder / "src")}
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=False).stdout


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_has_its_case():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == FORBIDDEN.keys()


@pytest.mark.slow
@pytest.mark.parametrize("contract", FORBIDDEN)
def test_a_contract_catches_what_it_forbids(copy, contract):
    for path, line in FORBIDDEN[contract].items():
        (copy / "src/redrive" / path).write_text(line + "\n")
    assert f"{contract} BROKEN" in lint(copy)
