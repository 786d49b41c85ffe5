"""Change the rules in every small way mutmut knows; no mutant may survive without a written reason."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOMAIN = Path("src", "redrive", "domain")
MUTATED = ("lifecycle", "policy", "classify", "circuit")
TESTS = ("settle", "rescue", "operate", "policy", "classify", "classify_http", "report", "circuit")
REASONS = Path(__file__).parent / "survivors.toml"
KILLED = {"killed", "timeout"}

# mutmut runs pytest several times in one process, and mutants are slow under load: neither is a finding. What a
# property happens to try must not differ from one run to the next.
CONFTEST = """
import hypothesis

hypothesis.settings.register_profile(
    "prove", deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.load_profile("prove")
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change that no test noticed: in which function, from which line to which. Its number would not stay."""

    function: str
    line: str
    becomes: str


def prove(jobs: int) -> bool:
    """Run all mutants and print what survived. True when each survivor has a reason and each reason a survivor."""
    print(f"\nMutants of {', '.join(MUTATED)}; no test run may pass with one.", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="redrive-prove-") as folder:
        copy = Path(folder)
        _prepare(copy)
        run = _mutmut(copy, "run", "--max-children", str(jobs))
        statuses = _statuses(copy)
        if run.returncode or not statuses or "not checked" in statuses.values():
            print(run.stdout[-3000:] + run.stderr[-3000:])
            print("mutmut did not finish")
            return False
        survived = [_survivor(copy, name) for name, status in statuses.items() if status not in KILLED]
    counts = Counter(statuses.values())
    shown = ", ".join(f"{number} {status}" for status, number in counts.most_common())
    print(f"  {len(statuses)} mutants in {time.monotonic() - started:.0f} s: {shown}")
    return _judge(survived)


def _prepare(copy: Path) -> None:
    """The domain and its tests alone, in a folder of their own: it needs nothing but the standard library."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / DOMAIN, copy / DOMAIN, ignore=ignore)
    (copy / DOMAIN.parent / "__init__.py").touch()
    shutil.copytree(ROOT / "tests" / "domain", copy / "tests" / "domain", ignore=ignore)
    (copy / "tests" / "conftest.py").write_text(CONFTEST)
    files = json.dumps([str(DOMAIN / f"{name}.py") for name in MUTATED])
    tests = json.dumps([f"tests/domain/test_{name}.py" for name in TESTS])
    (copy / "pyproject.toml").write_text(
        "\n".join(
            (
                "[tool.mutmut]",
                'source_paths = ["src"]',
                f"only_mutate = {files}",
                'pytest_add_cli_args = ["-p", "no:cacheprovider"]',
                f"pytest_add_cli_args_test_selection = {tests}",
                "[tool.pytest]",
                'pythonpath = ["."]',
                'addopts = ["--import-mode=importlib"]',
                'filterwarnings = ["error"]',
                "strict = true",
            )
        )
    )


def _mutmut(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mutmut", *arguments], cwd=copy, capture_output=True, text=True)


def _statuses(copy: Path) -> dict[str, str]:
    """What became of each mutant by its name."""
    lines = _mutmut(copy, "results", "--all", "true").stdout.splitlines()
    return dict(line.strip().rsplit(": ", 1) for line in lines if ": " in line)


def _survivor(copy: Path, name: str) -> Mutant:
    changed = _mutmut(copy, "show", name).stdout.splitlines()
    removed = [line[1:].strip() for line in changed if line[:1] == "-" and line[:3] != "---"]
    added = [line[1:].strip() for line in changed if line[:1] == "+" and line[:3] != "+++"]
    # redrive.domain.policy.xǁRetryPolicyǁdelay__mutmut_2, redrive.domain.lifecycle.x_settle__mutmut_44
    module, _, mangled = name.rpartition("__mutmut_")[0].rpartition(".")
    function = mangled.removeprefix("xǁ").removeprefix("x_").replace("ǁ", ".")
    return Mutant(f"{module.removeprefix('redrive.domain.')}.{function}", "\n".join(removed), "\n".join(added))


def _judge(survived: Iterable[Mutant]) -> bool:
    """Compare survivors with the written reasons; both what is missing and what is stale is an offence."""
    reasons = {Mutant(r["function"], r["line"], r["becomes"]): r["reason"] for r in _reasons()}
    unexplained = [mutant for mutant in survived if not reasons.pop(mutant, "").strip()]
    for mutant in unexplained:
        print(f"  SURVIVED in {mutant.function}, without a reason in {REASONS.name}:")
        print(f"    - {mutant.line}\n    + {mutant.becomes}")
    for mutant in reasons:
        print(f"  STALE reason in {REASONS.name}: no such mutant survives in {mutant.function}: {mutant.becomes}")
    return not unexplained and not reasons


def _reasons() -> list[dict[str, str]]:
    entries: list[dict[str, str]] = tomllib.loads(REASONS.read_text()).get("survivor", [])
    return entries
