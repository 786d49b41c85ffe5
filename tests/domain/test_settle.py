"""The end of a run: which move follows from which outcome."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain import lifecycle
from redrive.domain.failures import FailureClass, Reason
from redrive.domain.lifecycle import TypeRules
from redrive.domain.moves import Bury, Retry, Skip, SnoozeFor, Succeed
from redrive.domain.once import Mark
from redrive.domain.outcome import (
    Cancelled,
    Done,
    Failed,
    LeaseLost,
    Skipped,
    Snoozed,
    TimedOut,
    Unclassified,
    WorkerStopped,
)
from redrive.domain.policy import LONGEST, RetryPolicy
from tests.domain.given import ERROR, JOB, a_run

RULES = TypeRules(RetryPolicy(max_attempts=3, base=10, factor=2, cap=100, jitter=4, max_age=1000))
IDEMPOTENT = TypeRules(RULES.retry, idempotent=True)
RETRY_ZOMBIES = TypeRules(RULES.retry, idempotent=True, on_zombie="retry")

TRANSIENT = Failed(FailureClass.TRANSIENT, ERROR)
THROTTLED = Failed(FailureClass.THROTTLED, ERROR, retry_after=30)
THREAD_TIMEOUT = TimedOut(ERROR, stopped=False)

# What may be tried again, under which rules, and the reason once it may not.
TRIED_AGAIN = [
    pytest.param(TRANSIENT, RULES, Reason.RETRIES_EXHAUSTED, id="transient"),
    pytest.param(THROTTLED, RULES, Reason.THROTTLED, id="throttled"),
    pytest.param(TimedOut(ERROR), RULES, Reason.TIMEOUT, id="timeout, stopped"),
    pytest.param(THREAD_TIMEOUT, IDEMPOTENT, Reason.TIMEOUT, id="timeout of an idempotent thread"),
    pytest.param(WorkerStopped(ERROR), RETRY_ZOMBIES, Reason.ZOMBIE, id="worker stopped, zombies are retried"),
]

# What is never tried again, and whether the run is charged to the budget.
BURIED = [
    pytest.param(Failed(FailureClass.FATAL, ERROR), RETRY_ZOMBIES, Reason.FATAL, True, id="fatal"),
    pytest.param(THREAD_TIMEOUT, RULES, Reason.TIMEOUT, True, id="timeout of a thread that may still run"),
    pytest.param(WorkerStopped(ERROR), RULES, Reason.ZOMBIE, True, id="worker stopped"),
    pytest.param(WorkerStopped(ERROR), IDEMPOTENT, Reason.ZOMBIE, True, id="worker stopped, zombies are buried"),
    pytest.param(
        WorkerStopped(ERROR), TypeRules(RULES.retry, on_zombie="retry"), Reason.ZOMBIE, True, id="not idempotent"
    ),
    pytest.param(LeaseLost(ERROR), RETRY_ZOMBIES, Reason.HEARTBEAT_LOST, True, id="lease lost"),
    pytest.param(Unclassified(ERROR), RETRY_ZOMBIES, Reason.UNKNOWN, True, id="engine failed"),
    pytest.param(Cancelled(ERROR), RETRY_ZOMBIES, Reason.CANCELLED, False, id="cancelled"),
]


def settle(run, outcome, rules=RULES, jitter=0.0, backoff=None):
    return lifecycle.settle(run, outcome, rules, jitter=jitter, backoff=backoff)


def test_a_handler_that_returns_has_succeeded():
    assert settle(a_run(), Done(b"42")) == Succeed(JOB.bytes, 7, 12, b"42")


def test_a_success_completes_the_marker_of_its_run():
    mark = Mark("orders", "o-1", 60.0)
    run = a_run(lease=9, duration_ms=12, mark=mark)
    assert settle(run, Done(b"1")) == Succeed(JOB.bytes, 9, 12, b"1", mark)
    assert settle(a_run(), Done()) == Succeed(JOB.bytes, 7, 12)


def test_a_run_that_was_skipped_says_why():
    assert settle(a_run(lease=9, duration_ms=12), Skipped("done by another")) == Skip(
        JOB.bytes, 9, 12, "done by another"
    )


@pytest.mark.parametrize(("asked", "waits"), [(90, 90), (0, 0), (-5, 0), (nan, 0), (inf, LONGEST)])
def test_a_snooze_is_as_long_as_asked_within_reason(asked, waits):
    assert settle(a_run(), Snoozed(asked), jitter=1) == SnoozeFor(JOB.bytes, 7, 12, waits)


def test_a_snooze_does_not_look_at_budget_or_age():
    tired = a_run(spent=99, age=99_999.0)
    assert settle(tired, Snoozed(90), jitter=1) == SnoozeFor(JOB.bytes, 7, 12, 90)


@pytest.mark.parametrize(("outcome", "rules", "reason", "charged"), BURIED)
def test_buried_at_the_first_run(outcome, rules, reason, charged):
    expected = Bury(JOB.bytes, 7, 12, reason, ERROR, max_attempts=3, charged=charged)
    assert settle(a_run(), outcome, rules) == expected


@pytest.mark.parametrize(("outcome", "rules", "reason"), TRIED_AGAIN)
class TestTheBudget:
    @pytest.mark.parametrize(
        ("max_attempts", "spent", "goes_on"),
        [
            (0, 0, False),  # not even one: the run that happened was the last
            (1, 0, False),
            (2, 0, True),
            (2, 1, False),
            (3, 1, True),
            (3, 2, False),
            (3, 7, False),  # the budget was lowered meanwhile
            (25, 23, True),
            (25, 24, False),
        ],
    )
    @pytest.mark.parametrize("whose", ["the job's", "the policy's"])
    def test_counts_the_run_that_ends(self, outcome, rules, reason, max_attempts, spent, goes_on, whose):
        if whose == "the job's":
            run = a_run(spent=spent, max_attempts=max_attempts)
        else:
            run = a_run(spent=spent)
            rules = TypeRules(RetryPolicy(max_attempts=max_attempts), rules.idempotent, rules.on_zombie)
        move = settle(run, outcome, rules)
        if goes_on:
            assert isinstance(move, Retry)
            assert (move.id, move.lease, move.duration_ms) == (JOB.bytes, 7, 12)
            assert (move.max_attempts, move.error) == (max_attempts, ERROR)
        else:
            assert move == Bury(JOB.bytes, 7, 12, reason, ERROR, max_attempts)

    def test_always_failing_runs_exactly_that_often_in_every_life(self, outcome, rules, reason):
        for _life in range(5):
            spent = 0
            while isinstance(move := settle(a_run(spent=spent), outcome, rules), Retry):
                spent += 1
            assert (spent + 1, move.reason) == (3, reason)

    def test_lifetime_ends_it_earlier(self, outcome, rules, reason):
        wait = settle(a_run(), outcome, rules).delay
        assert isinstance(settle(a_run(age=1000 - wait), outcome, rules), Retry)
        late = settle(a_run(age=1000.5 - wait), outcome, rules)
        assert late == Bury(JOB.bytes, 7, 12, Reason.RETRY_LIFETIME_EXPIRED, ERROR, 3)

    def test_a_used_budget_is_the_reason_even_when_the_lifetime_is_over_too(self, outcome, rules, reason):
        assert settle(a_run(spent=2, age=5000), outcome, rules).reason is reason


@pytest.mark.parametrize(
    ("spent", "jitter", "waits"),
    [
        (0, 0.0, 10),
        (0, 0.5, 12),
        (0, 1.0, 14),
        (1, 0.0, 20),
        (2, 1.0, 44),
        (3, 0.25, 81),
        (4, 0.0, 100),  # the cap
        (4, 1.0, 100),  # jitter does not lift it
        (2000, 1.0, 100),
    ],
)
def test_waits_grow_with_every_charged_run_up_to_the_cap(spent, jitter, waits):
    assert settle(a_run(spent=spent, max_attempts=3000), TRANSIENT, jitter=jitter).delay == waits


class TestThrottled:
    @pytest.mark.parametrize(
        ("stated", "jitter", "waits"),
        [
            (None, 0.5, 12),  # nothing stated: the policy's wait
            (0, 0.5, 12),
            (5, 0.0, 10),  # the policy waits longer anyway
            (60, 0.0, 60),
            (60, 0.5, 62),  # jitter goes upward
            (60, 1.0, 64),
            (500, 0.0, 500),  # beats the cap
            (500, 1.0, 504),
        ],
    )
    def test_waits_at_least_the_stated_time(self, stated, jitter, waits):
        throttled = Failed(FailureClass.THROTTLED, ERROR, stated)
        assert settle(a_run(), throttled, jitter=jitter).delay == waits

    @pytest.mark.parametrize(("stated", "waits"), [(None, 0), (0.25, 0.25), (1, 1)])
    def test_a_short_time_counts_as_well(self, stated, waits):
        at_once = TypeRules(RetryPolicy(base=0, jitter=0))
        assert settle(a_run(), Failed(FailureClass.THROTTLED, ERROR, stated), at_once).delay == waits

    def test_loses_to_the_lifetime(self):
        ten_years = Failed(FailureClass.THROTTLED, ERROR, 3650 * 86400.0)
        assert settle(a_run(), ten_years).reason is Reason.RETRY_LIFETIME_EXPIRED

    def test_only_a_throttled_failure_states_a_time(self):
        odd = Failed(FailureClass.TRANSIENT, ERROR, retry_after=500)
        assert settle(a_run(), odd).delay == 10

    def test_a_thousand_with_one_stated_time_do_not_return_together(self):
        told = Failed(FailureClass.THROTTLED, ERROR, 60)
        waits = [settle(a_run(), told, jitter=n / 999).delay for n in range(1000)]
        assert min(waits) == 60
        assert max(waits) == 64
        assert len(set(waits)) == 1000


class TestBackoffOfTheApplication:
    def test_is_asked_with_the_number_of_charged_runs(self):
        waits = {1: 111.0, 2: 222.0, 3: 333.0}
        assert settle(a_run(spent=1), TRANSIENT, jitter=1, backoff=waits.__getitem__).delay == 222

    @pytest.mark.parametrize(("answer", "waits"), [(-3, 0), (nan, 0), (0.25, 0.25)])
    def test_never_waits_less_than_nothing(self, answer, waits):
        assert settle(a_run(), TRANSIENT, jitter=1, backoff=lambda _: answer).delay == waits

    def test_is_judged_by_the_lifetime(self):
        move = settle(a_run(), TRANSIENT, backoff=lambda _: inf)
        assert move.reason is Reason.RETRY_LIFETIME_EXPIRED

    def test_does_not_shorten_a_stated_time(self):
        assert settle(a_run(), THROTTLED, jitter=0.5, backoff=lambda _: 1).delay == 32

    def test_its_errors_come_out(self):
        # The worker buries the job as fatal and keeps both errors; the rule itself has nothing to say.
        def broken(_charged):
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            settle(a_run(), TRANSIENT, backoff=broken)

    def test_is_not_asked_when_the_budget_is_used(self):
        move = settle(a_run(spent=2), TRANSIENT, backoff=lambda _: pytest.fail("asked"))
        assert move.reason is Reason.RETRIES_EXHAUSTED


def test_an_outcome_that_is_none_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="'perhaps'"):
        settle(a_run(), "perhaps")


outcomes = st.one_of(
    st.builds(Done, st.none() | st.binary(max_size=4)),
    st.builds(Failed, st.sampled_from(FailureClass), st.just(ERROR), st.none() | st.floats(0, 1e9)),
    st.builds(TimedOut, st.just(ERROR), st.booleans()),
    st.builds(Snoozed, st.floats()),
    *(st.builds(kind, st.just(ERROR)) for kind in (Cancelled, WorkerStopped, LeaseLost, Unclassified)),
)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(0, 30),
    base=st.floats(0, 1e6),
    factor=st.floats(1, 10),
    cap=st.floats(0, 1e6),
    jitter=st.floats(0, 1e3),
    max_age=st.floats(0, 1e7),
)
runs = st.builds(
    a_run,
    lease=st.integers(1, 2**63 - 1),
    spent=st.integers(0, 40),
    max_attempts=st.none() | st.integers(0, 30),
    age=st.floats(-10, 1e7),
)


@given(runs, outcomes, policies, st.booleans(), st.sampled_from(["bury", "retry"]), st.floats(0, 1))
def test_whatever_happens_there_is_a_move_for_the_lease_that_asks(run, outcome, policy, idempotent, on_zombie, jitter):
    move = settle(run, outcome, TypeRules(policy, idempotent, on_zombie), jitter=jitter)
    assert (move.id, move.lease, move.duration_ms) == (run.id, run.lease, run.duration_ms)
    if isinstance(move, Retry):
        assert run.spent + 1 < move.max_attempts
        assert 0 <= move.delay <= LONGEST
        assert run.age + move.delay <= policy.max_age
        if isinstance(outcome, Failed) and outcome.failure is FailureClass.THROTTLED:
            assert move.delay >= (outcome.retry_after or 0)
        else:
            assert move.delay <= policy.cap
