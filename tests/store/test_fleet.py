"""Workers, types and queues: who is there, what they serve, how it is set."""

import threading
from datetime import timedelta

import psycopg
import pytest

from redrive.domain.errors import InvalidField, NotFound, VersionChanged
from redrive.store.port import Condition, Orders, QueueChange
from redrive.store.sql.tables import workers

from .make import ACTOR, OTHER, QUEUE, TYPE, Floor, draft, job, kind, pair, succeed, worker
from .rows import Rows

# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_worker_announces_itself_its_queues_and_types(store):
    announced = worker(
        "host-1:4711:abc",
        queues=("a", "b", "a"),
        types=(kind("x.v1", timeout=30.0, owner="team", idempotent=True, on_zombie="retry"), kind("y.v1", queue="b")),
        concurrency=20,
    )
    before = store.now()
    store.register(announced)
    (seen,) = store.workers()
    assert (seen.id, seen.host, seen.pid, seen.build) == (announced.id, "host-1", 4711, "b1")
    assert (seen.queues, seen.types, seen.concurrency) == (("a", "b", "a"), ("x.v1", "y.v1"), 20)
    assert (seen.waiting, seen.holding) == (False, 0)
    assert before <= seen.started_at <= store.now()
    assert 0 <= seen.silent < 5
    x, y = store.types()
    assert (x.type, x.build, x.queue, x.schema, x.idempotent) == ("x.v1", "b1", QUEUE, {"type": "object"}, True)
    assert (x.on_zombie, x.retry, x.timeout, x.owner) == ("retry", {"max_attempts": 3}, 30.0, "team")
    assert (y.queue, y.timeout, y.owner) == ("b", None, None)
    assert [(queue.name, queue.version, queue.paused) for queue in store.queues()] == [("a", 0, False), ("b", 0, False)]


def test_slots_are_shared_evenly(store):
    slots = [store.register(worker(f"w{n}")) for n in range(18)]
    assert slots[:16] == list(range(16))
    assert slots[16:] == [0, 1]
    store.unregister("w5")
    assert store.register(worker("w99")) == 5


def test_registering_again_after_a_lost_answer_keeps_the_slot(store):
    slots = [store.register(worker("w1")), store.register(worker("w2")), store.register(worker("w1", concurrency=9))]
    assert slots == [0, 1, 0]
    assert {one.id: one.concurrency for one in store.workers()} == {"w1": 9, "w2": 5}


def test_a_newer_announcement_of_a_type_replaces_and_another_build_adds(store, rows: Rows):
    from redrive.store.sql.tables import job_types

    store.register(worker("w1", types=(kind(timeout=1.0),)))
    store.register(worker("w2", types=(kind(timeout=2.0),)))
    rows.run(job_types.update().values(seen_at=store.now() - timedelta(hours=1)))
    store.register(worker("w3", build="b2", types=(kind(timeout=3.0),)))
    assert [(view.build, view.timeout) for view in store.types()] == [("b2", 3.0), ("b1", 2.0)]


def test_a_worker_that_is_seen_lives(store, rows: Rows):
    store.register(worker())
    rows.run(workers.update().values(seen_at=store.now() - timedelta(seconds=500)))
    assert 499 < store.workers()[0].silent < 505
    assert store.seen("w1", waiting=True) == Orders(None)
    (view,) = store.workers()
    assert view.silent < 5
    assert view.waiting is True
    store.seen("w1", waiting=False)
    assert store.workers()[0].waiting is False


def test_what_others_wait_for(store, rows: Rows):
    for name, types in (("w1", ("a",)), ("w2", ("b", "c")), ("w3", ("c", "d")), ("w4", ("e",))):
        store.register(worker(name, types=tuple(map(kind, types))))
    assert store.awaited("w1") == frozenset(), "nobody waits"
    for name in ("w1", "w2", "w3"):
        store.seen(name, waiting=True)
    assert store.awaited("w1") == {"b", "c", "d"}
    store.seen("w3", waiting=False)
    assert store.awaited("w1") == {"b", "c"}
    rows.run(workers.update().where(workers.c.id == "w2").values(seen_at=store.now() - timedelta(seconds=61)))
    assert store.awaited("w4") == {"a"}, "who is silent waits for nothing"


