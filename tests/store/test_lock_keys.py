"""Lock keys: one running job for each, freed by every end of a run; who waits is in nobody's way, and not forgotten."""

import threading
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection, event, select

from redrive.domain.failures import Reason
from redrive.domain.job import ClaimedJob
from redrive.domain.lifecycle import TypeRules
from redrive.domain.moves import Release, Skip
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Spot, Verb
from redrive.store.port import QueueChange
from redrive.store.sql import limited
from redrive.store.sql.tables import jobs_hot
from redrive.store.sql.tables_later import held_keys

from .make import OTHER, QUEUE, Floor, bury, draft, job, pair, retry, snooze, succeed, worker
from .rows import Rows

AGAIN = TypeRules(RetryPolicy(), idempotent=True, on_zombie="retry")
KEY = "customer-42"


def begin(floor: Floor, number: int = 9, **but) -> list[ClaimedJob]:
    """Claim and start what can be; the answer has what runs."""
    held = floor.take(number, **but)
    waiting = [one for one in held if not one.started]
    begun = floor.store.start((QUEUE, OTHER), [pair(one) for one in waiting])
    floor.store.give_back([Release(*pair(one)) for one in waiting if pair(one) not in begun])
    return [one for one in held if one.started or pair(one) in begun]


def keys(rows: Rows) -> dict[str, UUID]:
    return {row.lock_key: row.job_id for row in rows.all(select(held_keys))}


def blocked(rows: Rows) -> set[UUID]:
    return {row.id for row in rows.all(select(jobs_hot).where(jobs_hot.c.blocked))}


def test_one_of_a_key_runs_and_the_others_wait_out_of_the_way(store, floor: Floor, rows: Rows):
    first, second, third = (floor.one(lock_key=KEY) for _ in range(3))
    free, other = floor.one(), floor.one(lock_key="customer-43")
    running = begin(floor)
    assert {one.uuid for one in running} == {first, free, other}
    assert keys(rows) == {KEY: first, "customer-43": other}
    assert blocked(rows) == {second, third}
    assert [floor.spot(one) for one in (second, third)] == [Spot.PENDING] * 2
    row = rows.row(second)
    assert (row.attempt, row.lease, row.worker_id, row.version) == (0, None, None, 3)
    assert floor.take(9) == [], "a claim does not even see them"
    assert (floor.head(second).blocked, floor.head(first).blocked) == (True, False)
    floor.kept()


def test_a_claim_starts_no_job_with_a_key(floor: Floor):
    floor.one(lock_key=KEY)
    (held,) = floor.take()
    assert (held.started, held.attempt, floor.spot(held.uuid)) == (False, 0, Spot.FETCHED)


def test_a_key_is_one_for_all_types_and_queues(floor: Floor):
    here, there = floor.one(lock_key=KEY), floor.one(queue=OTHER, type="sms.v1", lock_key=KEY)
    (held,) = begin(floor, queues=(QUEUE, OTHER))
    assert held.uuid == here
    floor.settle(succeed(held))
    assert [one.uuid for one in begin(floor, queues=(QUEUE, OTHER))] == [there]


def end(floor: Floor, rows: Rows, held: ClaimedJob, way: str) -> None:
    """Let a run end in one of all ways."""
    match way:
        case "succeed":
            floor.settle(succeed(held))
        case "skipped":
            floor.settle(Skip(held.id, held.lease, 7, "somebody else has done it"))
        case "retry":
            floor.settle(retry(held, 3600))
        case "snooze":
            floor.settle(snooze(held, 3600))
        case "bury":
            floor.settle(bury(held))
        case "retry cancelled" | "snooze cancelled":
            floor.ask(Verb.CANCEL, held.uuid)
            floor.settle(retry(held) if way == "retry cancelled" else snooze(held))
        case _:
            rows.silent(held.uuid)
            rules = AGAIN if way == "zombie tried again" else None
            floor.store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: rules, slot=1)


