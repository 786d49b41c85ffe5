"""Every page: its links lead somewhere; and each line of "What happens when..." names a test that is there."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *ROOT.glob("bench/*.md")}
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ROW = re.compile(r"^\| (?!when |---)(.+) \|$", re.MULTILINE)
PROOF = re.compile(r"\[`(test_\w+)`\]\((\.\./tests/[\w/]+\.py)\)")


@cache
def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path):
    for link in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_each_line_of_what_happens_when_has_its_test():
    page = ROOT / "docs" / "what-happens-when.md"
    rows = ROW.findall(page.read_text())
    assert len(rows) >= 50
    for row in rows:
        cells = row.split(" | ")
        assert len(cells) == 4, row
        assert all(cells), row
        proof = PROOF.fullmatch(cells[3])
        assert proof, row
        test, path = proof.groups()
        assert re.search(rf"^ *(async )?def {test}\(", (page.parent / path).read_text(), re.MULTILINE), (
            f"{test} is not there"
        )
