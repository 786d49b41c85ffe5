"""Workers and operators in any order, failures between statements, lost answers: the store against a model of it.

After every step each accepted job must be where the model says, at that attempt, life, revision and version, every
promise must hold, and every change of place must be an arrow of the lifecycle.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from redrive.domain.edits import JobEdit
from redrive.domain.errors import Unavailable
from redrive.domain.failures import Reason
from redrive.domain.job import ClaimedJob
from redrive.domain.lifecycle import TypeRules
from redrive.domain.moves import Answer, Did, PutOff, Release, Retry, SettleMove, Skip, Skipped, SnoozeFor, Succeed
from redrive.domain.once import Mark
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import ARROWS, Spot, Verb
from redrive.store.port import MarkAnswer, MarkClaim, Pair, QueueChange
from redrive.store.sql.store import SqlStore, open_store
from redrive.store.sql.tables import job_ledger, jobs_archive, jobs_dlq, jobs_hot, metadata

from .faults import Faults, faulty
from .make import OTHER, QUEUE, TYPE, Floor, broken, bury, draft, error, job, pair, retry, skip, snooze, succeed, worker
from .rows import Rows

T = TypeVar("T")
TYPES = (TYPE, "sms.send.v1")
QUEUES = (QUEUE, OTHER)
WORKERS = ("w1", "w2", "w3")
AGAIN = TypeRules(RetryPolicy(max_attempts=3, base=0, jitter=0), idempotent=True, on_zombie="retry")
HOT = (Spot.SCHEDULED, Spot.PENDING, Spot.FETCHED, Spot.PROCESSING)


@dataclass
class Job:
    """What the model knows of one job."""

    id: UUID
    type: str
    queue: str
    payload: bytes
    key: str | None
    spot: Spot
    due: bool = True
    version: int = 1
    revision: int = 1
    life: int = 1
    attempt: int = 0
    spent: int = 0
    lease: int | None = None
    worker: str | None = None
    cancel: bool = False
    reason: str | None = None
    edited: bool = False  # in this life
    grave: Job | None = None  # as it was dead, before this life
    renewed: bool = False  # its resurrection changed content

    def move(self, spot: Spot, **changes: Any) -> None:
        self.spot = spot
        self.version += 1
        for name, value in changes.items():
            setattr(self, name, value)
        if spot not in (Spot.FETCHED, Spot.PROCESSING):
            self.lease = self.worker = None
            self.cancel = False

    def seen(self) -> tuple[Any, ...]:
        return (
            self.spot.value, self.version, self.revision, self.life, self.attempt, self.spent, self.type, self.queue,
            self.payload, self.key, self.reason,
        )  # fmt: skip


@dataclass
class Holding:
    """A claim that a worker's memory knows, whether the lease still holds or not."""

    claimed: ClaimedJob
    started: bool = field(default=False)
    mark: Mark | None = None


def place_of(spot: Spot) -> str:
    return "hot" if spot in HOT else spot.value


