"""A clock that moves only when it is told to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from redrive.domain.errors import InvalidField

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """The time of a kit's database: schedules, delays, retries and ages go by it. It begins at the present hour.

    Timeouts of handlers go by the real time, for so does what they do.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._now = _checked(datetime.now(UTC).replace(minute=0, second=0, microsecond=0) if now is None else now)

    @property
    def now(self) -> datetime:
        """The moment it stands at, in UTC."""
        return self._now

    def advance(self, by: timedelta | float) -> datetime:
        """Go on by a timedelta, or by seconds; a negative one is refused, for no clock of a database goes back."""
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta(0):
            raise InvalidField("by", f"{by!r} is negative", expected="a timedelta, or seconds, of 0 or more")
        self._now += step
        return self._now

    def set(self, moment: datetime) -> None:
        """Stand at ``moment``, which has a time zone and is not before ``now``."""
        self.advance(_checked(moment) - self._now)

    def micros(self) -> int:
        """Microseconds since 1970, as SQLite keeps times."""
        return (self._now - _EPOCH) // timedelta(microseconds=1)


def _checked(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise InvalidField("now", f"{moment!r} has no time zone", expected="a datetime with a time zone")
    return moment.astimezone(UTC)
