"""Completion markers below the port: who gets one, who has it meanwhile, and when it is over."""

import multiprocessing
import threading
from collections import Counter
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from redrive.domain.failures import Reason
from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Answer, SettleMove, Succeed
from redrive.domain.once import Mark
from redrive.domain.states import Spot, Verb
from redrive.store.port import MarkAnswer, MarkClaim
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import metric_buckets
from redrive.store.sql.tables_later import once_marks

from .make import QUEUE, Floor, bury, draft, job, pair, retry, skip, snooze, succeed, worker
from .rows import Rows

SPAWN = multiprocessing.get_context("spawn")
KEPT = Mark("scope", "k", 3600.0)


def wants(held: ClaimedJob, key: str = "k", scope: str = "scope") -> MarkClaim:
    return MarkClaim(*pair(held), scope, key)


def marks(rows: Rows) -> dict[str, tuple[str, UUID]]:
    return {row.key: (row.state, row.job_id) for row in rows.all(select(once_marks))}


def done(held: ClaimedJob, key: str = "k", keep: float = 3600.0) -> Succeed:
    return replace(succeed(held), mark=Mark("scope", key, keep))


def rescue(store: SqlStore, rows: Rows, *held: ClaimedJob) -> None:
    for one in held:
        rows.silent(one.uuid)
    assert len(store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=0)) == len(held)


def test_the_first_gets_it_and_others_are_told_who_has_it(store: SqlStore, floor: Floor, rows: Rows):
    first, second, third, elsewhere, other = (floor.running() for _ in range(5))
    assert store.claim_marks([wants(first), wants(second)]) == [MarkAnswer(True), MarkAnswer(False, first.uuid)]
    answers = store.claim_marks([wants(other, "l"), wants(third), wants(elsewhere, scope="other")])
    assert answers == [MarkAnswer(True), MarkAnswer(False, first.uuid), MarkAnswer(True)]
    assert store.claim_marks([wants(first)]) == [MarkAnswer(True)], "the answer may have been lost"
    floor.settle(done(first))
    assert store.claim_marks([wants(second)]) == [MarkAnswer(False, first.uuid, done=True)]
    assert marks(rows)["l"] == ("running", other.uuid)
    floor.kept()


def test_nobody_wants_one(store: SqlStore):
    assert store.claim_marks([]) == []


@pytest.mark.parametrize("end", [retry, bury, snooze, skip], ids=["retry", "bury", "snooze", "skip"])
def test_a_run_that_ends_without_success_lets_go(store: SqlStore, floor: Floor, rows: Rows, end: Any):
    first, second = floor.running(), floor.running()
    store.claim_marks([wants(first), wants(second, "l")])
    floor.settle(end(first))
    assert marks(rows) == {"l": ("running", second.uuid)}
    assert store.claim_marks([wants(floor.running())]) == [MarkAnswer(True)]
    floor.kept()


@pytest.mark.parametrize("spot", [Spot.DLQ, Spot.SCHEDULED])
def test_a_rescue_lets_go(store: SqlStore, floor: Floor, rows: Rows, spot: Spot):
    from .test_liveness import AGAIN

    held = floor.running()
    store.claim_marks([wants(held)])
    rows.silent(held.uuid)
    rules = AGAIN if spot is Spot.SCHEDULED else None
    store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: rules, slot=0)
    assert floor.spot(held.uuid) is spot
    assert marks(rows) == {}
    floor.kept()


def test_a_late_success_completes_nothing(store: SqlStore, floor: Floor, rows: Rows):
    held, other = floor.running(), floor.running()
    store.claim_marks([wants(held)])
    rescue(store, rows, held)
    assert store.claim_marks([wants(other)]) == [MarkAnswer(True)]
    assert floor.settle(done(held))[0].answer is Answer.STALE
    assert marks(rows) == {"k": ("running", other.uuid)}
    assert [line.kind for line in rows.ledger(held.uuid)] == ["zombie", "late_success"]


def test_a_run_whose_lease_is_gone_gets_none(store: SqlStore, floor: Floor, rows: Rows):
    held, fetched = floor.running(), floor.fetched()
    rescue(store, rows, held)
    never = MarkClaim(b"\x01" * 16, 7, "scope", "k")
    assert store.claim_marks([wants(held), never, wants(fetched)]) == [MarkAnswer(False)] * 3
    assert marks(rows) == {}
    mine = floor.running()
    assert store.claim_marks([wants(held), wants(mine)]) == [MarkAnswer(False), MarkAnswer(True)]


