"""How fast and how wide a queue may run: the rate limiter, and how people write a rate.

The limiter is the Generic Cell Rate Algorithm in its virtual scheduling form (ITU-T Recommendation I.371, annex A). A
rate of ``count`` starts per ``per`` seconds has the emission interval ``T = per / count``; one number is kept, the
theoretical arrival time ``TAT`` of the next start. With a burst of ``B`` starts a start at time ``t`` is allowed when
``t >= TAT - (B - 1) * T``, and sets ``TAT = max(t, TAT) + T``.

**Bursts.** Starts are spread evenly. Only what is due in one second, and at least one, may start at once after a time
without work: ``B = max(1, floor(count / per))``. So in any span of ``w`` seconds at most ``B + w / T`` jobs start.

**Clocks.** A TAT is never further away than ``B * T``. One that is was made by another rate, or before the clock was
set back: it counts as ``B * T``, so that neither stops a queue for longer than its burst.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from .errors import InvalidField

UNITS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400, "day": 86_400}
WORDS = {1: "s", 60: "min", 3600: "hour", 86_400: "day"}
MOST = 1_000_000
RATE_EXPECTED = f"starts per time from 1 to {MOST}, such as 10/s, 100/min, 5000/hour or 1000/day"
RUNNING_EXPECTED = f"a whole number from 1 to {MOST}"
_RATE = re.compile(r"\s*([0-9]{1,7})\s*/\s*([a-z]+)\s*")
_CLOSE = 1e-6
"""Clocks count microseconds: what is missing less than one is there."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` starts in ``per`` seconds."""

    count: int
    per: int

    def __str__(self) -> str:
        return f"{self.count}/{WORDS[self.per]}"

    @property
    def interval(self) -> float:
        """Seconds from one start to the next."""
        return self.per / self.count

    @property
    def burst(self) -> int:
        """How many may start at once after a time without work."""
        return max(1, self.count // self.per)

    def allowed(self, ahead: float) -> int:
        """How many may start now. ``ahead``: seconds from now to the TAT, negative when it has passed."""
        return max(0, int((self.burst * self.interval - self._ahead(ahead) + _CLOSE) / self.interval))

    def after(self, ahead: float, started: int) -> float:
        """Seconds from now to the TAT when ``started`` jobs have started now."""
        return self._ahead(ahead) + started * self.interval

    def wait(self, ahead: float, held: int = 0) -> float:
        """Seconds until one more may start than the ``held`` that have a claim on the rate already; 0: now.

        Infinite when there are as many of these as may ever start at once: first one of them must start, or let go.
        """
        if held >= self.burst:
            return math.inf
        left = self._ahead(ahead) - (self.burst - 1 - held) * self.interval
        return left if left > _CLOSE else 0.0

    def _ahead(self, ahead: float) -> float:
        return min(max(0.0, ahead), self.burst * self.interval)


def parse_rate(value: object, field: str = "rate") -> Rate:
    """A rate as people write it: a number, a slash, and s, min, hour or day (or their other usual forms)."""
    found = _RATE.fullmatch(value.lower()) if isinstance(value, str) else None
    if found is None or found[2] not in UNITS or not 1 <= int(found[1]) <= MOST:
        raise InvalidField(field, f"{value!r} is not a rate", expected=RATE_EXPECTED)
    return Rate(int(found[1]), UNITS[found[2]])


def check_running(value: object, field: str = "max_running") -> int:
    """How many jobs of a queue may run at a time."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidField(field, f"{value!r}", expected=RUNNING_EXPECTED)
    return value
