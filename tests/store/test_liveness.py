"""Heartbeats and rescue: who still holds what, by the database's clock."""

import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from redrive.domain.failures import Reason
from redrive.domain.job import ClaimedJob
from redrive.domain.lifecycle import TypeRules
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Spot, Verb
from redrive.store.port import QueueChange, Rescued

from .make import OTHER, QUEUE, TYPE, Floor, bury, draft, job, kind, pair, retry, snooze, succeed, worker
from .rows import Rows

AGAIN = TypeRules(RetryPolicy(max_attempts=3, base=5.0, jitter=0.0), idempotent=True, on_zombie="retry")


def rescue(store, rules: TypeRules | None = None, zombie: float = 60, fetched: float = 60, **but: Any) -> list[Rescued]:
    found: list[Rescued] = store.rescue(
        zombie_timeout=zombie,
        fetched_timeout=fetched,
        rules=lambda name: rules if name == TYPE else None,
        slot=4,
        **but,
    )
    return found


def running(floor: Floor, name: str) -> ClaimedJob:
    """A job of another type whose handler is running."""
    floor.one(type=name)
    (held,) = floor.fetch(types=(name,))
    assert held.type == name
    return held


# -- heartbeat ---------------------------------------------------------------------------------------------------------


def test_a_beat_renews_fetched_and_processing_and_grows_no_version(store, floor: Floor, rows: Rows):
    held = [floor.fetched(), floor.running()]
    for one in held:
        rows.silent(one.uuid, 50)
    before = store.now()
    pulse = store.heartbeat([pair(one) for one in held])
    assert (pulse.lost, pulse.cancel) == (frozenset(), frozenset())
    for one in held:
        row = rows.row(one.uuid)
        assert before <= row.heartbeat_at <= store.now()
        assert row.version == 2


def test_a_beat_for_nothing(store):
    pulse = store.heartbeat([])
    assert (pulse.lost, pulse.cancel) == (frozenset(), frozenset())


@pytest.mark.parametrize("end", [succeed, retry, bury, snooze])
def test_a_lease_that_ended_is_lost(store, floor: Floor, end):
    held, mine = floor.running(), floor.running()
    floor.settle(end(held))
    wrong = (mine.id, held.lease)
    assert store.heartbeat([pair(held), pair(mine), wrong, (b"\x01" * 16, 4)]).lost == {
        pair(held), wrong, (b"\x01" * 16, 4)
    }  # fmt: skip


def test_a_lease_that_was_rescued_or_cancelled_is_lost(store, floor: Floor, rows: Rows):
    zombie, cancelled = floor.running(), floor.fetched()
    rows.silent(zombie.uuid)
    rescue(store)
    floor.ask(Verb.CANCEL, cancelled.uuid)
    assert store.heartbeat([pair(zombie), pair(cancelled)]).lost == {pair(zombie), pair(cancelled)}


def test_a_beat_brings_cancel_requests(store, floor: Floor):
    held, other = floor.running(), floor.running()
    floor.ask(Verb.CANCEL, held.uuid)
    pulse = store.heartbeat([pair(held), pair(other)])
    assert (pulse.lost, pulse.cancel) == (frozenset(), {pair(held)})
    assert store.heartbeat([pair(held)]).cancel == {pair(held)}, "every time, until it ends"


def test_progress_is_kept_with_the_lease_only(store, floor: Floor):
    held, other = floor.running(), floor.running()
    stranger = (other.id, other.lease + 1)
    store.heartbeat([pair(held)], progress={pair(held): "42 % половина", stranger: "not mine"})
    assert floor.head(held.uuid).progress == "42 % половина"
    assert floor.head(other.uuid).progress is None
    floor.settle(succeed(held))
    assert floor.head(held.uuid).progress == "42 % половина"


def test_a_beat_with_a_lease_that_is_gone_renews_nobody_elses(store, floor: Floor, rows: Rows):
    held = floor.running()
    rows.silent(held.uuid, 50)
    before = rows.row(held.uuid).heartbeat_at
    store.heartbeat([(held.id, held.lease + 1)])
    assert rows.row(held.uuid).heartbeat_at == before