WAYS = (
    "succeed",
    "skipped",
    "retry",
    "snooze",
    "bury",
    "retry cancelled",
    "snooze cancelled",
    "zombie",
    "zombie tried again",
)


@pytest.mark.parametrize("way", WAYS)
def test_every_end_frees_the_key_and_lets_the_next_go_on(store, floor: Floor, rows: Rows, way: str):
    floor.accept(*(job(lock_key=KEY) for _ in range(3)))
    (held,) = begin(floor)
    assert len(blocked(rows)) == 2
    end(floor, rows, held, way)
    assert keys(rows) == {}
    assert len(blocked(rows)) == 1, "one of them"
    floor.kept()
    (following,) = begin(floor)
    assert keys(rows) == {KEY: following.uuid}
    floor.kept()


def test_the_first_in_line_goes_on(store, floor: Floor, rows: Rows):
    floor.one(lock_key=KEY)
    (held,) = begin(floor)
    low, usual, high = (floor.one(lock_key=KEY, priority=priority) for priority in (1, 10, 90))
    assert begin(floor) == []
    assert blocked(rows) == {low, usual, high}
    order = []
    for _ in range(3):
        floor.settle(succeed(held))
        (held,) = begin(floor)
        order.append(held.uuid)
    assert order == [high, usual, low]


def test_a_stale_end_frees_no_key(store, floor: Floor, rows: Rows):
    floor.one(lock_key=KEY)
    (held,) = begin(floor)
    rows.silent(held.uuid)
    store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)
    floor.resurrect(held.uuid)
    (again,) = begin(floor)
    assert again.uuid == held.uuid
    floor.settle(succeed(held))
    floor.settle(bury(held))
    assert keys(rows) == {KEY: held.uuid}
    floor.kept()


def test_leaving_before_the_start_needs_no_key(store, floor: Floor, rows: Rows):
    held = floor.fetched(lock_key=KEY)
    assert keys(rows) == {}
    floor.ask(Verb.CANCEL, held.uuid)
    second = floor.fetched(lock_key=KEY)
    store.give_back([Release(*pair(second))])
    store.bury_unserved([pair(floor.take()[0])], worker_id="w1", build="b1", slot=1)
    assert keys(rows) == {}
    floor.kept()


@pytest.mark.parametrize("verb", [Verb.CANCEL, Verb.ISOLATE])
def test_who_waits_can_be_taken_out_and_the_next_is_found(store, floor: Floor, rows: Rows, verb: Verb):
    floor.accept(*(job(lock_key=KEY) for _ in range(4)))
    running = begin(floor)
    waiting = sorted(blocked(rows), key=str)
    assert floor.ask(verb, waiting[0])[0].ok
    floor.settle(succeed(running[0]))
    woken = next(one for one in waiting[1:] if one not in blocked(rows))
    assert floor.ask(verb, woken)[0].ok, "before it was claimed: nobody holds the key, and nobody is let go on"
    assert begin(floor) == []
    store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)
    assert len(begin(floor)) == 1
    floor.kept()


def test_what_waits_in_a_paused_queue_does_not_hold_up_others_for_long(store, floor: Floor):
    floor.one(queue=OTHER, lock_key=KEY)
    (held,) = begin(floor, queues=(OTHER,))
    floor.one(queue=OTHER, lock_key=KEY, priority=90)
    here = floor.one(lock_key=KEY)
    assert begin(floor, queues=(QUEUE, OTHER)) == []
    store.set_queue(OTHER, QueueChange(paused=True), draft("pause"), version=None)
    floor.settle(succeed(held))
    assert begin(floor, queues=(QUEUE, OTHER)) == []
    store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)
    assert [one.uuid for one in begin(floor, queues=(QUEUE, OTHER))] == [here]


def test_a_held_key_wakes_nobody(store, floor: Floor, rows: Rows):
    floor.accept(*(job(lock_key=KEY) for _ in range(3)))
    begin(floor)
    store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=1)
    assert len(blocked(rows)) == 2


