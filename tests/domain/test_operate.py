"""What an operator asks of one job, judged: granted, or refused in words that say what to do instead."""

from datetime import timedelta

import pytest

from redrive.domain import lifecycle
from redrive.domain.edits import JobEdit
from redrive.domain.failures import Reason
from redrive.domain.lifecycle import Refusal, Wish
from redrive.domain.moves import (
    ApplyEdit,
    BringForward,
    BuryByRule,
    Remove,
    RequestCancel,
    Revive,
    Skipped,
    TakeBackMove,
)
from redrive.domain.states import Place, Spot, Verb, sources
from tests.domain.given import HOLDER, a_job

NOWHERE, SCHEDULED, PENDING, FETCHED, PROCESSING, ARCHIVE, DLQ = Spot
SPOTS = [SCHEDULED, PENDING, FETCHED, PROCESSING, ARCHIVE, DLQ]
NEW_TAGS = JobEdit(tags=("checked",))

GRANTED = {
    Verb.EDIT: ApplyEdit(JobEdit()),
    Verb.RESURRECT: Revive(JobEdit(), None, drop_key=False),
    Verb.CANCEL: BuryByRule(Reason.CANCELLED),
    Verb.ISOLATE: BuryByRule(Reason.ISOLATED),
    Verb.RUN_NOW: BringForward(),
    Verb.TAKE_BACK: TakeBackMove(),
    Verb.PURGE: Remove(),
}
REFUSED = {
    SCHEDULED: "it is waiting for its time and will run by itself",
    PENDING: "it is waiting for a worker and will run by itself",
    FETCHED: "a worker has reserved it; wait a moment or cancel it",
    PROCESSING: "its handler is running; cancel it, or wait for it to end",
    ARCHIVE: "it has succeeded; enqueue it anew to run it again",
    DLQ: "it is dead; resurrect it to run it again",
}


def operate(job, wish, version=5, key_holder=None):
    return lifecycle.operate(job, wish, version=version, key_holder=key_holder)


@pytest.mark.parametrize("spot", SPOTS)
@pytest.mark.parametrize("verb", GRANTED)
def test_every_wish_at_every_spot(verb, spot):
    answer = operate(a_job(spot, life=2), Wish(verb))
    if (verb, spot) == (Verb.CANCEL, PROCESSING):
        assert answer == RequestCancel()
    elif spot in sources(verb):
        assert answer == GRANTED[verb]
    else:
        assert answer == Refusal(Skipped.NOT_ALLOWED, REFUSED[spot])


@pytest.mark.parametrize("verb", sorted(set(Verb) - set(GRANTED)))
def test_moves_of_the_engine_are_nobodys_wish(verb):
    for spot in SPOTS:
        if spot in sources(verb):
            with pytest.raises(ValueError, match=f"{verb} is not an operator's move"):
                operate(a_job(spot), Wish(verb), version=None)


class TestTheVersion:
    @pytest.mark.parametrize("verb", GRANTED)
    @pytest.mark.parametrize("version", [4, 6, 0])
    def test_another_one_means_that_somebody_was_here(self, verb, version):
        answer = operate(a_job(DLQ), Wish(verb), version=version)
        why = f"it is at version 5, not {version}: somebody changed it; look again"
        assert answer == Refusal(Skipped.CHANGED, why)

    def test_is_checked_before_a_running_handler_is_asked_to_stop(self):
        assert operate(a_job(PROCESSING), Wish(Verb.CANCEL), version=4).skipped is Skipped.CHANGED

    def test_none_is_not_checked(self):
        assert operate(a_job(DLQ, version=10**9), Wish(Verb.PURGE), version=None) == Remove()