@pytest.mark.timeout(15)  # without the guard it waits for ever
@pytest.mark.postgres
def test_a_locked_row_is_neither_waited_for_nor_lost(postgres_store, shared_postgres):
    store = postgres_store
    store.register(worker())
    floor, rows = Floor(store), Rows(store)
    held, free = floor.running(), floor.running()
    rows.silent(held.uuid, 30)
    old = rows.row(held.uuid).heartbeat_at
    with psycopg.connect(shared_postgres) as other:
        other.execute("SELECT 1 FROM redrive.jobs_hot WHERE id = %s FOR UPDATE", [held.uuid])
        pulse = store.heartbeat([pair(held), pair(free)], progress={pair(held): "x"})
        assert (pulse.lost, pulse.cancel) == (frozenset(), frozenset())
        assert rows.row(held.uuid).heartbeat_at == old
    store.heartbeat([pair(held)])
    assert rows.row(held.uuid).heartbeat_at > old


# -- rescue ------------------------------------------------------------------------------------------------------------


def test_nobody_is_rescued_in_time(store, floor: Floor, rows: Rows):
    held = [floor.fetched(), floor.running()]
    for one in held:
        rows.silent(one.uuid, 55)
    assert rescue(store) == []
    assert [floor.spot(one.uuid) for one in held] == [Spot.FETCHED, Spot.PROCESSING]


def test_a_fetched_job_goes_back_to_the_line(store, floor: Floor, rows: Rows):
    held = floor.fetched()
    rows.silent(held.uuid, 61)
    assert rescue(store) == [Rescued(held.uuid, TYPE, "pending", "w1")]
    row = rows.row(held.uuid)
    assert floor.spot(held.uuid) is Spot.PENDING
    assert (row.version, row.attempt, row.spent, row.lease, row.worker_id, row.heartbeat_at) == (
        3,
        0,
        0,
        None,
        None,
        None,
    )
    assert rows.ledger(held.uuid) == []
    assert rows.totals(QUEUE) == {}
    assert floor.take()[0].attempt == 1


def test_a_processing_job_is_buried_as_a_zombie(store, floor: Floor, rows: Rows):
    held = floor.running(tags=("t",))
    rows.silent(held.uuid, 61)
    before = store.now()
    assert rescue(store) == [Rescued(held.uuid, TYPE, "dlq", "w1")]
    head = floor.head(held.uuid)
    assert (head.spot, head.reason, head.version, head.attempt, head.spent) == (Spot.DLQ, Reason.ZOMBIE, 3, 1, 1)
    assert "w1" in (head.error_message or "")
    assert head.failed_at is not None
    assert before <= head.failed_at <= store.now()
    (line,) = rows.ledger(held.uuid)
    assert (line.kind, line.reason, line.lease, line.worker_id) == ("zombie", "zombie", held.lease, "w1")
    assert line.started_at is not None
    assert rows.totals(QUEUE) == {"failed": 1}
    assert [one.deaths for one in store.incidents()] == [1]
    floor.kept()
    assert rescue(store) == []


def test_an_idempotent_handler_may_ask_for_another_try(store, floor: Floor, rows: Rows):
    held = floor.running()
    rows.silent(held.uuid)
    before = store.now()
    assert rescue(store, AGAIN) == [Rescued(held.uuid, TYPE, "scheduled", "w1")]
    row = rows.row(held.uuid)
    assert floor.spot(held.uuid) is Spot.SCHEDULED
    assert (row.attempt, row.spent, row.version, row.lease, row.started_at) == (1, 1, 3, None, None)
    assert before <= row.due_at - timedelta(seconds=5) <= store.now()
    (line,) = rows.ledger(held.uuid)
    assert (line.kind, line.reason, line.lease, line.spent) == ("zombie", None, held.lease, 1)
    assert rows.totals(QUEUE) == {"retried": 1}
    assert store.incidents() == []
    floor.kept()


def test_a_worker_lost_during_the_last_attempt_is_the_end(store, floor: Floor, rows: Rows):
    """Three of three: the dead letter queue, never a fourth run, never running for ever."""
    one = floor.one()
    for attempt in (1, 2, 3):
        store.promote()
        (held,) = floor.take()
        assert held.attempt == attempt
        rows.silent(held.uuid)
        ((_, spot),) = [(one.id, one.spot) for one in rescue(store, AGAIN)]
        assert spot == ("dlq" if attempt == 3 else "scheduled")
        if attempt < 3:
            rows.earlier(held.uuid, "due_at", 3600)
    head = floor.head(one)
    assert (head.reason, head.attempt, head.spent, head.max_attempts) == (Reason.ZOMBIE, 3, 3, 3)
    assert [line.attempt for line in rows.ledger(one)] == [1, 2, 3]
    floor.kept()


