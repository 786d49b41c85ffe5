"""The page about testing is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import redrive

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


@pytest.mark.slow
def test_the_examples_pass(tmp_path):
    shop, tests = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "redrive.testing.plugin", "-W", "error", "-o", "pythonpath=."]
    env = os.environ | {"PYTHONPATH": str(Path(redrive.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert "3 passed" in done.stdout, done.stdout + done.stderr