def test_blocked_jobs_do_not_starve_the_others(floor: Floor):
    """However many wait for one key, and whatever their priority, others are claimed as if they were not there."""
    floor.accept(*(job(lock_key=KEY, priority=100) for _ in range(300)))
    free = floor.one(priority=0)
    began, rounds = begin(floor, 100), 0
    while free not in {one.uuid for one in began}:
        began = begin(floor, 100)
        rounds += 1
    assert rounds <= 3, "each of them is fetched once"


def test_a_start_sent_twice_starts_once(store, floor: Floor, rows: Rows):
    held = floor.fetched(lock_key=KEY)
    for _ in range(2):
        assert store.start((QUEUE,), [pair(held)]) == {pair(held)}
    assert rows.row(held.uuid).attempt == 1
    assert keys(rows) == {KEY: held.uuid}


@pytest.mark.postgres
@pytest.mark.parametrize("max_running", [None, 5])
def test_a_pause_waits_for_a_start_that_is_under_way(postgres_store, max_running: int | None):
    store = postgres_store
    store.register(worker())
    if max_running is not None:
        store.set_queue(QUEUE, QueueChange(max_running=max_running), draft("set-queue"), version=None)
    held = Floor(store).fetched(lock_key=KEY)
    answered = threading.Event()

    def pause() -> None:
        store.set_queue(QUEUE, QueueChange(paused=True), draft("pause"), version=None)
        answered.set()

    pausing = threading.Thread(target=pause)

    def under_way(connection: Connection) -> None:
        assert limited.start(store._db, connection, {pair(held)}, ()) == {pair(held)}
        pausing.start()
        assert not answered.wait(0.3), "what was answered would not be true: it is not committed yet"

    store._db.write(under_way)
    pausing.join(30)
    assert answered.is_set()


def test_a_limit_and_a_key_hold_together(store, floor: Floor, rows: Rows):
    floor.accept(*(job(lock_key=f"k{n % 2}") for n in range(6)))
    store.set_queue(QUEUE, QueueChange(max_running=3), draft("set-queue"), version=None)
    running = begin(floor)
    assert len(running) == 2
    assert len(keys(rows)) == 2
    store.set_queue(QUEUE, QueueChange(max_running=1), draft("set-queue"), version=None)
    floor.settle(succeed(running[0]))
    assert begin(floor) == []
    floor.settle(succeed(running[1]))
    assert len(begin(floor)) == 1
    floor.kept()


def test_a_queue_says_how_many_wait_for_a_key(store, floor: Floor):
    floor.accept(*(job(lock_key=KEY) for _ in range(3)))
    begin(floor)
    (found,) = [queue for queue in store.queues() if queue.name == QUEUE]
    assert (found.pending, found.blocked, found.processing) == (2, 2, 1)
    assert found.held_back == ("2 wait for a lock key",)


def test_a_key_kept_by_a_dead_job_comes_back_with_it(floor: Floor, rows: Rows):
    floor.one(lock_key=KEY)
    (held,) = begin(floor)
    floor.settle(bury(held, Reason.FATAL))
    floor.one(lock_key=KEY)
    (other,) = begin(floor)
    floor.resurrect(held.uuid)
    assert begin(floor) == []
    assert blocked(rows) == {held.uuid}
    floor.settle(succeed(other))
    assert [one.uuid for one in begin(floor)] == [held.uuid]