class TestEdit:
    @pytest.mark.parametrize("spot", [SCHEDULED, PENDING, DLQ])
    def test_carries_what_is_new(self, spot):
        assert operate(a_job(spot), Wish(Verb.EDIT, NEW_TAGS)) == ApplyEdit(NEW_TAGS)

    @pytest.mark.parametrize("edit", [JobEdit(queue="slow"), JobEdit(type="email.send.v2", tags=("x",))])
    def test_leaves_queue_and_type_to_a_resurrection(self, edit):
        answer = operate(a_job(DLQ), Wish(Verb.EDIT, edit))
        assert answer == Refusal(Skipped.NOT_ALLOWED, "queue and type change with a resurrection only")

    @pytest.mark.parametrize("spot", [SCHEDULED, PENDING])
    def test_cannot_take_a_key_that_another_live_job_holds(self, spot):
        wish = Wish(Verb.EDIT, JobEdit(idempotency_key="welcome-42"))
        assert operate(a_job(spot), wish, key_holder=HOLDER) == Refusal(
            Skipped.KEY_HELD,
            f"its idempotency key 'welcome-42' is held by live job {HOLDER}: wait for that one, or drop the key",
            HOLDER,
        )

    def test_of_a_dead_job_may_take_it_since_a_dead_job_holds_none(self):
        wish = Wish(Verb.EDIT, JobEdit(idempotency_key="welcome-42"))
        assert operate(a_job(DLQ), wish, key_holder=HOLDER) == ApplyEdit(wish.edit)

    @pytest.mark.parametrize("edit", [NEW_TAGS, JobEdit(idempotency_key=None)])
    def test_that_takes_no_key_does_not_mind_a_holder(self, edit):
        assert operate(a_job(PENDING), Wish(Verb.EDIT, edit), key_holder=HOLDER) == ApplyEdit(edit)


class TestResurrect:
    def test_takes_edit_and_time_along(self):
        wish = Wish(Verb.RESURRECT, JobEdit(queue="slow", tags=("checked",)), timedelta(minutes=5))
        assert operate(a_job(DLQ), wish) == Revive(wish.edit, timedelta(minutes=5), drop_key=False)

    @pytest.mark.parametrize(
        ("own", "edit", "named"),
        [
            ("order-7", JobEdit(), " 'order-7'"),
            ("order-7", JobEdit(idempotency_key="order-8"), " 'order-8'"),
            (None, JobEdit(), ""),
        ],
    )
    def test_is_refused_while_its_key_is_held(self, own, edit, named):
        job = a_job(DLQ, idempotency_key=own)
        assert operate(job, Wish(Verb.RESURRECT, edit), key_holder=HOLDER) == Refusal(
            Skipped.KEY_HELD,
            f"its idempotency key{named} is held by live job {HOLDER}: wait for that one, or drop the key",
            HOLDER,
        )

    @pytest.mark.parametrize(("holder", "dropped"), [(HOLDER, True), (None, False)])
    def test_may_drop_the_key_and_does_so_only_where_it_is_held(self, holder, dropped):
        job = a_job(DLQ, idempotency_key="order-7")
        wish = Wish(Verb.RESURRECT, drop_key=True)
        assert operate(job, wish, key_holder=holder) == Revive(JobEdit(), None, drop_key=dropped)


class TestTakeBack:
    @pytest.mark.parametrize("spot", [SCHEDULED, PENDING])
    @pytest.mark.parametrize(
        ("life", "attempt", "why"),
        [
            (1, 0, "it was never resurrected; isolate or cancel it instead"),
            (1, 1, "it was never resurrected; isolate or cancel it instead"),
            (2, 1, "it has run since its resurrection; isolate or cancel it instead"),
            (9, 3, "it has run since its resurrection; isolate or cancel it instead"),
        ],
    )
    def test_undoes_nothing_but_a_resurrection(self, spot, life, attempt, why):
        answer = operate(a_job(spot, life=life, attempt=attempt), Wish(Verb.TAKE_BACK))
        assert answer == Refusal(Skipped.NOT_ALLOWED, why)

    @pytest.mark.parametrize("life", [2, 9])
    def test_undoes_a_resurrection(self, life):
        assert operate(a_job(PENDING, life=life), Wish(Verb.TAKE_BACK)) == TakeBackMove()


def test_a_wish_for_one_place_leaves_jobs_in_another_alone():
    wish = Wish(Verb.PURGE, place=Place.DLQ)
    assert lifecycle.operate(a_job(DLQ), wish, version=None) == Remove()
    refused = lifecycle.operate(a_job(ARCHIVE), wish, version=None)
    assert isinstance(refused, Refusal)
    assert refused.skipped is Skipped.NOT_ALLOWED
    assert lifecycle.operate(a_job(ARCHIVE), Wish(Verb.PURGE), version=None) == Remove()
