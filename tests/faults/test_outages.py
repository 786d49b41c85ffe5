"""Two workers on PostgreSQL, and an outage of every kind on every named moment of their line."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from redrive.worker import moments
from scripts.services import PrivatePostgres
from tests.conftest import migrate
from tests.faults.handlers import RUNS
from tests.faults.nursery import Nursery
from tests.faults.proxy import Proxy
from tests.faults.scene import SETTINGS, Scene, patience
from tests.faults.weather import MOMENTS, OUTAGES, WINDOWS, Weather

BEAT, LEASE = 0.3, 1.5


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_outages_on_named_moments(
    private_postgres: PrivatePostgres,
    nursery: Nursery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    report: Callable[[str], None],
):
    """Each moment once and each outage at least once."""
    kinds = list(OUTAGES) * 2
    rounds = list(zip(MOMENTS, kinds, strict=False))
    storm(private_postgres, nursery, tmp_path, monkeypatch, report, rounds)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_outages_on_named_moments_again_and_again(
    private_postgres: PrivatePostgres,
    nursery: Nursery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    report: Callable[[str], None],
):
    """Every outage on every moment, ten times, or as often as REDRIVE_TEST_OUTAGES says."""
    rounds = WINDOWS * int(os.environ.get("REDRIVE_TEST_OUTAGES", "10"))
    random.shuffle(rounds)
    storm(private_postgres, nursery, tmp_path, monkeypatch, report, rounds)


def storm(
    server: PrivatePostgres,
    nursery: Nursery,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    report: Callable[[str], None],
    rounds: list[tuple[str, str]],
) -> None:
    for name, value in {**SETTINGS, **patience(BEAT, LEASE), RUNS: str(folder / "runs")}.items():
        monkeypatch.setenv(name, value)
    migrate(server.url)
    with Proxy(server.url) as proxy, Scene(server.url, nursery, folder) as scene:
        weather = Weather(scene, server, proxy, LEASE)
        monkeypatch.setattr(moments, "hook", weather.reached)
        weather.rage(rounds)
        weather.verdict()
        report(weather.report())
        assert [window for window in rounds if not weather.hits[window]] == []
