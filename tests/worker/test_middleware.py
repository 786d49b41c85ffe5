"""What stands around every run."""

import contextvars
import threading

import pytest

from redrive import Fatal, InvalidField, JobContext, Place, Redrive, RetryPolicy
from redrive.testing import Kit

told: list[str] = []
tenant = contextvars.ContextVar("tenant", default="nobody")


@pytest.fixture
def kit(monkeypatch):
    told.clear()
    app = Redrive("sqlite://")

    @app.middleware
    def outer(ctx: JobContext):
        token = tenant.set(ctx.labels.get("tenant", "none"))
        told.append(f"outer begins {ctx.type} {ctx.attempt}")
        try:
            yield
        finally:
            told.append(f"outer ends on {threading.current_thread() is threading.main_thread()}")
            tenant.reset(token)

    @app.job("async")
    async def coroutine(n: int) -> str:
        told.append(f"async for {tenant.get()}")
        return "done"

    @app.job("sync")
    def function(ctx: JobContext, n: int) -> str:
        told.append(f"sync for {tenant.get()}")
        return "done"

    @app.job("fails", retry=RetryPolicy(max_attempts=2, base=0, jitter=0))
    async def fails(how: str) -> None:
        raise ConnectionError(how)

    @app.middleware
    def inner(ctx: JobContext):  # declared after the handlers
        told.append("inner begins")
        try:
            yield
        except ConnectionError as error:
            told.append(f"inner sees {error}")
            if str(error) == "gone for good":
                raise Fatal("the account is closed") from error
            if str(error) == "swallowed":
                return
            raise
        told.append("inner ends")

    with Kit(app) as made:
        yield made


@pytest.mark.parametrize(("kind", "main"), [("async", True), ("sync", False)])
def test_it_stands_around_handlers_of_both_kinds_where_they_run(kit, kind, main):
    kit.app.enqueue(kind, {"n": 1}, labels={"tenant": "acme"})
    assert kit.drain().succeeded == 1
    assert told == [
        f"outer begins {kind} 1", "inner begins", f"{kind} for acme", "inner ends", f"outer ends on {main}",
    ]  # fmt: skip
    (done,) = kit.jobs(place=Place.ARCHIVE)
    assert done.result == b'"done"'
    assert tenant.get() == "nobody"


def test_it_sees_the_error_and_what_it_makes_of_it_is_classified(kit):
    kit.app.enqueue("fails", {"how": "gone for good"})
    assert kit.drain().died == 1
    (dead,) = kit.jobs(place=Place.DLQ)
    assert (dead.head.reason, dead.head.error_message) == ("fatal", "the account is closed")
    assert "gone for good" in str(dead.ledger[0].traceback)


def test_an_error_that_it_keeps_for_itself_is_a_failure_all_the_same(kit):
    kit.app.enqueue("fails", {"how": "swallowed"})
    assert kit.drain().died == 1
    (dead,) = kit.jobs(place=Place.DLQ)
    assert (dead.head.reason, dead.head.error_message) == ("retries_exhausted", "swallowed")
    assert told.count("inner sees swallowed") == 2
    assert told[-1] == "outer ends on True"


def test_one_that_fails_before_the_handler_is_a_failure_of_the_run(kit):
    @kit.app.middleware
    def broken(ctx: JobContext):
        if ctx.type == "async":
            raise Fatal("no session")
        yield

    kit.app.enqueue("async", {"n": 1})
    assert kit.drain().died == 1
    assert "async for none" not in told
    assert told[-1] == "outer ends on True"


def test_a_handler_that_is_called_alone_has_it_too(kit):
    assert kit.call(kit.app.item("sync", {"n": 1}, labels={"tenant": "acme"})) == "done"
    assert "sync for acme" in told
    with pytest.raises(Fatal):
        kit.call(kit.app.item("fails", {"how": "gone for good"}))


def test_what_is_no_generator_is_refused():
    app = Redrive("sqlite://")
    with pytest.raises(InvalidField, match="one yield"):
        app.middleware(lambda ctx: None)  # type: ignore[type-var]  # it is wrong on purpose
