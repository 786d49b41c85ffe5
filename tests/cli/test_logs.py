"""What a worker writes to the terminal cannot steer it, and shows no local variables."""

import subprocess
import sys
from pathlib import Path

import pytest

from redrive import Redrive

APP = """
from redrive import Redrive
app = Redrive("sqlite:///jobs.db")

@app.job("loud.v1")
async def loud(secret: str) -> None:
    raise ValueError("\\x1b]0;owned\\x07\\x1b[31mred")
"""


@pytest.mark.slow
def test_a_dying_jobs_message_is_shown_and_not_obeyed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    app = Redrive("sqlite:///jobs.db")
    app.enqueue("loud.v1", {"secret": "hunter2"})
    app.close()
    redrive = Path(sys.executable).parent / "redrive"
    done = subprocess.run([redrive, "work", "shop:app", "--burst"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "\\x1b]0;owned\\x07" in done.stderr
    assert "\x1b" not in done.stderr
    assert "hunter2" not in done.stderr
