"""Rhythms as an application writes them. The cron library and the time zones are behind this door.

The library reads expressions and steps through a calendar without zones; what a change of the clock means is decided in
``domain/schedule.py``.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from redrive.domain.errors import InvalidField
from redrive.domain.schedule import Cron, Every, Rhythm

CRON_EXPECTED = 'five fields: minute, hour, day of month, month, day of week, such as "0 3 * * *"'
EVERY_EXPECTED = "whole seconds or a timedelta, from 1 second to 366 days"
LONGEST = 366 * 86_400
_SOMEWHERE = datetime(2000, 1, 1)  # noqa: DTZ001 - the calendar has no zone

When = dict[str, Any]
"""A rhythm as it is stored."""


class Crontab:
    """What an expression says of a wall clock."""

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def after(self, wall: datetime) -> datetime | None:
        """The first time it names that is later than ``wall``; None when there is none within fifty years."""
        try:
            return next(CronSim(self._expression, wall))
        except (StopIteration, OverflowError, ValueError):
            return None


def cron(expression: str, tz: str) -> tuple[Rhythm, When]:
    """The rhythm of a cron expression in a time zone."""
    if not isinstance(expression, str):
        raise InvalidField("cron", f"{expression!r} is no text", expected=CRON_EXPECTED)
    fields = expression.split()
    if len(fields) != 5:
        raise InvalidField("cron", f"{expression!r} has {len(fields)} fields", expected=CRON_EXPECTED)
    plain = " ".join(fields)
    try:
        CronSim(plain, _SOMEWHERE)
    except CronSimError as error:
        raise InvalidField("cron", f"{expression!r}: {str(error).lower()}", expected=CRON_EXPECTED) from None
    walls = Crontab(plain)
    if walls.after(_SOMEWHERE) is None:
        raise InvalidField("cron", f"{expression!r} names no time that ever comes", expected=CRON_EXPECTED)
    zone = _zone(tz)
    follows = any(field.startswith("*") for field in fields[:2])
    return Cron(walls, zone, follows and zone is not UTC), {"cron": plain, "tz": tz}


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # needs no data
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:  # a folder, a path, no text ...
        expected = "a name of the IANA time zone database, such as Europe/Berlin"
        raise InvalidField("tz", f"{name!r} is no time zone", expected=expected) from error


def every(interval: timedelta | float) -> tuple[Rhythm, When]:
    """The rhythm of an interval."""
    seconds = _whole(interval.total_seconds() if isinstance(interval, timedelta) else interval)
    if seconds is None:
        raise InvalidField("every", f"{interval!r} is no interval", expected=EVERY_EXPECTED)
    return Every(timedelta(seconds=seconds)), {"every": seconds}


def _whole(seconds: object) -> int | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    return int(seconds) if 1 <= seconds <= LONGEST and seconds == int(seconds) else None