@pytest.mark.postgres
@pytest.mark.parametrize("move", [succeed, bury])
def test_an_end_waits_for_a_start_that_blocks_and_then_lets_it_go_on(postgres_store, shared_postgres, move):
    """Without that, the end would look for waiting jobs before there is one, and the job would wait for nobody."""
    store = postgres_store
    store.register(worker())
    floor, rows = Floor(store), Rows(store)
    floor.one(lock_key=KEY)
    (running,) = begin(floor)
    late = floor.fetched(lock_key=KEY)
    ending = threading.Thread(target=lambda: floor.settle(move(running)))
    with psycopg.connect(shared_postgres) as blocking:  # a start, at its last statement
        blocking.execute("SELECT 1 FROM redrive.held_keys WHERE lock_key = %s FOR SHARE SKIP LOCKED", [KEY])
        ending.start()
        ending.join(0.2)
        assert ending.is_alive()
        blocking.execute(
            "UPDATE redrive.jobs_hot SET state = 'pending', blocked = true, lease = NULL, worker_id = NULL,"
            " heartbeat_at = NULL WHERE id = %s",
            [late.uuid],
        )
    ending.join(10)
    assert blocked(rows) == set()
    assert [one.uuid for one in begin(floor)] == [late.uuid]


@pytest.mark.postgres
def test_a_key_that_is_just_being_freed_blocks_nobody(postgres_store, shared_postgres):
    store = postgres_store
    store.register(worker())
    floor, rows = Floor(store), Rows(store)
    floor.one(lock_key=KEY)
    (running,) = begin(floor)
    late = floor.fetched(lock_key=KEY)
    got: list[frozenset[object]] = []
    starting = threading.Thread(target=lambda: got.append(store.start((QUEUE,), [pair(late)])))
    with psycopg.connect(shared_postgres) as ending:
        ending.execute("DELETE FROM redrive.held_keys WHERE lock_key = %s", [KEY])
        starting.start()
        starting.join(0.2)
        assert got == [], "it waits to see whether the key is free"
    starting.join(10)
    assert got == [{pair(late)}]
    assert blocked(rows) == set()
    assert keys(rows) == {KEY: late.uuid}
    assert running.lease != late.lease


@pytest.mark.postgres
def test_a_key_that_is_freed_while_a_start_looks_blocks_nobody(postgres_store, shared_postgres):
    """The start has found the key taken, and its holder ends before the start can hold on to it."""
    store = postgres_store
    store.register(worker())
    floor, rows = Floor(store), Rows(store)
    floor.one(lock_key=KEY)
    begin(floor)
    late = floor.fetched(lock_key=KEY)
    looks = 0
    with psycopg.connect(shared_postgres) as ending:

        def end(connection: object, cursor: object, statement: str, *rest: object) -> None:
            nonlocal looks
            if "held_keys" in statement and "FOR SHARE" in statement:
                looks += 1
                ending.execute("DELETE FROM redrive.held_keys WHERE lock_key = %s", [KEY])

        event.listen(store._db._writer, "before_cursor_execute", end)
        try:
            begun = store.start((QUEUE,), [pair(late)])
        finally:
            event.remove(store._db._writer, "before_cursor_execute", end)
        assert (begun, looks) == (frozenset(), 1)
        assert blocked(rows) == set(), "whoever ends has looked for blocked jobs, or is about to"
    assert floor.spot(late.uuid) is Spot.FETCHED, "to be given back, and claimed again"


@pytest.mark.postgres
def test_workers_that_wait_hear_of_a_freed_key(postgres_store):
    store = postgres_store
    store.register(worker())
    floor = Floor(store)
    floor.accept(*(job(lock_key=KEY) for _ in range(3)))
    (held,) = begin(floor)
    store.seen("w1", waiting=True)
    with store.listen([QUEUE]) as listener:
        floor.settle(succeed(held))
        assert listener.wait(2) is True
        floor.settle(bury(begin(floor)[0]))
        assert listener.wait(2) is True
        store.set_queue(QUEUE, QueueChange(max_running=1), draft("set-queue"), version=None)
        assert listener.wait(2) is True, "and of settings"


def test_listeners_of_this_process_hear_of_a_freed_key(sqlite_store):
    sqlite_store.register(worker())
    floor = Floor(sqlite_store)
    floor.accept(*(job(lock_key=KEY) for _ in range(2)))
    (held,) = begin(floor)
    with sqlite_store.listen([QUEUE]) as listener:
        assert listener.wait(0.01) is False
        floor.settle(succeed(held))
        assert listener.wait(0.01) is True
