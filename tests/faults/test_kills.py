"""Two workers on one database, killed in every window of their line from claim to settle."""

import os
from collections.abc import Callable

import pytest

from tests.faults.scene import Scene
from tests.faults.storm import WINDOWS, Storm


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_ten_times(scene: Scene, report: Callable[[str], None]):
    kill(scene, report, kills=2 * len(WINDOWS), haste=5, least=1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_killed_many_times(scene: Scene, report: Callable[[str], None]):
    """A thousand kills, or as many as REDRIVE_TEST_KILLS says."""
    kills = int(os.environ.get("REDRIVE_TEST_KILLS", "1000"))
    kill(scene, report, kills=kills, haste=kills // 2, least=kills // 10)


def kill(scene: Scene, report: Callable[[str], None], *, kills: int, haste: int, least: int) -> None:
    storm = Storm(scene, kills, haste)
    storm.rain()
    storm.verdict()
    report(storm.report(least))
    assert storm.misses(least) == []
