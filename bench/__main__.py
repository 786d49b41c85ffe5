"""Measures, prints one table: `python -m bench [--only NAME ...] [--jobs N] [--quick] [--json FILE] [--gate]`."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine, table
from bench.ground import Ground, ground
from bench.measures import MEASURES
from scripts.services import MissingError


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    jobs, passes = asked.jobs or (4_000 if asked.quick else 20_000), asked.passes or (1 if asked.quick else 3)
    rows = [row for row in table.ROWS if not asked.only or row.about[0] in asked.only]
    needed = {name for row in rows for name in row.about}
    names = [name for name in MEASURES if name in needed]
    try:
        with ground() as place:
            facts = machine.facts(place.server)
            patience = 2.0 if asked.quick else 10.0
            found = [_pass(place, names, jobs, number, patience) for number in range(passes)]
    except MissingError as missing:
        print(missing, file=sys.stderr)
        return 2
    result = table.lines(rows, found)
    facts["run"] = f"{jobs:,} jobs, {passes} {'pass' if passes == 1 else 'passes, medians of them'}"
    facts["began busy"] = f"{sum(one['busy'] > machine.BUSY for p in found for one in p.values())} of all measures"
    print("\n".join(f"{name}: {said}" for name, said in facts.items()), "", table.text(result), sep="\n")
    if asked.json:
        asked.json.write_text(json.dumps(_document(facts, result, found), indent=2) + "\n")
    missed = [line.row.title for line in result if line.met is False]
    return 1 if asked.gate and missed else 0


def _pass(place: Ground, names: Sequence[str], jobs: int, number: int, patience: float) -> dict[str, dict[str, float]]:
    """Every measure once, in turn, each when the machine is quiet."""
    found: dict[str, dict[str, float]] = {}
    for name in names:
        busy = machine.quiet(patience)
        began = time.monotonic()
        found[name] = {**MEASURES[name](place, jobs), "busy": busy}
        if sys.stderr.isatty():
            print(f"pass {number + 1}: {name}, {time.monotonic() - began:.1f} s", file=sys.stderr)
    return found


def _document(facts: dict[str, str], result: Sequence[table.Line], found: Sequence[table.Pass]) -> dict[str, Any]:
    return {
        "facts": facts,
        "rows": [
            {
                "title": line.row.title,
                "unit": line.row.unit,
                "median": line.median,
                "values": line.values,
                "target": line.row.target,
                "met": line.met,
            }
            for line in result
        ],
        "passes": found,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="How fast, as ratios within one run.")
    names = ", ".join(MEASURES)
    parser.add_argument("--only", action="append", choices=MEASURES, metavar="NAME", help=f"one of {names}")
    parser.add_argument("--jobs", type=int, help="jobs of a drain and of a bulk enqueue; 20,000")
    parser.add_argument("--passes", type=int, help="3")
    parser.add_argument("--quick", action="store_true", help="4,000 jobs, one pass, little patience: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--gate", action="store_true", help="exit 1 when a target is missed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
