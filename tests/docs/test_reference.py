"""The reference names every setting with its default, every command, every error and every reason: and no others."""

import re
from pathlib import Path

import typer

import redrive.handles  # noqa: F401 - its errors count as well
from redrive.config import Settings
from redrive.domain.errors import RedriveError
from redrive.domain.failures import REASONS
from redrive.faces.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
PARTS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def table(part: str) -> list[list[str]]:
    lines = [line for line in PARTS[part].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def named(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_every_setting_and_its_default():
    told: dict[str, str] = {}
    for names, default, _ in table("Settings"):
        values = [value.strip() for value in default.split(",")]
        told |= dict(zip(named(names), values, strict=True))
    real = {one.name: one.shown for one in Settings().effective()}
    assert told.keys() == real.keys()
    words = {"": "empty", "-": "none", "redrive": "`redrive`", "auto": "`auto`"}
    for name, shown in real.items():
        expected = words.get(shown) or f"{float(shown):.10g}"
        assert told[name] in (expected, "those of the handlers"), name


def test_every_command():
    told: set[str] = set()
    for commands, _ in table("Commands"):
        told |= {name.removeprefix("redrive ") for name in named(commands)}
    real: set[str] = set()
    for name, one in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        real |= {f"{name} {inner}" for inner in one.commands} if hasattr(one, "commands") else {name}
    assert told == real


def every(kind: type[RedriveError]) -> set[str]:
    return {kind.code}.union(
        *(every(child) for child in kind.__subclasses__() if child.__module__.startswith("redrive."))
    )


def test_every_error_code():
    told = {code for codes, _ in table("Errors") for code in named(codes)}
    source = "".join(path.read_text() for path in (Path(__file__).parents[2] / "src").rglob("*.py"))
    raised = set(re.findall(r'code="([a-z0-9-]+)"', source)) | {"json-syntax"}
    assert told == (every(RedriveError) | raised) - {"error"}


def test_every_reason():
    told = {named(reason)[0]: (failure == "yes", step) for reason, failure, step in table("Why a job is dead")}
    assert told == {reason.value: (info.is_failure, info.first_step) for reason, info in REASONS.items()}