class Machine(RuleBasedStateMachine):
    """One store, three workers, operators, and somebody who pulls cables."""

    store: SqlStore
    faults: Faults

    @initialize()
    def begin(self) -> None:
        self.rows = Rows(self.store)
        self.floor = Floor(self.store)
        prefix = "" if self.rows.sqlite else "redrive."
        for table in metadata.sorted_tables:
            self.rows.sql(f"DELETE FROM {prefix}{table.name}")
        for name in WORKERS:
            self.store.register(worker(name, queues=QUEUES))
        self.jobs: dict[UUID, Job] = {}
        self.purged: set[UUID] = set()
        self.held: dict[str, list[Holding]] = {name: [] for name in WORKERS}
        self.ghosts: list[ClaimedJob] = []
        self.applied: dict[Pair, str | None] = {}
        self.paused: set[str] = set()
        self.marks: dict[str, tuple[Pair, bool]] = {}  # who has a completion marker, and whether it is completed
        self.before: dict[UUID, Spot] = {}
        self.verbs: set[Verb] = set()

    # -- how calls are made --------------------------------------------------------------------------------------------

    def call(self, fault: int, lost: bool, work: Callable[[], T], *, several: bool = False) -> T:
        """Make a call with a failure at a statement, and once more; or make it twice as if the answer were lost.

        What failed has left everything as it was; ``several``: the call is several transactions, so that the first
        may have been committed.
        """
        if fault:
            before = self.everything()
            try:
                with self.faults.at(fault):
                    answer = work()
            except Unavailable:
                assert self.faults.struck
                if not several:
                    assert self.everything() == before, "a failed call left something behind"
            else:
                return answer
        answer = work()
        return work() if lost else answer

    def everything(self) -> dict[str, list[Any]]:
        def dump(connection: Any) -> dict[str, list[Any]]:
            tables = metadata.sorted_tables
            return {t.name: sorted(connection.execute(select(t)).all(), key=repr) for t in tables}

        return self.store._db.read(dump)

    def some(self, *spots: Spot) -> list[Job]:
        return [one for one in self.jobs.values() if one.spot in spots]

    def holder(self, type_: str, key: str | None) -> Job | None:
        if key is None:
            return None
        return next((one for one in self.some(*HOT) if (one.type, one.key) == (type_, key)), None)

    def holdings(self, name: str, *, started: bool) -> list[Holding]:
        return [one for one in self.held[name] if one.started is started]

    # -- producers -----------------------------------------------------------------------------------------------------

    @rule(
        items=st.lists(
            st.tuples(
                st.sampled_from(TYPES), st.sampled_from(QUEUES), st.sampled_from((None, None, "k", "l")), st.booleans()
            ),
            min_size=1,
            max_size=4,
        ),
        fault=st.integers(0, 6),
    )
    def enqueue(self, items: list[tuple[str, str, str | None, bool]], fault: int) -> None:
        jobs = [
            job(b"%d" % n, type=type_, queue=queue, idempotency_key=key, due=timedelta(hours=1) if later else None)
            for n, (type_, queue, key, later) in enumerate(items)
        ]
        answers = self.call(fault, False, lambda: self.store.enqueue(jobs))
        for one, (_, _, key, later), answer in zip(jobs, items, answers, strict=True):
            known = self.holder(one.type, key)
            assert (answer.id, answer.duplicate) == ((one.id, False) if known is None else (known.id, True))
            if known is None:
                spot = Spot.SCHEDULED if later else Spot.PENDING
                self.jobs[one.id] = Job(one.id, one.type, one.queue, one.payload, key, spot, due=not later)
        self.verbs = {Verb.ENQUEUE}

    # -- time ----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.some(Spot.SCHEDULED))
    @rule(pick=st.integers(0, 99))
    def time_passes_for_one(self, pick: int) -> None:
        waiting = self.some(Spot.SCHEDULED)
        one = waiting[pick % len(waiting)]
        self.rows.earlier(one.id, "due_at", 7200)
        one.due = True

    @rule(fault=st.integers(0, 3))
    def promote(self, fault: int) -> None:
        due = [one for one in self.some(Spot.SCHEDULED) if one.due]
        assert self.call(fault, False, self.store.promote).count == len(due)
        for one in due:
            one.move(Spot.PENDING)
        self.verbs = {Verb.PROMOTE}

    # -- workers -------------------------------------------------------------------------------------------------------

    @rule(
        name=st.sampled_from(WORKERS),
        limit=st.integers(1, 4),
        start=st.sampled_from(((), (TYPE,), TYPES)),
        queues=st.sampled_from((QUEUES, QUEUES[::-1], (OTHER,))),
        fault=st.integers(0, 4),
        lost=st.booleans(),
    )
    def claim(
        self, name: str, limit: int, start: tuple[str, ...], queues: tuple[str, ...], fault: int, lost: bool
    ) -> None:
        there = [one for one in self.some(Spot.PENDING) if one.queue in queues and one.queue not in self.paused]
        work = lambda: self.floor.fetch(limit, queues=queues, types=start, who=name)  # noqa: E731
        got = self.call(fault, False, work)
        assert len(got) == min(limit, len(there))
        for held in got:
            one = self.jobs[held.uuid]
            assert one in there
            assert held.started is (one.type in start)
            spot = Spot.PROCESSING if held.started else Spot.FETCHED
            one.move(spot, attempt=one.attempt + held.started, lease=held.lease, worker=name)
            assert (held.attempt, held.spent, held.life, held.revision) == (
                one.attempt,
                one.spent,
                one.life,
                one.revision,
            )
            assert held.payload == one.payload
            if not lost:  # an answer that never arrived: the rows are taken, and no memory knows of it
                self.held[name].append(Holding(held, held.started))
        self.verbs = {Verb.CLAIM_AND_START}

    @precondition(lambda self: any(self.holdings(name, started=False) for name in WORKERS))
    @rule(name=st.sampled_from(WORKERS), fault=st.integers(0, 3), lost=st.booleans(), pick=st.integers(1, 3))
    def start(self, name: str, fault: int, lost: bool, pick: int) -> None:
        mine = self.holdings(name, started=False)[:pick]
        pairs = [pair(one.claimed) for one in mine]
        started = self.call(fault, lost, lambda: self.store.start(QUEUES, pairs))
        for holding in mine:
            one = self.jobs.get(holding.claimed.uuid)
            may = one is not None and one.lease == holding.claimed.lease and one.queue not in self.paused
            assert (pair(holding.claimed) in started) is may
            if one is not None and may:
                one.move(Spot.PROCESSING, attempt=one.attempt + 1)
                holding.started = True
        self.verbs = {Verb.START}

    @precondition(lambda self: any(self.holdings(name, started=False) for name in WORKERS))
    @rule(name=st.sampled_from(WORKERS), aside=st.booleans(), fault=st.integers(0, 5), lost=st.booleans())
    def give_back(self, name: str, aside: bool, fault: int, lost: bool) -> None:
        mine = self.holdings(name, started=False)[:2]
        moves = [PutOff(*pair(one.claimed), delay=3600) if aside else Release(*pair(one.claimed)) for one in mine]
        self.call(fault, lost, lambda: self.store.give_back(moves))
        for holding in mine:
            self.held[name].remove(holding)
            one = self.jobs.get(holding.claimed.uuid)
            if one is not None and one.lease == holding.claimed.lease:
                one.move(Spot.SCHEDULED if aside else Spot.PENDING, due=not aside)
        self.verbs = {Verb.PUT_OFF if aside else Verb.RELEASE}

    @precondition(lambda self: any(self.holdings(name, started=False) for name in WORKERS))
    @rule(name=st.sampled_from(WORKERS), fault=st.integers(0, 8), lost=st.booleans())
    def bury_unserved(self, name: str, fault: int, lost: bool) -> None:
        mine = self.holdings(name, started=False)[:1]
        pairs = [pair(one.claimed) for one in mine]
        self.call(fault, lost, lambda: self.store.bury_unserved(pairs, worker_id=name, build="b1", slot=2))
        for holding in mine:
            self.held[name].remove(holding)
            one = self.jobs.get(holding.claimed.uuid)
            if one is not None and one.lease == holding.claimed.lease:
                one.move(Spot.DLQ, reason="fatal")
        self.verbs = {Verb.BURY}

    @precondition(lambda self: any(self.holdings(name, started=True) for name in WORKERS))
    @rule(
        name=st.sampled_from(WORKERS),
        ends=st.lists(
            st.sampled_from(("succeed", "succeed", "skip", "retry", "retry now", "bury", "cancelled", "snooze")),
            min_size=1,
            max_size=4,
        ),
        fault=st.integers(0, 12),
        lost=st.booleans(),
    )
    def settle(self, name: str, ends: list[str], fault: int, lost: bool) -> None:
        mine = self.holdings(name, started=True)[: len(ends)]
        moves = [self.end(end, one.claimed, one.mark) for end, one in zip(ends, mine, strict=False)]
        before = {pair(one.claimed): self.current(one.claimed) for one in mine}
        answers = self.call(
            fault, lost, lambda: self.store.settle(moves, worker_id=name, build="b1", slot=1), several=True
        )
        self.verbs = set()
        for move, holding, settled in zip(moves, mine, answers, strict=True):
            self.held[name].remove(holding)
            one = before[pair(holding.claimed)]
            if one is None:
                self.gone(move, settled.answer)
                continue
            # Repeated, a snooze leaves nothing to recognise it by: it is told stale, and it is settled all the same.
            again = {Answer.STALE} if isinstance(move, SnoozeFor) and not one.cancel else {Answer.ALREADY}
            assert settled.answer in {Answer.APPLIED} | (again if lost or fault else set())
            self.ended(one, move)
            assert settled.reason == (one.reason if one.spot is Spot.DLQ or settled.reason else None)

    @rule(
        name=st.sampled_from(WORKERS),
        keys=st.lists(st.sampled_from("pqr"), min_size=1, max_size=4),
        fault=st.integers(0, 8),
        lost=st.booleans(),
    )
    def mark(self, name: str, keys: list[str], fault: int, lost: bool) -> None:
        """Runs want completion markers: each has one holder until it ends, or for good when it completed it."""
        free = [one for one in self.holdings(name, started=True) if one.mark is None]
        wanted = list(zip(free, keys, strict=False))
        claims = [MarkClaim(*pair(one.claimed), "scope", key) for one, key in wanted]
        answers = self.call(fault, lost, lambda: self.store.claim_marks(claims))
        for (one, key), answer in zip(wanted, answers, strict=True):
            if self.current(one.claimed) is None:
                assert answer == MarkAnswer(False)
                continue
            (job_id, lease), done = self.marks.get(key, ((b"", 0), False))
            holder = self.jobs.get(UUID(bytes=job_id)) if job_id else None
            if done or (holder is not None and holder.lease == lease):
                assert answer == MarkAnswer(False, UUID(bytes=job_id), done)
            else:
                assert answer == MarkAnswer(True)
                self.marks[key] = (pair(one.claimed), False)
                one.mark = Mark("scope", key, 3600.0)

    def current(self, claimed: ClaimedJob) -> Job | None:
        """The job whose lease this is, if it still is."""
        one = self.jobs.get(claimed.uuid)
        return one if one is not None and one.lease == claimed.lease else None

    @staticmethod
    def end(name: str, held: ClaimedJob, mark: Mark | None = None) -> SettleMove:
        match name:
            case "succeed":
                return replace(succeed(held), mark=mark)
            case "skip":
                return skip(held)
            case "retry":
                return retry(held, 3600)
            case "retry now":
                return retry(held, 0)
            case "bury":
                return bury(held, Reason.TIMEOUT)
            case "cancelled":
                return bury(held, Reason.CANCELLED, charged=False)
            case _:
                return snooze(held, 0)

    def ended(self, one: Job, move: SettleMove) -> None:
        """Move the model's job by the end of its run."""
        lease = (move.id, move.lease)
        if isinstance(move, Succeed | Skip):
            if isinstance(move, Succeed) and move.mark is not None:
                self.marks[move.mark.key] = (lease, True)
            one.move(Spot.ARCHIVE)
            self.applied[lease] = None
            self.verbs.add(Verb.SUCCEED if isinstance(move, Succeed) else Verb.SKIP)
        elif isinstance(move, Retry | SnoozeFor) and not one.cancel:
            charged = isinstance(move, Retry)
            one.move(Spot.SCHEDULED, due=move.delay == 0, spent=one.spent + charged)
            self.verbs.add(Verb.RETRY if charged else Verb.SNOOZE)
            if charged:
                self.applied[lease] = None
        else:
            reason = "cancelled" if one.cancel or isinstance(move, Retry | SnoozeFor) else move.reason.value
            charged = isinstance(move, Retry) or (not isinstance(move, SnoozeFor) and move.charged)
            one.move(Spot.DLQ, reason=reason, spent=one.spent + charged)
            self.applied[lease] = reason
            self.verbs.add(Verb.BURY)

    def gone(self, move: SettleMove, answer: Answer) -> None:
        known = (move.id, move.lease) in self.applied
        assert answer is (Answer.ALREADY if known else Answer.STALE)

    @precondition(lambda self: self.ghosts)
    @rule(pick=st.integers(0, 99), end=st.sampled_from(("succeed", "retry", "bury", "snooze")), times=st.integers(1, 2))
    def a_late_finisher(self, pick: int, end: str, times: int) -> None:
        held = self.ghosts[pick % len(self.ghosts)]
        move = self.end(end, held)
        if self.current(held) is not None:
            return
        for _ in range(times):
            (settled,) = self.store.settle([move], worker_id="w1", build="b1", slot=1)
            self.gone(move, settled.answer)
        mine = (job_ledger.c.job_id == held.uuid, job_ledger.c.lease == held.lease)
        notes = self.rows.all(select(job_ledger).where(*mine, job_ledger.c.kind.like("late_%")))
        assert len(notes) <= 1

    @rule(name=st.sampled_from(WORKERS))
    def heartbeat(self, name: str) -> None:
        pairs = {pair(one.claimed): one for one in self.held[name]}
        pulse = self.store.heartbeat(list(pairs))
        assert pulse.lost == {known for known, one in pairs.items() if self.current(one.claimed) is None}
        wanted = {known for known, one in pairs.items() if (job_ := self.current(one.claimed)) and job_.cancel}
        assert pulse.cancel == wanted

    @rule(name=st.sampled_from(WORKERS), again=st.booleans(), fault=st.integers(0, 10), remembers=st.booleans())
    def a_worker_vanishes_and_is_rescued(self, name: str, again: bool, fault: int, remembers: bool) -> None:
        lost = [one for one in self.some(Spot.FETCHED, Spot.PROCESSING) if one.worker == name]
        for one in lost:
            self.rows.silent(one.id)
        rules = AGAIN if again else None
        rescued = self.call(
            fault,
            False,
            lambda: self.store.rescue(zombie_timeout=600, fetched_timeout=600, rules=lambda _: rules, slot=0),
        )
        assert {one.id for one in rescued} == {one.id for one in lost}
        told = {one.id: one.spot for one in rescued}
        for one in lost:
            if one.spot is Spot.FETCHED:
                one.move(Spot.PENDING)
            elif again and not one.cancel and one.spent + 1 < 3:
                one.move(Spot.SCHEDULED, due=True, spent=one.spent + 1)
            else:
                one.move(Spot.DLQ, reason="cancelled" if one.cancel else "zombie", spent=one.spent + 1)
            assert told[one.id] == one.spot.value
        if not remembers:  # the process is dead; otherwise it was only slow, and goes on as if nothing had been
            self.ghosts += [one.claimed for one in self.held[name] if one.started]
            self.held[name] = []
        self.verbs = {Verb.RESCUE}

    # -- operators -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(
        verb=st.sampled_from((Verb.CANCEL, Verb.ISOLATE, Verb.RUN_NOW, Verb.PURGE, Verb.RESURRECT, Verb.RESURRECT)),
        picks=st.lists(st.integers(0, 99), min_size=1, max_size=4),
        stale=st.booleans(),
        drop_key=st.booleans(),
        payload=st.sampled_from((None, None, b"repaired")),
        queue=st.sampled_from((None, None, OTHER)),
        later=st.booleans(),
        fault=st.integers(0, 12),
    )
    def operate(
        self,
        verb: Verb,
        picks: list[int],
        stale: bool,
        drop_key: bool,
        payload: bytes | None,
        queue: str | None,
        later: bool,
        fault: int,
    ) -> None:
        known = list(self.jobs.values())
        chosen = list({known[pick % len(known)].id: None for pick in picks})
        edit = JobEdit()
        if verb is Verb.RESURRECT and len(chosen) == 1 and payload is not None:
            edit = JobEdit(payload=payload)
        if verb is Verb.RESURRECT and queue is not None:
            edit = JobEdit(edit.payload, queue=queue)
        targets = [(one, self.jobs[one].version - (stale and n == 0)) for n, one in enumerate(chosen)]
        due = timedelta(hours=1) if later else None
        answers = self.call(fault, False, lambda: self.floor.ask(verb, *targets, edit=edit, due=due, drop_key=drop_key))
        by_id = {answer.id: answer for answer in answers}
        for n, one_id in sorted(enumerate(chosen), key=lambda item: item[1]):
            one, answer = self.jobs[one_id], by_id[one_id]
            if stale and n == 0:
                assert answer.skipped is Skipped.CHANGED
                continue
            self.verdict(verb, one, answer, edit, drop_key, later)
        self.verbs = {verb}

    def verdict(self, verb: Verb, one: Job, answer: Any, edit: JobEdit, drop_key: bool, later: bool) -> None:
        """What became of one job of an operator's call, in the model and in the answer."""
        if verb is Verb.CANCEL and one.spot is Spot.PROCESSING:
            one.cancel = True
            assert answer.did is Did.REQUESTED
            return
        if one.spot not in {source for source, _ in ARROWS[verb]}:
            assert answer.skipped is Skipped.NOT_ALLOWED
            return
        if verb is Verb.RESURRECT:
            held = self.holder(one.type, one.key)
            if held is not None and not drop_key:
                assert (answer.skipped, answer.holder) == (Skipped.KEY_HELD, held.id)
                return
            self.revive(one, edit, dropped=held is not None, later=later)
        elif verb is Verb.PURGE:
            del self.jobs[one.id]
            self.purged.add(one.id)
            self.marks = {key: had for key, had in self.marks.items() if had[0][0] != one.id.bytes}
            self.applied = {lease: why for lease, why in self.applied.items() if lease[0] != one.id.bytes}
        elif verb is Verb.RUN_NOW:
            one.move(Spot.PENDING)
        else:
            one.move(Spot.DLQ, reason="cancelled" if verb is Verb.CANCEL else "isolated")
        assert answer.did is Did.DONE

    @staticmethod
    def revive(one: Job, edit: JobEdit, *, dropped: bool, later: bool) -> None:
        grave = copy.copy(one)
        payload = edit.payload if isinstance(edit.payload, bytes) else one.payload
        renewed = dropped or payload != one.payload
        one.move(
            Spot.SCHEDULED if later else Spot.PENDING,
            due=not later,
            life=one.life + 1,
            attempt=0,
            spent=0,
            reason=None,
            payload=payload,
            key=None if dropped else one.key,
            queue=edit.queue if isinstance(edit.queue, str) else one.queue,
            revision=one.revision + renewed,
            grave=grave,
            renewed=renewed,
            edited=False,
        )

    @precondition(lambda self: self.jobs)
    @rule(pick=st.integers(0, 99), payload=st.sampled_from((b"1", b"2")), fault=st.integers(0, 8))
    def edit(self, pick: int, payload: bytes, fault: int) -> None:
        known = list(self.jobs.values())
        one = known[pick % len(known)]
        answer = self.call(fault, False, lambda: self.floor.edit((one.id, one.version), payload=payload))
        if one.spot not in (Spot.SCHEDULED, Spot.PENDING, Spot.DLQ):
            assert answer.skipped is Skipped.NOT_ALLOWED
        elif payload == one.payload:
            assert answer.skipped is Skipped.UNCHANGED
        else:
            assert answer.did is Did.DONE
            one.move(one.spot, payload=payload, revision=one.revision + 1)
            one.edited = one.spot is not Spot.DLQ
        self.verbs = {Verb.EDIT}

    @precondition(lambda self: any(one.life > 1 for one in self.some(*HOT)))
    @rule(pick=st.integers(0, 99), fault=st.integers(0, 12))
    def take_back(self, pick: int, fault: int) -> None:
        known = [one for one in self.some(*HOT) if one.life > 1]
        one = known[pick % len(known)]
        (answer,) = self.call(fault, False, lambda: self.floor.ask(Verb.TAKE_BACK, (one.id, one.version)))
        self.verbs = {Verb.TAKE_BACK}
        if one.spot not in (Spot.SCHEDULED, Spot.PENDING) or one.attempt or one.edited:
            assert answer.skipped is Skipped.NOT_ALLOWED
            return
        assert answer.did is Did.DONE
        old = one.grave
        assert old is not None
        one.move(
            Spot.DLQ, life=old.life, attempt=old.attempt, spent=old.spent, reason=old.reason, payload=old.payload,
            key=old.key, queue=old.queue, revision=one.revision + one.renewed, grave=old.grave, renewed=old.renewed,
            edited=old.edited,
        )  # fmt: skip

    @rule(fault=st.integers(0, 12), limit=st.integers(1, 3))
    def purge_the_archive(self, fault: int, limit: int) -> None:
        number = len(self.some(Spot.ARCHIVE))
        tomorrow = self.store.now() + timedelta(days=1)
        work = lambda: self.store.purge_archive(tomorrow, draft("purge-archive"), limit=limit)  # noqa: E731
        assert self.call(fault, False, work) == min(limit, number)
        left = {row[0] for row in self.rows.all(select(jobs_archive.c.id))}
        for one in self.some(Spot.ARCHIVE):
            if one.id not in left:
                del self.jobs[one.id]
                self.purged.add(one.id)
                self.applied = {lease: why for lease, why in self.applied.items() if lease[0] != one.id.bytes}
        self.verbs = {Verb.PURGE}

    @rule(name=st.sampled_from(QUEUES), paused=st.booleans(), fault=st.integers(0, 5))
    def pause(self, name: str, paused: bool, fault: int) -> None:
        change = QueueChange(paused=paused)
        self.call(fault, False, lambda: self.store.set_queue(name, change, draft("pause"), version=None), several=True)
        self.paused = self.paused | {name} if paused else self.paused - {name}

    @rule(limit=st.integers(1, 20), fault=st.integers(0, 6))
    def seal(self, limit: int, fault: int) -> None:
        self.call(fault, False, lambda: self.store.seal_audit(limit=limit))
        assert self.store.verify_audit().problems == ()

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def every_job_is_where_the_model_says(self) -> None:
        found: dict[UUID, tuple[Any, ...]] = {}
        for table, place in ((jobs_hot, None), (jobs_archive, "archive"), (jobs_dlq, "dlq")):
            for row in self.rows.all(select(table)):
                assert row.id not in found, f"{row.id} is in two places"
                spot = place or row.state
                if spot == "taken":
                    spot = "processing" if row.started_at is not None else "fetched"
                found[row.id] = (
                    spot, row.version, row.revision, row.life, row.attempt, row.spent, row.type, row.queue,
                    row.payload, row.idempotency_key, row.reason if place == "dlq" else None,
                )  # fmt: skip
                one = self.jobs.get(row.id)
                if place is None and one is not None:
                    assert (row.lease, row.worker_id) == (one.lease, one.worker)
                    assert (row.cancel_requested is not None) is one.cancel
        wanted = {one.id: (one.seen()) for one in self.jobs.values()}
        for one in self.jobs.values():
            if one.spot is not Spot.DLQ:
                wanted[one.id] = (*one.seen()[:-1], None)
        assert found == wanted

    @invariant()
    def every_promise_holds(self) -> None:
        assert broken(self.store.promises()) == []

    @invariant()
    def every_change_of_place_is_an_arrow(self) -> None:
        now = {one.id: one.spot for one in self.jobs.values()}
        arrows = {arrow for verb in self.verbs for arrow in ARROWS[verb]}
        for one in now.keys() | self.before.keys():
            change = self.before.get(one, Spot.NOWHERE), now.get(one, Spot.NOWHERE)
            assert change[0] == change[1] or change in arrows, f"{change} by {sorted(self.verbs)}"
        self.before, self.verbs = now, set()


