"""What the page about breakers shows is run, and its table of options is what is declared."""

import re
from pathlib import Path

from redrive import Breaker

PAGE = (Path(__file__).parents[2] / "docs" / "breakers.md").read_text()


def test_the_example_declares_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "breakers.md", "exec"), scope)
    app = scope["app"]
    app.worker().run(burst=True)  # type: ignore[attr-defined]
    said = {view.name: (view.types, view.breaker) for view in app.insight().circuits()}  # type: ignore[attr-defined]
    app.close()  # type: ignore[attr-defined]
    assert said == {
        "geo.lookup.v1": (("geo.lookup.v1",), {"name": "geo.lookup.v1", "failures": 5, "open_for": 30.0, "probes": 1}),
        "payments": (
            ("payment.charge.v1", "payment.refund.v1"),
            {"name": "payments", "failures": 5, "open_for": 30.0, "probes": 2},
        ),
    }


def test_the_options_have_these_defaults():
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE, re.MULTILINE))
    breaker = Breaker()
    assert (told["failures"], told["open_for"], told["probes"]) == (
        str(breaker.failures),
        f"{breaker.open_seconds:g} s",
        str(breaker.probes),
    )
