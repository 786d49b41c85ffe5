"""Three times the heartbeat is allowed, also where the product of two decimals is not the decimal one writes."""

from typing import Any

import pytest

from redrive import config
from redrive.worker.options import WorkerOptions


@pytest.mark.parametrize("beat", [0.1, 0.2, 0.3, 0.7, 1.1, 10.0])
def test_exactly_three_heartbeats_are_enough(beat):
    timeout = float(f"{beat * 3:.1f}")
    recovery: dict[str, Any] = {"zombie_timeout": timeout, "fetched_timeout": timeout}
    settings = config.load("sqlite://", {"worker": {"heartbeat": beat}, "recovery": recovery})
    assert settings.recovery.zombie_timeout == timeout
    assert WorkerOptions(heartbeat=beat, **recovery).fetched_timeout == timeout
