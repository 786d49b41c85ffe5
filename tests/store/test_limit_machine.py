"""Limits and lock keys under any order of claims, starts, ends, rescues, operators and changes of the limits.

After every step: no queue starts a job beyond its limit, no two jobs with one key run, every promise holds. In the end,
once the limits are gone and everybody works, nothing is left: no job waits for a key that nobody holds.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import select

from redrive.domain.job import ClaimedJob
from redrive.domain.lifecycle import TypeRules
from redrive.domain.moves import Release
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import Spot, Verb
from redrive.store.port import QueueChange
from redrive.store.sql.store import SqlStore
from redrive.store.sql.tables import jobs_hot, metadata

from .make import OTHER, QUEUE, Floor, broken, bury, draft, job, pair, retry, snooze, succeed, worker
from .rows import Rows

QUEUES = (QUEUE, OTHER)
WORKERS = ("w1", "w2", "w3")
AGAIN = TypeRules(RetryPolicy(base=0, jitter=0), idempotent=True, on_zombie="retry")
TYPES = ((), ("email.send.v1",))


class LimitMachine(RuleBasedStateMachine):
    """One store, three workers, and operators who change their minds."""

    store: SqlStore

    @initialize()
    def begin(self) -> None:
        self.rows, self.floor = Rows(self.store), Floor(self.store)
        prefix = "" if self.rows.sqlite else "redrive."
        for table in metadata.sorted_tables:
            self.rows.sql(f"DELETE FROM {prefix}{table.name}")
        for name in WORKERS:
            self.store.register(worker(name, queues=QUEUES))
        self.held: list[ClaimedJob] = []
        self.limits: dict[str, int | None] = dict.fromkeys(QUEUES)
        self.before: dict[str, int] = dict.fromkeys(QUEUES, 0)

    @rule(
        items=st.lists(
            st.tuples(st.sampled_from(QUEUES), st.sampled_from((None, None, "k", "l")), st.integers(0, 2)),
            min_size=1, max_size=5,
        )
    )  # fmt: skip
    def enqueue(self, items: list[tuple[str, str | None, int]]) -> None:
        self.floor.accept(*(job(queue=queue, lock_key=key, priority=priority) for queue, key, priority in items))

    @rule(who=st.sampled_from(WORKERS), number=st.integers(1, 5), types=st.sampled_from(TYPES))
    def claim(self, who: str, number: int, types: tuple[str, ...]) -> None:
        self.held += self.floor.fetch(number, queues=QUEUES, types=types, who=who)

    @rule(lost=st.booleans())
    def start(self, lost: bool) -> None:
        waiting = [one for one in self.held if not one.started]
        begun = self.store.start(QUEUES, [pair(one) for one in waiting])
        if lost:
            # And perhaps more: room that went to a job which then did not get its lock key is there again.
            first, begun = begun, self.store.start(QUEUES, [pair(one) for one in waiting])
            assert first <= begun
        for one in waiting:
            one.started = pair(one) in begun

    @rule()
    def give_back(self) -> None:
        self.store.give_back([Release(*pair(one)) for one in self.held if not one.started])
        self.held = [one for one in self.held if one.started]

    @rule(pick=st.integers(0, 99), how=st.sampled_from((succeed, retry, bury, snooze)), lost=st.booleans())
    def settle(self, pick: int, how: Any, lost: bool) -> None:
        running = [one for one in self.held if one.started]
        if running:
            one = running[pick % len(running)]
            self.floor.settle(how(one))
            if lost:
                self.floor.settle(how(one))
            self.held.remove(one)
            self.store.promote()

    @rule(pick=st.integers(0, 99), again=st.booleans())
    def rescue(self, pick: int, again: bool) -> None:
        if self.held:
            one = self.held[pick % len(self.held)]
            if self.floor.spot(one.uuid) in (Spot.FETCHED, Spot.PROCESSING):
                self.rows.silent(one.uuid)
        rules = AGAIN if again else None
        self.store.rescue(zombie_timeout=60, fetched_timeout=60, rules=lambda _: rules, slot=1)
        self.store.promote()

    @rule(verb=st.sampled_from((Verb.CANCEL, Verb.ISOLATE, Verb.RESURRECT, Verb.TAKE_BACK)), pick=st.integers(0, 99))
    def operate(self, verb: Verb, pick: int) -> None:
        every = sorted(self.rows.places(), key=str)
        if every:
            self.floor.ask(verb, every[pick % len(every)])

    @rule(queue=st.sampled_from(QUEUES), limit=st.sampled_from((None, 1, 2, 3)))
    def set_limit(self, queue: str, limit: int | None) -> None:
        change = QueueChange(clear=("max_running",)) if limit is None else QueueChange(max_running=limit)
        self.store.set_queue(queue, change, draft("set-queue"), version=None)
        self.limits[queue] = limit

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans())
    def pause(self, queue: str, paused: bool) -> None:
        self.store.set_queue(queue, QueueChange(paused=paused), draft("pause"), version=None)

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def no_queue_starts_more_than_its_limit(self) -> None:
        processing = dict.fromkeys(QUEUES, 0)
        for row in self.rows.all(select(jobs_hot.c.queue).where(jobs_hot.c.started_at.is_not(None))):
            processing[row.queue] += 1
        for queue, limit in self.limits.items():
            # A limit that was lowered ends nothing: what ran before may go on, and nothing comes to it.
            assert limit is None or processing[queue] <= max(limit, self.before[queue]), queue
        self.before = processing

    @invariant()
    def every_promise_holds(self) -> None:
        assert broken(self.store.promises()) == []

    def teardown(self) -> None:
        if not hasattr(self, "held"):
            return
        for queue in QUEUES:
            change = QueueChange(paused=False, clear=("max_running",))
            self.store.set_queue(queue, change, draft("set-queue"), version=None)
        self.give_back()
        self.floor.settle(*(succeed(one) for one in self.held))
        for _ in range(200):
            self.store.rescue(zombie_timeout=0, fetched_timeout=0, rules=lambda _: AGAIN, slot=1)
            self.store.promote()
            held = self.floor.take(9, queues=QUEUES)
            begun = self.store.start(QUEUES, [pair(one) for one in held if not one.started])
            self.floor.settle(*(succeed(one) for one in held if one.started or pair(one) in begun))
            if not self.rows.count(jobs_hot):
                break
        assert self.rows.count(jobs_hot) == 0, "something waits for ever"
        assert broken(self.store.promises()) == []


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_limits_and_keys_hold_in_any_order(store: SqlStore):
    run_state_machine_as_test(
        type("Machine", (LimitMachine,), {"store": store}),
        settings=settings(max_examples=6, stateful_step_count=25, deadline=None, suppress_health_check=QUIET),
    )


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_limits_and_keys_hold_in_any_order_for_long(store: SqlStore):
    run_state_machine_as_test(
        type("Machine", (LimitMachine,), {"store": store}),
        settings=settings(max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=QUIET),
    )
