"""How many jobs of each kind a worker runs at a time, when an operator says another total than it was started with."""

from __future__ import annotations

from collections.abc import Mapping

from .handler import Kind


def share(configured: Mapping[Kind, int], wanted: int | None) -> dict[Kind, int]:
    """``wanted`` slots shared among the pools in the proportion of ``configured``; None: as configured.

    Every pool keeps one slot at least, or jobs of its kind would wait for ever.
    """
    if wanted is None:
        return dict(configured)
    total = sum(configured.values())
    exact = {kind: max(1.0, wanted * number / total) for kind, number in configured.items()}
    slots = {kind: int(number) for kind, number in exact.items()}
    for kind in sorted(exact, key=lambda kind: slots[kind] - exact[kind]):  # the largest remainder first
        if sum(slots.values()) >= wanted:
            break
        slots[kind] += 1
    for kind in sorted(slots, key=lambda kind: -slots[kind]):  # where a pool was given more than its part
        slots[kind] -= min(slots[kind] - 1, max(0, sum(slots.values()) - wanted))
    return slots
