"""What the page about doing work once shows is run."""

import re
from pathlib import Path
from typing import Any

from redrive import Once

PAGE = (Path(__file__).parents[2] / "docs" / "once.md").read_text()


def test_the_example_does_work_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "once.md", "exec"), scope)
    app = scope["app"]
    sent = [scope["send_invoice"].enqueue(invoice=7, to=to) for to in ("a@example.com", "b@example.com")]
    app.worker().run(burst=True)
    paid = [scope["charge"].enqueue(payment="p-1", cents=100), scope["capture"].enqueue(payment="p-1")]
    app.worker().run(burst=True)
    desk = app.desk("reader")
    assert sorted(desk.get(job.id).head.outcome for job in sent) == ["skipped", "succeeded"]
    assert sorted(desk.get(job.id).head.outcome for job in paid) == ["skipped", "succeeded"]
    (line,) = [line for job in paid for line in desk.get(job.id).ledger]
    assert line.kind == "skipped"
    app.close()


def test_what_it_says_of_times():
    assert f"{Once(str).seconds / 86_400:g} days by default" in PAGE