def test_the_marker_is_completed_with_the_job_or_not_at_all(store: SqlStore, floor: Floor, rows: Rows):
    held = floor.running()
    store.claim_marks([wants(held)])
    before = store.now()
    (settled,) = floor.settle(replace(done(held), result=b"[1]"))
    assert settled.answer is Answer.APPLIED
    record = store.find(held.uuid)
    assert record is not None
    assert (record.head.spot, record.head.outcome, record.result) == (Spot.ARCHIVE, "succeeded", b"[1]")
    assert record.ledger == ()
    (row,) = rows.all(select(once_marks))
    assert (row.state, row.job_id, row.lease) == ("completed", held.uuid, held.lease)
    assert 3590 < (row.expires_at - before).total_seconds() < 3700
    assert rows.totals(QUEUE) == {"succeeded": 1}
    assert floor.settle(done(held))[0].answer is Answer.ALREADY
    floor.kept()


def test_a_skipped_job_rests_in_the_archive_and_the_ledger_says_why(store: SqlStore, floor: Floor, rows: Rows):
    held, twice = floor.running(), floor.running()
    answers = floor.settle(skip(held), skip(twice), skip(twice))
    assert {answer.answer for answer in answers} == {Answer.APPLIED}
    head = floor.head(held.uuid)
    assert (head.spot, head.outcome, head.spent, head.version) == (Spot.ARCHIVE, "skipped", 0, 3)
    (line,) = rows.ledger(held.uuid)
    assert (line.kind, line.error_message, line.lease, line.reason) == (
        "skipped", "'k' was completed by job 4711", held.lease, None,
    )  # fmt: skip
    assert rows.totals(QUEUE) == {"succeeded": 2}
    assert [(row.outcome, row.n) for row in rows.all(select(metric_buckets))] == [("skipped", 2)]
    assert floor.settle(skip(held))[0].answer is Answer.ALREADY
    floor.kept()


def test_skips_need_the_lease(store: SqlStore, floor: Floor, rows: Rows):
    held, fetched = floor.running(), floor.fetched()
    rescue(store, rows, held)
    assert [one.answer for one in floor.settle(skip(held), skip(fetched), done(fetched))] == [Answer.STALE] * 3
    assert floor.spot(fetched.uuid) is Spot.FETCHED
    mine = floor.running()
    wrong = replace(skip(mine), lease=mine.lease + 1)
    assert [one.answer for one in floor.settle(wrong)] == [Answer.STALE]
    assert floor.spot(mine.uuid) is Spot.PROCESSING
    assert [line.kind for line in rows.ledger(held.uuid)] == ["zombie"], "a skip that came late is not worth a note"


def test_a_completion_counts_as_long_as_it_is_kept(store: SqlStore, floor: Floor, rows: Rows):
    first, second, third = floor.running(), floor.running(), floor.running()
    store.claim_marks([wants(first), wants(second, "l"), wants(third, "m")])
    floor.settle(done(first), done(second, "l"))
    assert store.prune_marks() == 0
    over = update(once_marks).where(once_marks.c.key == "k").values(expires_at=store.now())
    store._db.write(lambda connection: connection.execute(over))
    again = floor.running()
    assert store.claim_marks([wants(again)]) == [MarkAnswer(True)], "before anybody has tidied up"
    assert store.prune_marks() == 0
    floor.settle(done(again))
    store._db.write(lambda connection: connection.execute(over))
    assert store.prune_marks() == 1
    assert set(marks(rows)) == {"l", "m"}


def test_pruning_is_bounded(store: SqlStore, floor: Floor, rows: Rows, monkeypatch: pytest.MonkeyPatch):
    from redrive.store.sql import once

    monkeypatch.setattr(once, "BATCH", 2)
    held = [floor.running() for _ in range(3)]
    store.claim_marks([wants(one, str(n)) for n, one in enumerate(held)])
    floor.settle(*(done(one, str(n), keep=0.0) for n, one in enumerate(held)))
    assert [store.prune_marks() for _ in range(3)] == [2, 1, 0]


def test_a_purge_lets_go_of_what_the_job_completed_and_expiry_does_not(store: SqlStore, floor: Floor, rows: Rows):
    """Who deletes a job wants nothing left of it; the archive's retention is not how long a completion counts."""
    first, second = floor.running(), floor.running()
    store.claim_marks([wants(first), wants(second, "l")])
    floor.settle(done(first), done(second, "l"))
    floor.ask(Verb.PURGE, first.uuid)
    assert set(marks(rows)) == {"l"}
    assert store.purge_archive(store.now(), draft("purge-archive")) == 1
    assert set(marks(rows)) == {"l"}
    assert store.claim_marks([wants(floor.running(), "l")]) == [MarkAnswer(False, second.uuid, done=True)]