def test_a_worker_whose_row_is_gone_is_told(store):
    store.register(worker())
    store.unregister("w1")
    assert store.seen("w1", waiting=True) is None
    assert store.workers() == []
    store.unregister("w1")


def test_a_worker_says_how_it_is_and_keeps_saying_it(store):
    store.register(worker(concurrency=20))
    store.seen("w1", waiting=False, condition=Condition("quiet", 3, 12))
    (view,) = store.workers()
    assert (view.mode, view.stuck, view.concurrency, view.waiting) == ("quiet", 3, 12, False)
    store.seen("w1", waiting=True)
    (view,) = store.workers()
    assert (view.mode, view.stuck, view.concurrency, view.waiting) == ("quiet", 3, 12, True)


def test_an_order_reaches_the_worker_with_its_heartbeat_and_is_audited_once(store):
    store.register(worker("w1", concurrency=20))
    store.register(worker("w2"))
    view = store.set_worker("w1", 5, draft("set-worker"))
    assert (view.id, view.concurrency, view.wanted_concurrency) == ("w1", 20, 5)
    assert store.seen("w1", waiting=False) == Orders(5)
    assert store.seen("w2", waiting=False) == Orders(None)
    store.set_worker("w1", 5, draft("set-worker"))
    store.register(worker("w1"))  # its row was taken for dead, or an answer was lost: the order stands
    assert store.seen("w1", waiting=False) == Orders(5)
    assert store.set_worker("w1", None, draft("set-worker")).wanted_concurrency is None
    later, first = store.audit_entries(target="worker w1")
    assert (first.action, first.actor, first.result) == ("set-worker", ACTOR, "changed")
    assert first.details == {"before": {"concurrency": None}, "after": {"concurrency": 5}}
    assert later.details["after"] == {"concurrency": None}
    with pytest.raises(NotFound, match="worker w3"):
        store.set_worker("w3", 5, draft("set-worker"))


def test_rows_of_workers_silent_for_a_day_go(store, rows: Rows):
    store.register(worker("old"))
    rows.run(workers.update().values(seen_at=store.now() - timedelta(days=1, seconds=5)))
    store.register(worker("new"))
    assert [view.id for view in store.workers()] == ["new"]


def test_workers_are_listed_longest_silent_last_with_what_they_hold(store, rows: Rows):
    for name in ("w1", "w2", "w3"):
        store.register(worker(name))
    floor = Floor(store)
    floor.accept(*(job() for _ in range(3)))
    floor.take(2, who="w2")
    floor.fetch(1, who="w1")
    rows.run(workers.update().where(workers.c.id == "w1").values(seen_at=store.now() - timedelta(seconds=60)))
    views = store.workers()
    assert views[-1].id == "w1"
    assert {view.id: view.holding for view in views} == {"w1": 1, "w2": 2, "w3": 0}


# -- queues ------------------------------------------------------------------------------------------------------------


def test_a_queue_shows_what_is_in_it(store, floor: Floor, rows: Rows):
    floor.later()
    one = floor.archived()
    floor.dead()
    floor.running()
    floor.fetched()
    old, _ = floor.one(), floor.one()
    rows.earlier(old, "due_at", 120)
    from redrive.domain.states import Verb

    floor.ask(Verb.PURGE, one)
    queue = {queue.name: queue for queue in store.queues()}[QUEUE]
    assert (queue.scheduled, queue.pending, queue.fetched, queue.processing, queue.dead) == (1, 2, 1, 1, 1)
    assert (queue.succeeded_total, queue.failed_total, queue.retried_total, queue.purged_total) == (1, 1, 0, 1)
    assert queue.oldest_pending is not None
    assert 119 < queue.oldest_pending < 125


