"""Why jobs are dead, as operators read it."""

import pytest

from redrive.domain.failures import FAILURES, REASONS, SEED_NAMES, Reason, parse_reason


def test_every_reason_is_explained():
    assert set(REASONS) == set(Reason)
    assert all(info.meaning and info.first_step for info in REASONS.values())


def test_what_people_did_is_no_failure():
    assert set(Reason) - FAILURES == {Reason.CANCELLED, Reason.ISOLATED}


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_known_by_its_word(reason):
    assert parse_reason(reason.value) is reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("FatalError", Reason.FATAL),
        ("Fatal", Reason.FATAL),
        ("MaxRetriesExceeded", Reason.RETRIES_EXHAUSTED),
        ("Timeout", Reason.TIMEOUT),
        ("Throttled", Reason.THROTTLED),
        ("Zombie", Reason.ZOMBIE),
        ("Cancelled", Reason.CANCELLED),
        ("Unknown", Reason.UNKNOWN),
    ],
)
def test_and_by_the_name_an_older_engine_gave_it(name, reason):
    assert parse_reason(name) is reason
    assert name in SEED_NAMES


@pytest.mark.parametrize("name", ["", "FATAL", "dead", "fatal "])
def test_anything_else_is_no_reason(name):
    assert parse_reason(name) is None
