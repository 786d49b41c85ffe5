"""``python -m prove [guards|mutants] [--only TEXT] [--jobs N]``: both proofs, or one of them."""

from __future__ import annotations

import argparse
import sys
import time

from . import mutation, removal
from .guards import GUARDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m prove", description="Break the code; the tests must notice.")
    parser.add_argument("what", nargs="?", choices=["guards", "mutants"], help="one of the two proofs (default: both)")
    parser.add_argument("--only", default="", metavar="TEXT", help="guards whose name or file contains TEXT")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time (default: 2)")
    asked = parser.parse_args()

    started = time.monotonic()
    held = True
    if asked.what != "mutants":
        held &= removal.prove([g for g in GUARDS if asked.only in f"{g.file}: {g.name}"], asked.jobs)
    if asked.what != "guards" and not asked.only:
        held &= mutation.prove(asked.jobs)
    print(f"\n{'proved' if held else 'NOT PROVED'} in {time.monotonic() - started:.0f} s")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
