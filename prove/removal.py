"""Take one guard out, run the tests that should notice, see one go red; for every guard in the list."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
LONGEST, WHOLE = 300, 1800
"""Seconds for the tests of one guard, and for all of them. What hangs ends by its own timeout before, and is red."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Text in ``file`` (below src/redrive) that protects something; ``without`` replaces it, ``tests`` must notice."""

    name: str
    file: str
    text: str
    without: str
    tests: tuple[str, ...]


def guards(file: str, tests: str, *entries: tuple[str, str, str]) -> Iterator[Guard]:
    """Guards of one file that the same tests watch: each entry is name, exact text, replacement."""
    for name, text, without in entries:
        yield Guard(name, file, text, without, tuple(tests.split()))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a removal: ``red`` with the test that noticed, ``green`` when none did, or ``broken``."""

    guard: Guard
    colour: str
    detail: str
    seconds: float


def prove(chosen: Sequence[Guard], jobs: int) -> bool:
    """Remove each guard in turn and print what the tests said. True when every removal was noticed by a test."""
    print(f"Guards: {len(chosen)}, each removed from a copy of src; a test must go red.")
    if not chosen:
        print("  no such guard")
        return False
    selection = sorted({test for guard in chosen for test in guard.tests})
    whole = _run("everything in place", selection, None)
    if whole.colour != "green":
        print(f"  {whole.colour}: {whole.detail}\nThe tests must be green with every guard in place.")
        return False
    verdicts = []
    with ThreadPoolExecutor(jobs) as pool:
        for verdict in pool.map(lambda guard: _run(guard.name, guard.tests, guard), chosen):
            verdicts.append(verdict)
            print(_row(verdict), flush=True)
    missed = [v for v in verdicts if v.colour != "red"]
    print(f"  {len(verdicts) - len(missed)} of {len(verdicts)} removals were noticed.")
    return not missed


def _row(verdict: Verdict) -> str:
    colour = verdict.colour if verdict.colour == "red" else verdict.colour.upper()
    place = verdict.guard.file.removesuffix(".py")
    return f"  {colour:6} {place:18} {verdict.guard.name:58} {verdict.seconds:5.1f} s  {verdict.detail}"


def _run(name: str, tests: Iterable[str], guard: Guard | None) -> Verdict:
    """The verdict of ``tests`` on a copy of src, without ``guard``."""
    shown = guard or Guard(name, "", "", "", ())
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="redrive-prove-") as folder:
        copy = Path(folder, "src")
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        if guard is not None:
            file = copy / "redrive" / guard.file
            source = file.read_text()
            if (found := source.count(guard.text)) != 1:
                return Verdict(shown, "broken", f"its text stands {found} times in {guard.file}, not once", 0.0)
            changed = source.replace(guard.text, guard.without)
            try:
                compile(changed, str(file), "exec")
            except SyntaxError as error:
                return Verdict(shown, "broken", f"without it the file is no Python: {error}", 0.0)
            file.write_text(changed)
        colour, detail = _pytest(tests, copy, Path(folder), LONGEST if guard else WHOLE)
    return Verdict(shown, colour, detail, time.monotonic() - started)


def _pytest(tests: Iterable[str], source: Path, scratch: Path, longest: float) -> tuple[str, str]:
    """Colour and detail: the first test that failed, or what went wrong."""
    results = scratch / "results.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not soak",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={results}",
        *tests,
    ]
    environment = os.environ | {
        "PYTHONPATH": str(source),  # before the installed package, which is the work tree
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
    }
    try:
        run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=longest)
    except subprocess.TimeoutExpired:
        return "broken", f"no end within {longest:.0f} s"
    if run.returncode == 0:
        return "green", "no test noticed"
    if run.returncode == 1 and results.exists():
        for case in ET.parse(results).getroot().iter("testcase"):
            if case.find("failure") is not None:
                test = case.get("name", "").partition("[")[0]
                return "red", f"{case.get('classname', '').removeprefix('tests.')}.{test}"
    return "broken", f"pytest ended with {run.returncode}: " + " | ".join(run.stdout.splitlines()[-3:])
