"""Errors say what was refused, where, and what to do next."""

from datetime import UTC, datetime, timedelta

import pytest

from redrive.domain import errors
from redrive.domain.errors import (
    InvalidField,
    KeyHeld,
    NotAllowed,
    NotFound,
    PayloadError,
    RedriveError,
    Snooze,
    Throttled,
    VersionChanged,
    require_aware,
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidField("priority", "'high' is not a priority"), "priority: 'high' is not a priority"),
        (InvalidField("queue", "no", expected="a name"), "queue: no; expected a name"),
        (PayloadError("it is empty"), "payload: it is empty"),
        (
            PayloadError("no comma", offset=56, line=4, column=3, expected="a comma"),
            "payload: no comma at line 4, column 3 (byte 56); expected a comma",
        ),
        (PayloadError("inf is not JSON", field="body.items[3]"), "body.items[3]: inf is not JSON"),
        (NotFound("job", 42), "no job 42: it never existed, or it was purged"),
        (
            VersionChanged(42, 3, 4),
            "job 42 is at version 4, not 3: somebody changed it; look again, then repeat",
        ),
        (NotAllowed("edit", "processing", "it runs"), "cannot edit a job that is processing: it runs"),
        (
            KeyHeld("k", 7),
            "idempotency key 'k' is held by live job 7: wait for it to finish, or drop the key",
        ),
        (Throttled(60), "throttled: retry after 60 s"),
        (Throttled(60, "slow down"), "slow down"),
        (Snooze(timedelta(minutes=2)), "snoozed for 120 s"),
    ],
)
def test_messages(error, message):
    assert str(error) == message


def test_every_kind_of_error_has_a_code_of_its_own():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RedriveError)}
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_a_code_may_be_more_precise():
    assert PayloadError("x").code == "payload"
    assert PayloadError("x", code="json-depth").code == "json-depth"


@pytest.mark.parametrize("signal", [Throttled, Snooze])
def test_signals_take_seconds_or_timedelta(signal):
    seconds = {Throttled: lambda s: s.retry_after, Snooze: lambda s: s.delay}[signal]
    assert seconds(signal(1.5)) == seconds(signal(timedelta(seconds=1.5))) == 1.5


def test_a_moment_needs_a_time_zone():
    moment = datetime(2026, 5, 4, tzinfo=UTC)
    assert require_aware("due", moment) is moment
    with pytest.raises(InvalidField, match="due: 2026-05-04T00:00:00 has no time zone"):
        require_aware("due", moment.replace(tzinfo=None))
