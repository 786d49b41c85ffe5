"""Field reports about idempotency keys: what they are made from, and that nothing remakes them."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

import pytest

from redrive import KeyHeld, Redrive, RetryPolicy, Spot
from redrive.domain.filters import JobFilter
from redrive.domain.moves import Skipped
from redrive.domain.states import Place
from redrive.store.port import ClaimRequest, MarkAnswer, MarkClaim, WorkerInfo
from tests.cli.command import run
from tests.field.draining import drain


@pytest.mark.slow
def test_row_46_a_dead_job_and_a_live_one_with_the_same_key(app: Redrive):
    """Retrying the dead one was an internal error, and took the whole request with it."""
    fails = [True]

    @app.job("order.v1")
    async def order(n: int) -> None:
        if fails:
            raise ValueError("no such order")

    desk = app.desk("ann")
    many = app.enqueue_many(order.job(n=n) for n in range(999))
    first = order.using(idempotency_key="K").enqueue(n=-1)
    drain(app)
    live = order.using(idempotency_key="K").enqueue(n=-2)
    assert not live.duplicate
    with pytest.raises(KeyHeld, match=str(live.id)) as held:
        desk.resurrect(first.id)
    assert (held.value.key, held.value.holder) == ("K", str(live.id))

    answers = desk.resurrect_many([first.id, *(job.id for job in many)])
    assert [answer.ok for answer in answers].count(True) == 999
    (skipped,) = [answer for answer in answers if not answer.ok]
    assert (skipped.id, skipped.skipped, skipped.holder) == (first.id, Skipped.KEY_HELD, live.id)
    assert str(live.id) in skipped.why
    fails.clear()
    drain(app)
    assert desk.get(first.id).head.spot is Spot.DLQ
    assert {job.status() for job in (*many, live)} == {Spot.ARCHIVE}
    desk.resurrect(first.id)
    assert first.status() is Spot.PENDING


def run_it(app: Redrive, job: UUID) -> None:
    """A worker runs whatever is due."""
    drain(app)


def cancel(app: Redrive, job: UUID) -> None:
    app.desk("ann").cancel(job)


def isolate(app: Redrive, job: UUID) -> None:
    app.desk("ann").isolate(job)


def rename(app: Redrive, job: UUID) -> None:
    app.desk("ann").edit(job, idempotency_key="other")


def expire(app: Redrive, job: UUID) -> None:
    assert app.desk("ann").purge_archive(timedelta(0)) >= 1


def purge(app: Redrive, job: UUID) -> None:
    app.desk("ann").purge(job)


def purge_many(app: Redrive, job: UUID) -> None:
    others = app.enqueue_many(("order.v1", {"n": n, "dies": True}) for n in range(20))
    drain(app)
    assert all(answer.ok for answer in app.desk("ann").purge([job, *(other.id for other in others)]))


def resurrect_and_take_back(app: Redrive, job: UUID) -> None:
    app.desk("ann").resurrect(job)
    app.desk("ann").take_back([job])


def vanish(app: Redrive, job: UUID) -> None:
    """What a killed worker leaves, and a rescuer finds."""
    app.store.register(WorkerInfo("gone", "host", 1, "", ("default",), (), 1))
    (held,) = app.store.claim(ClaimRequest("gone", ("default",), 1, ("order.v1",)))
    if not held.started:  # a claim starts nothing that has a lock key
        assert app.store.start(["default"], [(held.id, held.lease)])
    assert app.store.claim_marks([MarkClaim(held.id, held.lease, "order.v1", "its worker is killed")]) == [
        MarkAnswer(True)
    ]
    (found,) = app.store.rescue(zombie_timeout=0, fetched_timeout=60, rules=lambda _: None, slot=0)
    assert (found.id, found.spot) == (job, "dlq")


EXITS: dict[str, tuple[Callable[[Redrive, UUID], None], ...]] = {
    "cancel": (cancel,),
    "cancel while it waits for its time": (cancel,),
    "isolate": (isolate,),
    "edit to another key": (rename,),
    "success": (run_it,),
    "success, and the archive expires": (run_it, expire),
    "success, and a purge": (run_it, purge),
    "death": (run_it,),
    "death, and a purge": (run_it, purge),
    "death, and a purge of many": (run_it, purge_many),
    "death, resurrected and taken back": (run_it, resurrect_and_take_back),
    "its worker is killed": (vanish,),
}


@pytest.mark.slow
def test_row_47_whoever_leaves_leaves_no_key_behind(app: Redrive):
    """Deleting jobs left their uniqueness locks, so the same job could not be enqueued again."""

    @app.job("order.v1", once=lambda key: key)
    def order(n: int, dies: bool = False, key: str | None = None) -> None:
        if dies:
            raise ValueError("no such order")

    found: dict[str, str | None] = {}
    for how, steps in EXITS.items():
        wait = timedelta(hours=1) if "its time" in how else 0.0
        keyed = order.using(idempotency_key=how, lock_key=how)
        job = keyed.using(run_after=wait).enqueue(n=1, dies=how.startswith("death"), key=how)
        assert keyed.enqueue(n=2).id == job.id
        for step in steps:
            step(app, job.id)
        again = keyed.enqueue(n=3, key=how)
        assert not again.duplicate, how
        drain(app)
        assert again.status() is Spot.ARCHIVE, how
        found[how] = app.desk("ann").get(again.id).head.outcome
    # What was completed is not done again, except where a person purged it and all that is left of it.
    kept = ("success", "success, and the archive expires", "edit to another key")
    assert found == {how: "skipped" if how in kept else "succeeded" for how in EXITS}


@pytest.mark.slow
def test_row_48_a_key_is_made_once_and_carried(app: Redrive, database_url: str):
    """The key was computed afresh at a retry, from arguments that had changed meanwhile, and duplicates appeared."""
    seen: list[list[str]] = []

    @app.job("order.v1", key=lambda names: "-".join(names), retry=RetryPolicy(max_attempts=3, base=0, jitter=0))
    def order(names: list[str]) -> None:
        seen.append([*names])
        names.append("changed")
        if len(seen) <= 3:
            raise ConnectionError("away")

    def live() -> list[tuple[str | None, Spot]]:
        jobs = app.insight().jobs(JobFilter(place=Place.HOT)).jobs
        return [(job.idempotency_key, job.spot) for job in jobs]

    desk = app.desk("ann")
    job = order.enqueue(names=["a"])
    assert order.enqueue(names=["a"]).id == job.id
    drain(app)
    head = desk.get(job.id).head
    assert (head.spot, head.attempt, head.idempotency_key) == (Spot.DLQ, 3, "a")
    assert seen == [["a"]] * 3, "each attempt got what was enqueued"

    other = order.enqueue(names=["a"])  # the dead job holds its key no longer
    assert not other.duplicate
    with pytest.raises(KeyHeld) as held:
        desk.resurrect(job.id, payload={"names": ["b"]})
    assert (held.value.key, held.value.holder) == ("a", str(other.id))
    third = order.enqueue(names=["c"])
    with pytest.raises(KeyHeld) as held:
        desk.resurrect(job.id, payload={"names": ["c"]}, idempotency_key="c")
    assert (held.value.key, held.value.holder) == ("c", str(third.id))
    assert live() == [("c", Spot.PENDING), ("a", Spot.PENDING)]

    ran = run(
        "dlq", "resurrect", str(job.id), "--payload", '{"names": ["b"]}', "--key", "b", "--database", database_url
    )
    assert ran.code == 0, ran.said
    assert "idempotency key: a -> b\n" in ran.text
    assert order.enqueue(names=["b"]).id == job.id
    assert sorted(key for key, _ in live() if key) == ["a", "b", "c"]
    (said,) = [entry.details["idempotency_key"] for entry in app.store.audit_entries(target=str(job.id))]
    assert said == {"before": "a", "after": "b"}

    ran = run("jobs", "edit", str(job.id), "--payload", '{"names": ["d"]}', "--database", database_url)
    assert "its idempotency key stays b; --key gives it another\n" in ran.said
    drain(app)
    assert desk.get(job.id).head.spot is Spot.ARCHIVE
    assert live() == []