@pytest.fixture
def machine(store: SqlStore, url: str) -> Any:
    """A machine on a store of its own, whose connections can fail."""
    own = open_store(url)
    faults = faulty(own)
    yield type("StoreMachine", (Machine,), {"store": own, "faults": faults})
    own.close()


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_store_agrees_with_the_model(machine: Any):
    run_state_machine_as_test(
        machine, settings=settings(max_examples=8, stateful_step_count=40, deadline=None, suppress_health_check=QUIET)
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_store_agrees_with_the_model_for_long(machine: Any):
    run_state_machine_as_test(
        machine, settings=settings(max_examples=150, stateful_step_count=80, deadline=None, suppress_health_check=QUIET)
    )


def test_a_failure_strikes_where_it_is_told(machine: Any):
    """The tool itself: at which statement a burial of two jobs fails, it leaves nothing, until it has no more."""
    store, faults = machine.store, machine.faults
    store.register(worker())
    floor = Floor(store)
    floor.accept(job(), job())
    moves = [bury(held, report=error()) for held in floor.take(2)]
    struck = 0
    for statement in range(1, 40):
        before = Rows(store).places()
        try:
            with faults.at(statement):
                store.settle(moves, worker_id="w1", build="b1", slot=1)
        except Unavailable:
            struck += 1
            assert Rows(store).places() == before
        else:
            break
    assert struck >= 7, "lock, insert, delete, ledger, totals, buckets, incidents at least"
    assert set(map(tuple, Rows(store).places().values())) == {("jobs_dlq",)}
    floor.kept()
