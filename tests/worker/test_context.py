"""What a handler may know of its job."""

import pytest
import structlog
from structlog.testing import capture_logs

from redrive.domain.errors import InvalidField
from redrive.worker.context import JobContext
from redrive.worker.running import Running, Stop

from .make import claimed, handler


async def nothing() -> None: ...


def context(**but) -> JobContext:
    return JobContext(Running(claimed(**but), handler(nothing)))


def test_it_tells_of_the_job():
    job = claimed(attempt=3, life=2, queue="mail", type="old.name", marks='{"tags":["a","b"],"labels":{"k":"v"}}')
    ctx = JobContext(Running(job, handler(nothing)))
    assert (ctx.id, ctx.type, ctx.queue, ctx.attempt, ctx.life) == (job.uuid, "old.name", "mail", 3, 2)
    assert (ctx.tags, ctx.labels) == (("a", "b"), {"k": "v"})
    assert (context().tags, context().labels) == ((), {})
    assert "old.name" in repr(ctx)


def test_cancelled_is_whatever_the_engine_said():
    run = Running(claimed(), handler(nothing))
    ctx = JobContext(run)
    assert not ctx.cancelled
    run.stop = Stop.LOST
    assert ctx.cancelled


def test_progress_is_a_short_line():
    run = Running(claimed(), handler(nothing))
    ctx = JobContext(run)
    ctx.progress(12.345, "row\n12\x1b[31m " + "x" * 500)
    assert run.progress is not None
    assert run.progress.startswith("12.3 % row 12\\x1b[31m x")
    assert len(run.progress) <= 200
    ctx.progress(100)
    assert run.progress == "100 %"
    for wrong in (-1, 100.5, float("nan")):
        with pytest.raises(InvalidField):
            ctx.progress(wrong)


def test_the_log_names_the_job():
    structlog.reset_defaults()
    ctx = context(attempt=2, life=3)
    with capture_logs() as lines:
        ctx.log.info("sent", to="x")
    assert ctx.log is ctx.log
    said = {"to": "x", "job_id": str(ctx.id), "type": ctx.type, "life": 3, "attempt": 2}
    assert lines == [{"event": "sent", "log_level": "info"} | said]