def test_a_marker_without_a_run_breaks_a_promise(store: SqlStore, floor: Floor, rows: Rows):
    held = floor.running()
    store.claim_marks([wants(held)])
    floor.kept()
    table = "once_marks" if rows.sqlite else "redrive.once_marks"
    rows.sql(f"UPDATE {table} SET lease = lease + 1")
    (found,) = [one for one in store.promises() if one.number]
    assert (found.promise, found.number) == ("owner", 1)
    assert f"completion marker scope k is in progress without a run of job {held.uuid}" in found.examples


# -- races -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_many_that_want_one_marker_each_round_has_one_winner(store: SqlStore, floor: Floor, rows: Rows):
    """Eight threads, again and again: never two holders, never a marker that nobody can get."""
    problems: list[BaseException] = []
    holding, completed = Counter[str](), Counter[str]()
    lock = threading.Lock()

    def work(number: int) -> None:
        try:
            for turn in range(25):
                store.enqueue([job(), job()])
                held = floor.take(2, who=f"w{number}")
                keys = [f"k{(number + turn + n) % 3}" for n in range(len(held))]
                answers = store.claim_marks([wants(one, key) for one, key in zip(held, keys, strict=True)])
                with lock:
                    for key, answer in zip(keys, answers, strict=True):
                        holding[key] += answer.granted
                        assert holding[key] <= 1, f"{key} has two holders"
                        assert answer.granted or answer.holder is not None
                with lock:  # it is free from the settle on: whoever gets it meanwhile counts after us
                    holding.subtract(key for key, answer in zip(keys, answers, strict=True) if answer.granted)
                    moves: list[SettleMove] = []
                    for one, key, answer in zip(held, keys, answers, strict=True):
                        last = answer.granted and turn == 24 and not completed[key]
                        completed[key] += last
                        moves.append(done(one, key) if last else retry(one, 3600) if answer.granted else skip(one))
                    assert {one.answer for one in floor.settle(*moves)} <= {Answer.APPLIED}
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert {state for state, _ in marks(rows).values()} <= {"completed"}
    floor.kept()


def _claim_at_the_barrier(url: str, name: str, barrier: Barrier, rounds: int, answers: Any) -> None:
    store = open_store(url)
    store.register(worker(name))
    floor = Floor(store)
    for number in range(rounds):
        (held,) = floor.take(who=name)
        barrier.wait(60)
        (answer,) = store.claim_marks([wants(held, f"k{number}")])
        barrier.wait(60)  # until then the winner keeps it
        floor.settle(done(held, f"k{number}") if answer.granted else skip(held))
        answers.put((number, held.uuid, answer))
        barrier.wait(60)
    store.close()


def one_winner(url: str, processes: int, rounds: int) -> None:
    store = open_store(url)
    floor = Floor(store)
    floor.accept(*(job() for _ in range(processes * rounds)))
    answers, barrier = SPAWN.Queue(), SPAWN.Barrier(processes)
    crew = [
        SPAWN.Process(target=_claim_at_the_barrier, args=(url, f"p{n}", barrier, rounds, answers))
        for n in range(processes)
    ]
    for member in crew:
        member.start()
    found: dict[int, list[tuple[UUID, MarkAnswer]]] = {}
    for _ in range(processes * rounds):
        number, job_id, answer = answers.get(timeout=120)
        found.setdefault(number, []).append((job_id, answer))
    for member in crew:
        member.join()
    for number, given in found.items():
        (winner,) = [job_id for job_id, answer in given if answer.granted]
        losers = [answer for _, answer in given if not answer.granted]
        assert losers == [MarkAnswer(False, winner)] * (processes - 1), f"round {number}: {given}"
    outcomes = Counter(floor.head(job_id).outcome for given in found.values() for job_id, _ in given)
    assert outcomes == {"succeeded": rounds, "skipped": rounds * (processes - 1)}
    floor.kept()
    store.close()


@pytest.mark.slow
def test_processes_at_a_barrier_have_one_winner(database_url: str):
    one_winner(database_url, processes=3, rounds=5)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_processes_at_a_barrier_have_one_winner_a_thousand_times(database_url: str):
    one_winner(database_url, processes=4, rounds=1000)


def test_markers_in_any_order_lock_nobody_out(store: SqlStore, floor: Floor):
    """Claims and ends name several markers in orders of their own: nobody waits in a circle."""
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(10):
                store.enqueue([job() for _ in range(4)])
                held = floor.take(4, who=f"w{number}")
                keys = ["a", "b", "c", "d"][:: 1 if number % 2 else -1]
                store.claim_marks([wants(one, key) for one, key in zip(held, keys, strict=False)])
                floor.settle(*(bury(one, Reason.CANCELLED, charged=False) for one in held))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    floor.kept()
