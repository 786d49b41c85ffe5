"""Cancel against everything else: whatever it meets at the same moment, exactly one of them decides."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from redrive.domain.failures import Reason
from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Answer, Answered, Did, Skipped
from redrive.domain.states import Spot, Verb
from redrive.store.port import mailbox
from redrive.store.sql.store import SqlStore

from .make import QUEUE, Floor, bury, pair, retry, succeed, worker
from .rows import Rows


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The answers of calls that are begun together, each in a thread of its own."""
    answers: list[Any] = [None] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(number: int, call: Callable[[], Any]) -> None:
        barrier.wait(30)
        answers[number] = call()

    threads = [threading.Thread(target=run, args=(n, call)) for n, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def in_which_order(answer: Answered) -> str:
    if answer.did is not None:
        return answer.did.value
    assert answer.skipped is Skipped.NOT_ALLOWED
    return "refused"


class Race:
    """Rounds of a cancel and something else on one job, and what came of them."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.seen: Counter[tuple[str, str, str]] = Counter()
        self.round = 0

    def together(self, cancel: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
        """At the same moment; in every fifth round the one is over before the other begins, and in the next after it.

        So that both orders are among the rounds, whatever the machine.
        """
        self.round += 1
        if self.round % 5 == 0:
            return [cancel(), other()]
        return [*reversed([other(), cancel()])] if self.round % 5 == 1 else at_once(cancel, other)

    def cancel(self, job_id: UUID) -> Callable[[], Answered]:
        return lambda: self.floor.ask(Verb.CANCEL, job_id)[0]

    def note(self, job_id: UUID, cancelled: Answered, other: str) -> None:
        head = self.floor.head(job_id)
        where = head.reason.value if head.reason is not None else head.spot.value
        self.seen[in_which_order(cancelled), other, where] += 1

    def settle(self, end: Callable[[ClaimedJob], Any]) -> None:
        held = self.floor.running()
        cancelled, (settled,) = self.together(self.cancel(held.uuid), lambda: self.floor.settle(end(held)))
        self.note(held.uuid, cancelled, settled.answer.value)

    def start(self) -> None:
        held = self.floor.fetched()
        cancelled, started = self.together(
            self.cancel(held.uuid), lambda: self.floor.store.start([QUEUE], [pair(held)], ())
        )
        self.note(held.uuid, cancelled, "started" if started else "not started")
        self.floor.settle(bury(held))

    def claim(self) -> None:
        job_id = self.floor.one()
        cancelled, taken = self.together(self.cancel(job_id), self.floor.take)
        self.note(job_id, cancelled, "started" if taken else "not started")
        self.floor.settle(*map(bury, taken))

    def rescue(self, rows: Rows) -> None:
        held = self.floor.running()
        rows.silent(held.uuid)
        rescue = self.floor.store.rescue
        cancelled, taken = self.together(
            self.cancel(held.uuid),
            lambda: rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=0),
        )
        rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: None, slot=0)  # it waits for nobody
        self.note(held.uuid, cancelled, "taken" if taken else "left")


APPLIED = Answer.APPLIED.value
WHO_WINS = {
    "succeed": {("requested", APPLIED, "archive"), ("refused", APPLIED, "archive")},
    "fail": {("requested", APPLIED, "cancelled"), ("refused", APPLIED, "fatal")},
    "try again": {("requested", APPLIED, "cancelled"), ("done", APPLIED, "cancelled")},
    "start": {("done", "not started", "cancelled"), ("requested", "started", "processing")},
    "claim": {("done", "not started", "cancelled"), ("requested", "started", "processing")},
    "rescue": {
        ("requested", "taken", "cancelled"), ("requested", "left", "cancelled"), ("refused", "taken", "zombie"),
    },
}  # fmt: skip
MOVES: dict[str, Callable[[Race, Rows], None]] = {
    "succeed": lambda race, _: race.settle(succeed),
    "fail": lambda race, _: race.settle(bury),
    "try again": lambda race, _: race.settle(lambda held: retry(held, 3600)),
    "start": lambda race, _: race.start(),
    "claim": lambda race, _: race.claim(),
    "rescue": lambda race, rows: race.rescue(rows),
}


def race(floor: Floor, rows: Rows, name: str, rounds: int) -> None:
    runs = Race(floor)
    for _ in range(rounds):
        MOVES[name](runs, rows)
    print(f"\n{name}: " + ", ".join(f"{' / '.join(how)} {n}" for how, n in runs.seen.most_common()))
    assert set(runs.seen) <= WHO_WINS[name]
    assert len({how[0] for how in runs.seen}) == 2, "both orders were there"
    assert runs.seen.total() == rounds
    floor.kept()


@pytest.mark.parametrize("name", MOVES)
def test_of_a_cancel_and_another_move_exactly_one_wins(floor: Floor, rows: Rows, name: str):
    race(floor, rows, name, rounds=8)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MOVES)
def test_of_a_cancel_and_another_move_exactly_one_wins_a_thousand_times(floor: Floor, rows: Rows, name: str):
    race(floor, rows, name, rounds=1000)


def test_each_spot_has_its_answer(store: SqlStore, floor: Floor):
    """Scheduled, pending, fetched, to be tried again: gone at once. Processing: asked. Ended: refused, and why."""
    retrying = floor.running()
    floor.settle(retry(retrying, 3600))
    fetched, running = floor.fetched(), floor.running()
    done, dead = floor.archived(), floor.dead()
    scheduled, pending = floor.later(), floor.one()
    gone = (retrying.uuid, fetched.uuid, scheduled, pending)
    answers = floor.ask(Verb.CANCEL, *gone, running.uuid, done, dead)
    assert [one.did for one in answers] == [Did.DONE] * 4 + [Did.REQUESTED, None, None]
    assert {floor.head(one).reason for one in gone} == {Reason.CANCELLED}
    assert "it has succeeded" in answers[5].why
    assert floor.spot(running.uuid) is Spot.PROCESSING
    assert store.start([QUEUE], [pair(fetched)], ()) == frozenset()
    assert floor.take(5) == []
    floor.kept()


@pytest.mark.postgres
def test_a_request_is_told_to_the_worker_that_holds_the_job_and_to_nobody_else(postgres_store: SqlStore):
    store = postgres_store
    store.register(worker())
    floor = Floor(store)
    held, mine = floor.running(), floor.running()
    with store.listen([QUEUE, mailbox("w1")]) as theirs, store.listen([QUEUE, mailbox("w2")]) as others:
        floor.ask(Verb.CANCEL, held.uuid, mine.uuid)
        assert theirs.wait(5) is True
        assert theirs.heard == {mailbox("w1")}
        assert theirs.wait(0.05) is False, "one notice for all its jobs"
        assert others.wait(0.05) is False
        assert (theirs.heard, others.heard) == (frozenset(), frozenset())
    assert store.heartbeat([pair(held)]).cancel == {pair(held)}
