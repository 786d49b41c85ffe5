"""Write ``jobs.ndjson``, the work of the lab: ``python -m examples.lab.make_jobs [--check | --table]``.

The same bytes every time. One job a line; ``payload`` is a string that holds the exact text of the payload, because a
file of JSON values could not hold the broken ones. The file is ASCII, so that no editor, terminal or Unicode
normalisation touches what is in it.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from examples.lab.groups import DUPLICATE, GROUPS, SUCCEEDED

FILE = Path(__file__).with_name("jobs.ndjson")


def lines() -> Iterator[str]:
    """All jobs, mixed as they would arrive: the ledger's first, what repeats a key last, the rest in hashed order."""
    rank = {"zombie": 0, DUPLICATE: 2}
    jobs = [(group, number, payload) for group in GROUPS for number, payload in enumerate(group.payloads)]
    jobs.sort(
        key=lambda job: (rank.get(job[0].outcome, 1), hashlib.sha256(f"{job[0].name} {job[1]}".encode()).digest())
    )
    for group, number, payload in jobs:
        job = {
            "type": group.type,
            "queue": group.queue,
            "payload": payload,
            "key": f"welcome-{number}" if group.keyed else None,
            "priority": group.priority,
            "tags": ["lab", group.type.partition(".")[0]],
            "labels": {"group": group.name, "customer": f"c-{number % 7:03}"},
        }
        yield json.dumps({name: value for name, value in job.items() if value is not None})


def totals() -> Counter[str]:
    """How many lines end how."""
    counted = Counter[str]()
    for group in GROUPS:
        counted[group.outcome] += len(group.payloads)
    return counted


def table() -> str:
    """The groups and totals as README.md shows them."""
    ends = totals()
    accepted = ends.total() - ends[DUPLICATE]
    rows = [
        f"{ends.total()} lines, {accepted} jobs: {ends[SUCCEEDED]} succeed, {accepted - ends[SUCCEEDED]} die.",
        "",
        "| in the end | lines |",
        "|---|--:|",
        *(f"| {name} | {count} |" for name, count in ends.most_common()),
        "",
        "| group | jobs | type | ends | attempts | what happens | what an operator does |",
        "|---|--:|---|---|--:|---|---|",
    ]
    for group in GROUPS:
        cells = [group.name, len(group.payloads), group.type, group.outcome, group.attempts, group.story, group.cure]
        rows.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the lab's jobs.")
    parser.add_argument("--check", action="store_true", help="only compare the file with what would be written")
    parser.add_argument("--table", action="store_true", help="print the expected outcomes instead")
    args = parser.parse_args()
    content = "".join(line + "\n" for line in lines())
    if args.table:
        print(table(), end="")
    elif not args.check:
        FILE.write_text(content, encoding="ascii")
    elif FILE.read_text(encoding="ascii") != content:
        sys.exit(f"{FILE.name} is not what make_jobs.py writes: run it again")


if __name__ == "__main__":
    main()