def test_a_jobs_own_budget_beats_its_types(store, floor: Floor, rows: Rows):
    held = floor.running(max_attempts=1)
    rows.silent(held.uuid)
    assert [one.spot for one in rescue(store, AGAIN)] == ["dlq"]
    assert floor.head(held.uuid).max_attempts == 1


def test_a_life_that_is_too_old_is_the_end(store, floor: Floor, rows: Rows):
    held = floor.running()
    rows.silent(held.uuid)
    rows.earlier(held.uuid, "life_started_at", 86_400)
    assert [one.spot for one in rescue(store, AGAIN)] == ["dlq"]


def test_a_cancel_request_is_honoured_at_the_rescue(store, floor: Floor, rows: Rows):
    held = floor.running()
    floor.ask(Verb.CANCEL, held.uuid)
    rows.silent(held.uuid)
    assert [one.spot for one in rescue(store, AGAIN)] == ["dlq"]
    assert floor.head(held.uuid).reason is Reason.CANCELLED
    assert rows.totals(QUEUE) == {}
    assert store.incidents() == []
    floor.kept()


def test_a_queues_own_timeouts_beat_the_given_ones(store, floor: Floor, rows: Rows):
    change = QueueChange(zombie_timeout=600, fetched_timeout=10)
    store.set_queue(OTHER, change, draft("set-queue"), version=None)
    slow, quick = floor.running(queue=OTHER), floor.fetched(queue=OTHER)
    plain, plain_fetched = floor.running(), floor.fetched()
    for held in (slow, quick, plain, plain_fetched):
        rows.silent(held.uuid, 30)
    assert [one.id for one in rescue(store)] == [quick.uuid]
    for held in (slow, plain, plain_fetched):
        rows.silent(held.uuid, 60)
    assert {one.id for one in rescue(store)} == {plain.uuid, plain_fetched.uuid}
    rows.silent(slow.uuid, 550)
    assert [one.id for one in rescue(store)] == [slow.uuid]


def test_fetched_and_processing_have_their_own_timeouts(store, floor: Floor, rows: Rows):
    fetched, processing = floor.fetched(), floor.running()
    for held in (fetched, processing):
        rows.silent(held.uuid, 100)
    assert [one.id for one in rescue(store, zombie=200, fetched=60)] == [fetched.uuid]
    assert [one.id for one in rescue(store, zombie=60, fetched=200)] == [processing.uuid]


def test_a_rescue_is_bounded(store, floor: Floor, rows: Rows, monkeypatch):
    from redrive.store.sql import rescue as rescues

    monkeypatch.setattr(rescues, "BATCH", 3)
    floor.accept(*(job() for _ in range(5)))
    for held in floor.take(5):
        rows.silent(held.uuid)
    assert [len(rescue(store)) for _ in range(3)] == [3, 2, 0]


@pytest.mark.postgres
def test_a_rescue_waits_for_nobody(postgres_store, shared_postgres):
    postgres_store.register(worker())
    floor, rows = Floor(postgres_store), Rows(postgres_store)
    held, free = floor.running(), floor.running()
    for one in (held, free):
        rows.silent(one.uuid)
    with psycopg.connect(shared_postgres) as other:
        other.execute("SELECT 1 FROM redrive.jobs_hot WHERE id = %s FOR UPDATE", [held.uuid])
        assert [one.id for one in rescue(postgres_store)] == [free.uuid]
    assert [one.id for one in rescue(postgres_store)] == [held.uuid]


def test_runs_are_judged_by_rescuers_that_know_their_type(store, floor: Floor, rows: Rows):
    """Whether a run may be repeated is known where its handler is; for the others it is not theirs to bury."""
    own, fetched, cancelled = floor.running(), floor.fetched(type="sms.v1"), running(floor, "sms.v1")
    strange = running(floor, "sms.v1")
    floor.ask(Verb.CANCEL, cancelled.uuid)
    for held in (own, fetched, cancelled, strange):
        rows.silent(held.uuid, 100)
    store.register(worker("w2", types=(kind("sms.v1"),)))
    found = rescue(store, AGAIN, types=(TYPE,))
    assert {one.id: one.spot for one in found} == {
        own.uuid: "scheduled", fetched.uuid: "pending", cancelled.uuid: "dlq",
    }  # fmt: skip
    assert floor.spot(strange.uuid) is Spot.PROCESSING
    taken = store.rescue(
        zombie_timeout=60, fetched_timeout=60, rules=lambda _: AGAIN, slot=4, types=("sms.v1", "more.v1")
    )
    assert [(one.id, one.spot) for one in taken] == [(strange.uuid, "scheduled")]
    assert rescue(store, types=(TYPE,)) == []
    floor.kept()


