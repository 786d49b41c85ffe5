"""The lifecycle as data: every arrow is drawn, and no other."""

import pytest

from redrive.domain.states import ARROWS, HotState, Place, Spot, Stored, Verb, allows, hot_state, sources, spot_of

NOWHERE, SCHEDULED, PENDING, FETCHED, PROCESSING, ARCHIVE, DLQ = Spot
HOT = {SCHEDULED, PENDING, FETCHED, PROCESSING}

# The table of the design, read aloud.
DESIGN = {
    Verb.ENQUEUE: {NOWHERE: {PENDING, SCHEDULED}},
    Verb.PROMOTE: {SCHEDULED: {PENDING}},
    Verb.CLAIM: {PENDING: {FETCHED}},
    Verb.CLAIM_AND_START: {PENDING: {PROCESSING, FETCHED}},
    Verb.START: {FETCHED: {PROCESSING}},
    Verb.RELEASE: {FETCHED: {PENDING}},
    Verb.PUT_OFF: {FETCHED: {SCHEDULED}},
    Verb.SNOOZE: {PROCESSING: {SCHEDULED}},
    Verb.SUCCEED: {PROCESSING: {ARCHIVE}},
    Verb.SKIP: {PROCESSING: {ARCHIVE}},
    Verb.RETRY: {PROCESSING: {SCHEDULED}},
    Verb.BURY: {spot: {DLQ} for spot in HOT},
    Verb.CANCEL: {SCHEDULED: {DLQ}, PENDING: {DLQ}, FETCHED: {DLQ}},
    Verb.ISOLATE: {SCHEDULED: {DLQ}, PENDING: {DLQ}},
    Verb.RESCUE: {FETCHED: {PENDING}, PROCESSING: {DLQ, SCHEDULED}},
    Verb.EDIT: {SCHEDULED: {SCHEDULED}, PENDING: {PENDING}, DLQ: {DLQ}},
    Verb.RUN_NOW: {SCHEDULED: {PENDING}},
    Verb.RESURRECT: {DLQ: {PENDING, SCHEDULED}},
    Verb.TAKE_BACK: {SCHEDULED: {DLQ}, PENDING: {DLQ}},
    Verb.PURGE: {DLQ: {NOWHERE}, ARCHIVE: {NOWHERE}},
}


@pytest.mark.parametrize("verb", Verb)
def test_a_verb_takes_a_job_where_the_design_says_and_nowhere_else(verb):
    allowed = {(source, target) for source in Spot for target in Spot if allows(verb, source, target)}
    assert allowed == {(source, target) for source, targets in DESIGN[verb].items() for target in targets}
    assert sources(verb) == set(DESIGN[verb])


def test_only_a_person_takes_a_job_out_of_the_dlq():
    leaving = {verb for verb, arrows in ARROWS.items() for source, target in arrows if source is DLQ is not target}
    assert leaving == {Verb.RESURRECT, Verb.PURGE}


def test_a_succeeded_job_can_only_be_purged():
    assert {verb for verb in Verb if ARCHIVE in sources(verb)} == {Verb.PURGE}


def test_a_job_begins_by_enqueue_and_ends_by_purge():
    assert {verb for verb, arrows in ARROWS.items() for source, _ in arrows if source is NOWHERE} == {Verb.ENQUEUE}
    assert {verb for verb, arrows in ARROWS.items() for _, target in arrows if target is NOWHERE} == {Verb.PURGE}


def test_every_spot_can_be_reached_and_left():
    arrows = {arrow for some in ARROWS.values() for arrow in some if arrow[0] is not arrow[1]}
    assert {source for source, _ in arrows} == {target for _, target in arrows} == set(Spot)


def test_only_a_start_runs_a_handler():
    assert {verb for verb, arrows in ARROWS.items() for _, target in arrows if target is PROCESSING} == {
        Verb.START,
        Verb.CLAIM_AND_START,
    }


@pytest.mark.parametrize("state", HotState)
def test_the_spot_of_a_hot_job_is_its_state(state):
    assert spot_of(Place.HOT, state).value == state.value


@pytest.mark.parametrize("place", [Place.ARCHIVE, Place.DLQ])
def test_the_spot_of_any_other_job_is_its_place(place):
    assert spot_of(place, None).value == place.value


def test_a_hot_job_without_a_state_is_a_mistake():
    with pytest.raises(ValueError, match="has a state"):
        spot_of(Place.HOT, None)


@pytest.mark.parametrize(
    ("stored", "started", "state"),
    [
        (Stored.SCHEDULED, False, HotState.SCHEDULED),
        (Stored.PENDING, False, HotState.PENDING),
        (Stored.TAKEN, False, HotState.FETCHED),
        (Stored.TAKEN, True, HotState.PROCESSING),
    ],
)
def test_a_taken_job_is_processing_once_it_has_started(stored, started, state):
    assert hot_state(stored.value, started=started) is state
