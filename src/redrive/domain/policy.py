"""How often and how late a job is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from .errors import InvalidField

Seconds = float | int | timedelta

LONGEST = 36_500 * 86400.0
"""No wait is longer than a century, so that now plus a wait is always a date that databases can write."""

MOST_ATTEMPTS = 1_000_000


def _seconds(value: Seconds) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _duration(field: str, value: object) -> None:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    # NaN fails the comparison.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST:
        raise InvalidField(field, f"{value!r} is not accepted", expected="seconds or a timedelta, from 0 to a century")


def _whole(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_ATTEMPTS:
        raise InvalidField(field, f"{value!r} is not accepted", expected=f"a whole number from 0 to {MOST_ATTEMPTS}")


def _factor(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
        raise InvalidField(field, f"{value!r} is not accepted", expected="a number from 1 to 1000")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The budget and the waits of a type.

    ``max_attempts`` counts executions, the first included. The wait before attempt n + 1 is
    ``min(cap, base * factor ** (n - 1) + jitter * random)``: the cap is a true cap, jitter included. No attempt is
    scheduled to start later than ``max_age`` after the life became due. Durations are seconds or timedelta.
    """

    max_attempts: int = 3
    base: Seconds = 3.0
    factor: float = 2.0
    cap: Seconds = 3600.0
    jitter: Seconds = 1.0
    max_age: Seconds = 86400.0

    def __post_init__(self) -> None:
        _whole("max_attempts", self.max_attempts)
        _factor("factor", self.factor)
        for name in ("base", "cap", "jitter", "max_age"):
            _duration(name, getattr(self, name))

    @property
    def jitter_seconds(self) -> float:
        """The widest jitter, in seconds."""
        return _seconds(self.jitter)

    @property
    def max_age_seconds(self) -> float:
        """How long after its life became due a job may be tried again, in seconds."""
        return _seconds(self.max_age)

    def delay(self, charged: int, jitter: float) -> float:
        """Seconds to wait after ``charged`` attempts (1 or more); ``jitter`` from 0 to 1. Never over the cap."""
        base = _seconds(self.base)
        try:
            grown = base * float(self.factor) ** (max(1, charged) - 1)
        except OverflowError:
            grown = LONGEST if base else 0.0
        return min(_seconds(self.cap), grown + self.jitter_seconds * jitter)

    def outlives(self, age: float) -> bool:
        """Whether an attempt starting at ``age`` (seconds since the life became due) would be too late."""
        return age > self.max_age_seconds