def test_a_run_of_a_type_nobody_serves_is_buried_in_the_end(store, floor: Floor, rows: Rows):
    held, served, fresh = running(floor, "sms.v1"), running(floor, "news.v1"), running(floor, "sms.v1")
    rows.silent(fresh.uuid, 100)
    store.register(worker("w2", types=(kind("news.v1"),)))
    store.register(worker("w3", types=(kind("sms.v1"),)))
    for one in (held, served):
        rows.silent(one.uuid, 60 + 601)
    assert rescue(store, types=(TYPE,)) == [], "somebody serves it"
    store.unregister("w3")
    assert rescue(store, types=(TYPE,), orphaned=700) == [], "somebody may come back"
    assert [(one.id, one.spot) for one in rescue(store, types=(TYPE,))] == [(held.uuid, "dlq")]
    assert floor.head(held.uuid).reason is Reason.ZOMBIE
    assert [floor.spot(one.uuid) for one in (served, fresh)] == [Spot.PROCESSING] * 2
    floor.kept()


def test_types_nobody_here_knows_do_not_stand_in_the_way(store, floor: Floor, rows: Rows, monkeypatch):
    from redrive.store.sql import rescue as rescues

    monkeypatch.setattr(rescues, "BATCH", 2)
    store.register(worker("w2", types=(kind("sms.v1"),)))
    strange, own = [running(floor, "sms.v1") for _ in range(5)], floor.running()
    for one in (*strange, own):
        rows.silent(one.uuid, 100)
    assert [one.id for one in rescue(store, types=(TYPE,))] == [own.uuid]


@pytest.mark.postgres
def test_one_rescuer_at_a_time(postgres_store, shared_postgres):
    store = postgres_store
    store.register(worker())
    floor, rows = Floor(store), Rows(store)
    held = floor.running()
    rows.silent(held.uuid)
    with psycopg.connect(shared_postgres) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('redrive:redrive:rescue'))")
        assert rescue(store) == [], "and it is not waited for"
    assert [one.id for one in rescue(store)] == [held.uuid]


@pytest.mark.parametrize("locked", [True, False], ids=["one at a time", "all at once"])
def test_two_rescuers_take_each_job_once(store, floor: Floor, rows: Rows, monkeypatch, locked: bool):
    if not locked:
        monkeypatch.setattr(type(store._db), "alone", lambda *_: True)
    floor.accept(*(job() for _ in range(60)))
    for held in floor.take(60):
        rows.silent(held.uuid)
    found: list[Rescued] = []
    threads = [threading.Thread(target=lambda: found.extend(rescue(store))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len({one.id for one in found}) == 60
    assert rows.totals(QUEUE) == {"failed": 60}
    floor.kept()


@pytest.mark.postgres
@pytest.mark.parametrize("skew", [-120.0, 120.0])
def test_no_clock_but_the_databases_counts(postgres_store, monkeypatch, skew: float):
    """A worker's clock two minutes off: nothing is late, early, rescued or negative."""
    import time

    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + int(skew * 1e9))
    monkeypatch.setattr(time, "time", lambda: (real() + int(skew * 1e9)) / 1e9)
    store = postgres_store
    store.register(worker())
    floor = Floor(store)
    held = floor.running(due=None)
    assert 0 <= held.age < 5
    assert rescue(store, zombie=60) == []
    due = floor.later(0.05)
    assert store.promote().next_due is None or floor.spot(due) is Spot.SCHEDULED
    time.sleep(0.06)
    store.promote()
    assert floor.spot(due) is Spot.PENDING
    floor.settle(retry(held, 0.0))
    assert store.promote().count == 1
    (first, _) = floor.take(2)
    floor.settle(succeed(first))
    done = floor.head(first.uuid)
    assert done.finished_at is not None
    assert done.started_at is not None
    assert done.created_at <= done.started_at <= done.finished_at <= store.now()
    (seen,) = store.workers()
    assert 0 <= seen.silent < 5
