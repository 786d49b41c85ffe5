"""Chores: what is done every so often, and sooner when somebody asks."""

import threading
import time

from redrive.worker.chores import Chore
from redrive.worker.outages import Outage


def test_a_chore_that_is_told_to_hurry_keeps_its_pace_afterwards():
    """Calls that came early do not push the next ones into the future: leases would run out meanwhile."""
    called = threading.Semaphore(0)
    chore = Chore("test", 0.3, called.release, Outage())
    chore.start()
    began = time.monotonic()
    for _ in range(20):
        chore.hurry()
        assert called.acquire(timeout=5)
    assert called.acquire(timeout=2), "the next one, an interval later"
    assert time.monotonic() - began > 0.2
    chore.stop()
    chore.join(5)
    assert not chore._thread.is_alive()


def test_a_chore_that_is_told_to_hurry_while_it_is_called_is_called_again():
    entered, gate, calls = threading.Semaphore(0), threading.Event(), []

    def action() -> None:
        calls.append(1)
        entered.release()
        assert gate.wait(10)

    chore = Chore("test", 1000, action, Outage())
    chore.start()
    chore.hurry()
    assert entered.acquire(timeout=5)
    chore.hurry()
    gate.set()
    assert entered.acquire(timeout=5)
    chore.stop()
    chore.join(5)
    assert len(calls) == 2
