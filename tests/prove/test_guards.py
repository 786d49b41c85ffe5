"""Each guard of ``make prove`` still names what is there: its text once in its file, and tests that exist."""

import ast
from collections import Counter
from functools import cache

import pytest

from prove.guards import GUARDS
from prove.removal import ROOT, SOURCE, Guard


@cache
def source(file: str) -> str:
    return (SOURCE / "redrive" / file).read_text()


@cache
def defined(path: str) -> frozenset[str]:
    """The names of the tests and classes of a test file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, kinds))


def wrong(guard: Guard) -> list[str]:
    """What keeps a guard from being tried."""
    found = []
    if not (SOURCE / "redrive" / guard.file).is_file():
        found.append("there is no such file")
    elif (number := source(guard.file).count(guard.text)) != 1:
        found.append(f"its text stands {number} times in its file, not once")
    if guard.text == guard.without:
        found.append("without it the file is the same")
    if not guard.tests:
        found.append("it names no test")
    for test in guard.tests:
        path, *names = test.split("::")
        if not (ROOT / path).exists():
            found.append(f"there is no {path}")
        elif missing := [name for name in names if name.partition("[")[0] not in defined(path)]:
            found.append(f"there is no {missing[0]} in {path}")
    return found


def test_every_guard_can_be_tried():
    problems = [f"{guard.file}: {guard.name}: {problem}" for guard in GUARDS for problem in wrong(guard)]
    assert problems == []


def test_every_guard_has_a_name_of_its_own():
    names = Counter((guard.file, guard.name) for guard in GUARDS)
    assert [name for name, number in names.items() if number > 1] == []


HERE = Guard("one", "domain/limits.py", "MOST = 1_000_000\n", "MOST = 9\n", ("tests/domain/test_limits.py",))
TEST = "tests/prove/test_guards.py"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"file": "domain/nothing.py"}, "there is no such file"),
        ({"text": "MOST = 2\n"}, "its text stands 0 times"),
        ({"text": "import"}, "its text stands "),
        ({"without": "MOST = 1_000_000\n"}, "the file is the same"),
        ({"tests": ()}, "it names no test"),
        ({"tests": ("tests/nothing.py",)}, "there is no tests/nothing.py"),
        ({"tests": (f"{TEST}::test_nothing",)}, "there is no test_nothing in"),
        ({"tests": (f"{TEST}::test_what_is_wrong_is_said",)}, None),
    ],
)
def test_what_is_wrong_is_said(changed, problem):
    asked = {name: getattr(HERE, name) for name in ("name", "file", "text", "without", "tests")} | changed
    said = wrong(Guard(**asked))
    assert (said == []) if problem is None else (len(said) == 1 and problem in said[0])
