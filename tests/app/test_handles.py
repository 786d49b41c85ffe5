"""What an application learns of its work afterwards."""

import threading

import pytest

from redrive import Fatal, JobDied, NotFinished, NotFound, Redrive
from redrive.domain.states import Spot


def test_a_handle_tells_where_the_job_is_and_what_came_of_it(app):
    @app.job("double")
    def double(n: int) -> int:
        if n < 0:
            raise Fatal("negative")
        return n * 2

    good, bad = double.enqueue(21), double.enqueue(-1)
    assert good.status() is Spot.PENDING
    with pytest.raises(NotFinished, match="pending"):
        good.result()
    with pytest.raises(TimeoutError, match=r"within 0\.05 seconds"):
        good.wait(0.05)
    app.worker().run(burst=True)

    assert (good.wait(0), bad.wait(0)) == (Spot.ARCHIVE, Spot.DLQ)
    assert good.result() == 42
    with pytest.raises(JobDied, match=r"dead \(fatal\): negative") as died:
        bad.result()
    assert died.value.reason == "fatal"


def test_waiting_ends_when_the_job_does(lite):
    @lite.job("t")
    def handler() -> None: ...

    handle = handler.enqueue()
    worker = threading.Timer(0.2, lambda: lite.desk("test").isolate(handle.id))
    worker.start()
    assert handle.wait(20) is Spot.DLQ
    worker.join()


def test_a_purged_job_is_nowhere(app):
    handle = app.enqueue("t", {})
    desk = app.desk("test")
    desk.isolate(handle.id)
    desk.purge(handle.id)
    assert handle.status() is Spot.NOWHERE
    with pytest.raises(NotFound, match="purged"):
        handle.result()
    with pytest.raises(NotFound):
        handle.wait(1)


def test_a_result_that_is_null_and_one_that_holds_nul(lite):
    @lite.job("t")
    def handler(text: str | None) -> str | None:
        return text

    handles = [handler.enqueue(None), handler.enqueue("a\0b")]
    lite.worker().run(burst=True)
    assert [handle.result() for handle in handles] == [None, "a\0b"]


def test_an_application_goes_on_after_close(lite: Redrive):
    handle = lite.enqueue("t", {})
    lite.close()
    assert handle.status() is Spot.PENDING