def test_queues_known_only_by_jobs_or_counters_are_shown(store, floor: Floor):
    floor.one(queue="new")
    assert [queue.name for queue in store.queues()] == [QUEUE, "new", OTHER]
    new = store.queues()[1]
    assert (new.pending, new.paused, new.version, new.zombie_timeout, new.oldest_pending is None) == (
        1,
        False,
        0,
        None,
        False,
    )


def test_a_change_is_audited_with_before_and_after(store, floor: Floor):
    info = store.set_queue(
        QUEUE, QueueChange(paused=True, zombie_timeout=90.0, owner="team"), draft("set-queue", "because"), version=0
    )
    assert (info.name, info.paused, info.zombie_timeout, info.owner, info.version) == (QUEUE, True, 90.0, "team", 1)
    (entry,) = store.audit_entries()
    assert (entry.actor, entry.action, entry.target, entry.result, entry.note) == (
        ACTOR, "set-queue", f"queue {QUEUE}", "changed", "because"
    )  # fmt: skip
    assert entry.details["before"] == {"paused": False, "zombie_timeout": None, "owner": None}
    assert entry.details["after"] == {"paused": True, "zombie_timeout": 90.0, "owner": "team"}
    info = store.set_queue(QUEUE, QueueChange(clear=("zombie_timeout", "owner")), draft("set-queue"), version=1)
    assert (info.paused, info.zombie_timeout, info.owner, info.version) == (True, None, None, 2)


def test_a_change_that_changes_nothing_writes_nothing(store, floor: Floor):
    store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
    info = store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
    assert info.version == 1
    store.set_queue(QUEUE, QueueChange(), draft("set-queue"), version=None)
    assert len(store.audit_entries()) == 1


def test_a_version_that_was_not_read_is_refused(store):
    for name in ("fresh", "fresh2"):
        with pytest.raises(VersionChanged):
            store.set_queue(name, QueueChange(paused=True), draft("pause"), version=1)
    assert store.queues() == []
    assert store.set_queue("fresh", QueueChange(paused=True), draft("pause"), version=0).version == 1
    with pytest.raises(VersionChanged) as refused:
        store.set_queue("fresh", QueueChange(paused=False), draft("resume"), version=0)
    assert (refused.value.expected, refused.value.actual) == (0, 1)


def test_names_and_settings_are_checked(store):
    with pytest.raises(InvalidField, match="queue"):
        store.set_queue("no spaces", QueueChange(), draft("x"), version=None)
    with pytest.raises(InvalidField, match="clear"):
        store.set_queue(QUEUE, QueueChange(clear=("paused",)), draft("x"), version=None)


def test_timeouts_of_a_queue(store, floor: Floor):
    info = store.set_queue(QUEUE, QueueChange(fetched_timeout=31.5), draft("set-queue"), version=None)
    assert (info.fetched_timeout, info.zombie_timeout) == (31.5, None)


@pytest.mark.postgres
def test_a_pause_waits_for_a_claim_that_is_under_way_and_is_then_effective(postgres_store, shared_postgres):
    """A pause that answered before could be overtaken by a claim that had already looked."""
    store = postgres_store
    store.register(worker())
    floor = Floor(store)
    floor.one()
    answered = threading.Event()

    def pause() -> None:
        store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
        answered.set()

    thread = threading.Thread(target=pause)
    with psycopg.connect(shared_postgres) as claiming:
        claiming.execute("SELECT 1 FROM redrive.queues WHERE name = %s AND NOT paused FOR SHARE", [QUEUE])
        thread.start()
        assert not answered.wait(0.2)
    assert answered.wait(5)
    thread.join()
    assert floor.take() == []


