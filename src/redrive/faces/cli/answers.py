"""What became of each job of a request, and the exit code that follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from redrive.domain.moves import Answered, Did, Skipped

from .common import DONE, REFUSED
from .output import Counting, as_json, remark, say

LISTED = 20
"""Refusals that are listed one by one; the rest is counted."""


def report(done: str, batches: Iterable[Sequence[Answered]], *, total: int | None = None, json: bool = False) -> int:
    """Go through the batches with progress, then say what was done and what was left alone and why."""
    counting = Counting(done, total)
    counts: Counter[str] = Counter()
    refused: list[Answered] = []
    answered: list[Answered] = []
    for batch in batches:
        for answer in batch:
            counts[str(answer.did or answer.skipped)] += 1
            if not answer.ok and answer.skipped is not Skipped.UNCHANGED and len(refused) < LISTED:
                refused.append(answer)
        if json:
            answered += batch
        counting(sum(counts.values()))
    counting.end()
    if json:
        as_json([{"id": one.id, "did": one.did, "skipped": one.skipped, "why": one.why} for one in answered])
    else:
        for answer in refused:
            remark(f"{answer.id} skipped ({answer.skipped}): {answer.why}")
        _summary(done, counts, len(refused))
    left = sum(counts[word] for word in Skipped if word is not Skipped.UNCHANGED)
    return REFUSED if left else DONE


def _summary(done: str, counts: Counter[str], listed: int) -> None:
    left = sum(counts[word] for word in Skipped if word is not Skipped.UNCHANGED)
    if left > listed:
        remark(f"... and {left - listed} more skipped")
    parts = [f"{counts[Did.DONE]} {done}"]
    if counts[Did.REQUESTED]:
        parts.append(f"{counts[Did.REQUESTED]} running, asked to stop")
    if counts[Skipped.UNCHANGED]:
        parts.append(f"{counts[Skipped.UNCHANGED]} unchanged")
    if left:
        parts.append(f"{left} skipped")
    say(", ".join(parts))
