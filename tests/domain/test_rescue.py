"""Jobs whose worker vanished, and jobs that nobody here can run."""

import pytest

from redrive.domain.failures import Reason
from redrive.domain.lifecycle import Expired, TypeRules, put_off, rescue, shortest_lease, unserved_is_dead
from redrive.domain.moves import BackToPending, BackToScheduled, BuryByRule, PutOff
from redrive.domain.policy import RetryPolicy
from redrive.domain.states import HotState
from tests.domain.given import JOB

POLICY = RetryPolicy(max_attempts=3, base=10, factor=2, cap=100, jitter=4, max_age=1000)
RETRY_ZOMBIES = TypeRules(POLICY, idempotent=True, on_zombie="retry")

ZOMBIE, CANCELLED = BuryByRule(Reason.ZOMBIE), BuryByRule(Reason.CANCELLED)


def expired(state=HotState.PROCESSING, spent=0, max_attempts=None, age=0.0, *, cancel_requested=False):
    return Expired(state, spent, max_attempts, age, cancel_requested)


@pytest.mark.parametrize("rules", [None, TypeRules(POLICY), RETRY_ZOMBIES])
def test_a_fetched_job_never_ran_and_waits_again(rules):
    assert rescue(expired(HotState.FETCHED, spent=99, age=99_999), rules, jitter=1) == BackToPending()


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(None, id="type unknown"),
        pytest.param(TypeRules(POLICY), id="nothing declared"),
        pytest.param(TypeRules(POLICY, idempotent=True), id="idempotent alone"),
        pytest.param(TypeRules(POLICY, on_zombie="retry"), id="retry alone"),
        pytest.param(TypeRules(POLICY, idempotent=True, on_zombie="bury"), id="asked to bury"),
    ],
)
def test_a_processing_job_is_buried_unless_it_is_declared_safe_to_run_twice(rules):
    assert rescue(expired(), rules, jitter=0) == ZOMBIE


@pytest.mark.parametrize(("spent", "jitter", "waits"), [(0, 0, 10), (0, 1, 14), (1, 0.5, 22)])
def test_declared_safe_it_is_scheduled_like_a_retry(spent, jitter, waits):
    assert rescue(expired(spent=spent), RETRY_ZOMBIES, jitter=jitter) == BackToScheduled(waits)


@pytest.mark.parametrize(
    ("spent", "own", "ends"),
    [(1, None, False), (2, None, True), (3, None, True), (0, 1, True), (0, 0, True), (2, 4, False), (3, 4, True)],
)
def test_the_vanished_run_counts_against_the_budget(spent, own, ends):
    move = rescue(expired(spent=spent, max_attempts=own), RETRY_ZOMBIES, jitter=0)
    assert (move == ZOMBIE) is ends


@pytest.mark.parametrize(("age", "ends"), [(990, False), (990.5, True)])
def test_its_lifetime_counts_as_well(age, ends):
    assert (rescue(expired(age=age), RETRY_ZOMBIES, jitter=0) == ZOMBIE) is ends


@pytest.mark.parametrize("rules", [None, RETRY_ZOMBIES])
def test_a_cancel_request_that_no_worker_answered_is_granted(rules):
    assert rescue(expired(cancel_requested=True), rules, jitter=0) == CANCELLED


@pytest.mark.parametrize(
    ("heartbeat", "lease"),
    [(10, 30), (1, 3), (0.2, 0.6), (0.1234567, 0.37037)],  # to the microsecond: 3 * 0.2 alone is a little more than 0.6
)
def test_a_lease_outlasts_three_heartbeats(heartbeat, lease):
    assert shortest_lease(heartbeat) == lease


@pytest.mark.parametrize(
    ("waited", "delay"), [(None, 1), (0, 1), (0.9, 1), (1, 1), (1.5, 1.5), (59, 59), (60, 60), (61, 60), (1e9, 60)]
)
def test_a_job_of_an_unknown_type_is_put_off_for_as_long_as_it_has_waited(waited, delay):
    assert put_off(JOB.bytes, 7, waited) == PutOff(JOB.bytes, 7, delay)


@pytest.mark.parametrize(
    ("waited", "announced", "dead"),
    [
        (None, False, False),  # met for the first time
        (599.9, False, False),
        (600.0, False, True),
        (600.0, True, False),  # some live worker serves the type
        (1e9, True, False),
        (1e9, False, True),
    ],
)
def test_it_is_given_up_when_no_worker_announced_the_type_for_long_enough(waited, announced, dead):
    assert unserved_is_dead(waited, 600.0, announced=announced) is dead
