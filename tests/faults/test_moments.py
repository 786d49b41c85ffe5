"""The moments at which the other tests kill are what they are called."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from redrive import ConfigError
from redrive.worker import moments


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    reached: list[str] = []
    monkeypatch.setattr(moments, "hook", reached.append)
    yield reached
    for thread in threading.enumerate():
        if thread.name == "redrive-moment":
            thread.join()


def test_settle_sent_is_not_reached_once_the_store_has_answered(monkeypatch, reached):
    answered = threading.Event()
    monkeypatch.setattr(moments, "time", SimpleNamespace(sleep=lambda _: answered.wait(10)))
    with moments.during_settle():
        pass
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "redrive-moment":
            thread.join()
    assert reached == []


def test_settle_sent_is_reached_while_the_store_is_at_work(monkeypatch):
    inside = threading.Event()
    monkeypatch.setattr(moments, "hook", lambda name: inside.set() if name == "settle-sent" else None)
    with moments.during_settle():
        assert inside.wait(10)


def test_the_call_is_not_left_while_the_hook_runs(monkeypatch):
    order: list[str] = []
    inside, free = threading.Event(), threading.Event()

    def hook(name: str) -> None:
        inside.set()
        assert free.wait(10)
        order.append("hook")

    monkeypatch.setattr(moments, "hook", hook)
    with moments.during_settle():
        assert inside.wait(10)
        threading.Timer(0.05, free.set).start()
    order.append("left")
    assert order == ["hook", "left"]


@pytest.mark.parametrize("wanted", ["claimed", "claimed:0:kill", "asleep:1:kill", "claimed:1:pause"])
def test_a_moment_that_cannot_come_is_refused(wanted):
    """A test that waited for it would wait for ever."""
    with pytest.raises(ConfigError, match=moments.VARIABLE):
        moments.arm({moments.VARIABLE: wanted})
