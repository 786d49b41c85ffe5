"""Jobs of types that nobody here knows: put off, given to those who know them, buried only when nobody does."""

import pytest

from redrive.domain.failures import Reason
from redrive.domain.states import HotState, Place, Spot, Verb
from redrive.worker.registry import Registry

from .make import until
from .shop import Shop, in_loop


async def known(): ...


@pytest.mark.slow
@in_loop
async def test_an_unknown_type_is_put_off_then_buried_then_resurrected_after_the_deploy(shop: Shop):
    shop.on("known.v1")(known)
    job_id = shop.enqueue(b'{"keep": "me",  "k": 1}', "unknown.v1")
    async with shop.worker(unserved_timeout=1.5):
        await until(lambda: shop.head(job_id).state is HotState.SCHEDULED)
        head = shop.head(job_id)
        assert (head.attempt, head.spent) == (0, 0)
        assert head.unserved_since is not None
        record = await shop.is_in(job_id, Spot.DLQ)
    assert record.head.reason is Reason.FATAL
    assert "unknown.v1" in (record.head.error_message or "")
    assert record.payload == b'{"keep": "me",  "k": 1}'
    assert shop.store.queues()[0].failed_total == 1

    @shop.on("unknown.v1")
    async def deployed(keep: str, k: int): ...

    shop.operate(Verb.RESURRECT, job_id)
    async with shop.worker():
        await shop.is_in(job_id, Spot.ARCHIVE)


@pytest.mark.slow
@in_loop
async def test_a_type_that_another_worker_serves_is_not_buried(shop: Shop):
    shop.on("known.v1")(known)
    elsewhere = Registry()

    async def served(): ...

    elsewhere.register(served, "elsewhere.v1", queue="other")
    job_id = shop.enqueue(type="elsewhere.v1")
    async with shop.worker(elsewhere), shop.worker(unserved_timeout=0.1):
        await until(lambda: shop.port.calls.count("give_back") >= 3)
        assert shop.head(job_id).state in (HotState.SCHEDULED, HotState.PENDING, HotState.FETCHED)
        assert "announced" in shop.port.calls
        assert "bury_unserved" not in shop.port.calls


def test_an_alias_is_served(shop: Shop):
    shop.on("new.v1", aliases=["old.v1"])(known)
    job_id = shop.enqueue(type="old.v1")
    shop.drain()
    assert shop.head(job_id).place is Place.ARCHIVE
    assert {view.type for view in shop.store.types()} == {"new.v1", "old.v1"}


def test_unknown_jobs_do_not_stop_others(shop: Shop):
    shop.on("known.v1")(known)
    shop.store.enqueue([shop.job(type="unknown.v1") for _ in range(40)])
    job_id = shop.enqueue(type="known.v1")
    shop.drain(async_slots=5)
    assert shop.head(job_id).place is Place.ARCHIVE
    assert shop.store.queues()[0].scheduled == 40