@pytest.mark.postgres
def test_a_claim_and_a_start_wait_for_a_pause_that_is_under_way(postgres_store, shared_postgres):
    store = postgres_store
    store.register(worker())
    floor = Floor(store)
    held = floor.fetched()
    floor.one()
    got: list[object] = []
    threads = [
        threading.Thread(target=lambda: got.append(len(floor.take()))),
        threading.Thread(target=lambda: got.append(len(store.start((QUEUE,), [pair(held)])))),
    ]
    with psycopg.connect(shared_postgres) as pausing:
        pausing.execute("UPDATE redrive.queues SET paused = true WHERE name = %s", [QUEUE])
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert got == [], "neither has answered yet"
    for thread in threads:
        thread.join()
    assert got == [0, 0]


# -- wake-ups ----------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.parametrize("size", [7_999, 8_001, 100_000])
def test_a_waiting_worker_is_woken_whatever_the_payloads_size(postgres_store, size: int):
    store = postgres_store
    store.register(worker())
    store.seen("w1", waiting=True)
    with store.listen([QUEUE]) as listener:
        for jobs in ([job(b"x" * size)], [job(b"x" * size) for _ in range(3)], [job(b"x" * size, idempotency_key="k")]):
            store.enqueue(jobs)
            assert listener.wait(2) is True
    assert len(Floor(store).take(9)) == 5


@pytest.mark.postgres
def test_many_jobs_in_one_transaction_are_one_notice_for_each_queue(postgres_store, shared_postgres):
    store = postgres_store
    store.register(worker())
    store.seen("w1", waiting=True)
    with psycopg.connect(shared_postgres, autocommit=True) as watching:
        watching.execute("LISTEN redrive")
        store.enqueue(
            [job(queue=(QUEUE, OTHER)[n % 2], idempotency_key=f"k{n}" if n % 3 else None) for n in range(500)]
        )
        notices = [notice.payload for notice in watching.notifies(timeout=0.3)]
    assert sorted(notices) == sorted([QUEUE, OTHER])


@pytest.mark.postgres
def test_nobody_is_notified_of_what_nobody_waits_for(postgres_store, shared_postgres):
    store = postgres_store
    store.register(worker())
    first = job(idempotency_key="k")
    with psycopg.connect(shared_postgres, autocommit=True) as watching:
        watching.execute("LISTEN redrive")
        store.enqueue([first])
        store.seen("w1", waiting=True)
        store.enqueue([job(idempotency_key="k")])  # a duplicate brings no work
        assert list(watching.notifies(timeout=0.2)) == []


@pytest.mark.postgres
def test_a_listener_is_not_woken_by_other_queues_nor_before_the_commit(postgres_store, shared_postgres):
    store = postgres_store
    store.register(worker())
    store.seen("w1", waiting=True)
    with store.listen([QUEUE]) as listener, psycopg.connect(shared_postgres) as theirs:
        store.enqueue([job(queue=OTHER)])
        store.enqueue([job()], connection=theirs)
        assert listener.wait(0.2) is False
        theirs.commit()
        assert listener.wait(2) is True


def test_a_wait_ends_when_it_is_interrupted(store):
    with store.listen([QUEUE]) as listener:
        threading.Timer(0.05, listener.interrupt).start()
        waited = threading.Event()

        def wait() -> None:
            listener.wait(10)
            waited.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert waited.wait(3)
        thread.join()


def test_a_wait_in_this_process_ends_with_an_enqueue(sqlite_store):
    with sqlite_store.listen([QUEUE]) as listener:
        sqlite_store.enqueue([job()])
        assert listener.wait(0.01) is True
        assert listener.wait(0.01) is False


def test_a_queue_that_is_worked_off_is_empty(floor: Floor, store):
    (held,) = [floor.running()]
    floor.settle(succeed(held))
    assert {queue.name: queue.processing for queue in store.queues()}[QUEUE] == 0
    assert {view.type for view in store.types()} == {TYPE}
