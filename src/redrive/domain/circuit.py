"""The rules of a circuit breaker: what the ends of runs do to it, and how many trial runs it lets through.

A breaker is **closed** while all is well. So many failures in a row open it: jobs of its types stay where they are, no
attempt is spent. When its time is over it lets a few runs through as **probes** (half-open): as many successes close
it, one failure opens it again.

A probe is a **permit** held by a pair (job id, lease). A permit is in force exactly while the job's row holds that
lease: whatever ends the lease (an end, a release, an expired lease, an operator) gives the permit back, so none can
leak. Only ends that say something about the dependency count; a run that began before the breaker last changed tells
of the time before, and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from .edits import check_name
from .errors import InvalidField
from .failures import FailureClass
from .outcome import (
    Cancelled,
    Done,
    ErrorReport,
    Failed,
    LeaseLost,
    Outcome,
    Skipped,
    Snoozed,
    TimedOut,
    Unclassified,
    WorkerStopped,
)
from .policy import Seconds
from .text import one_line

Pair = tuple[bytes, int]
"""(job id as 16 bytes, lease): whose permit it is."""

LONGEST_OPEN = 3600.0
"""Seconds: a breaker stays open no longer than this before it probes, whatever a peer stated."""
SET_BACK = timedelta(minutes=1)
"""A change that lies further ahead than this was stamped by a clock that has been set back since."""
MOST_FAILURES, MOST_PROBES = 10_000, 100


@dataclass(frozen=True, slots=True)
class Breaker:
    """A breaker as an application declares it: ``@app.job("pay.v1", breaker=Breaker("payments"))``.

    ``name`` is what handlers of one dependency share; None is the handler's type. ``failures`` in a row open it
    (1 to 10,000). It stays open for ``open_for`` seconds (or a timedelta; from 0.1 s to an hour), or until the time a
    throttling peer stated, up to an hour. Then up to ``probes`` runs (1 to 100) are let through at a time, over all
    workers; ``probes`` successes close it. Transient failures, throttling and timeouts are failures; fatal ones are
    not: the dependency answered, or was never asked.
    """

    name: str | None = None
    failures: int = 5
    open_for: Seconds = 30.0
    probes: int = 1

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("breaker.name", self.name)
        _whole("breaker.failures", self.failures, MOST_FAILURES)
        _whole("breaker.probes", self.probes, MOST_PROBES)
        given: object = self.open_for
        seconds = given.total_seconds() if isinstance(given, timedelta) else given
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds <= LONGEST_OPEN:
            expected = f"seconds or a timedelta, from 0.1 to {LONGEST_OPEN:g}"
            raise InvalidField("breaker.open_for", f"{self.open_for!r} is not accepted", expected=expected)

    @property
    def spec(self) -> dict[str, object]:
        """What a console shows of it."""
        open_for = self.open_seconds
        return {"name": self.name, "failures": self.failures, "open_for": open_for, "probes": self.probes}

    @property
    def open_seconds(self) -> float:
        """How long it stays open, in seconds."""
        return self.open_for.total_seconds() if isinstance(self.open_for, timedelta) else float(self.open_for)


def _whole(field: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidField(field, f"{value!r} is not accepted", expected=f"a whole number from 1 to {most}")


class CircuitState(StrEnum):
    """Closed: runs start. Open: none does. Half-open: only probes do."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Circuit:
    """A breaker's state. Moments are by the database's clock.

    ``failures`` in a row while closed; ``successes`` of probes while half-open; ``opened_at`` since when it keeps jobs
    off, over all its probing; ``changed_at`` when the state last changed, ``reason`` why it was opened or closed;
    ``probe_at`` when an open one may probe; ``version`` is the store's, which counts every change.
    """

    state: CircuitState = CircuitState.CLOSED
    failures: int = 0
    successes: int = 0
    opened_at: datetime | None = None
    changed_at: datetime | None = None
    probe_at: datetime | None = None
    permits: tuple[Pair, ...] = ()
    reason: str | None = None
    version: int = 0

    @property
    def blocks(self) -> bool:
        """Whether runs start only as probes, if at all."""
        return self.state is not CircuitState.CLOSED


CLOSED = Circuit()


class Said(StrEnum):
    """What the end of a run says about the dependency."""

    WELL = "well"
    FAILED = "failed"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Seen:
    """The end of one run. ``ran``: seconds since it began; ``retry_after``: seconds, where a peer stated them."""

    pair: Pair
    said: Said
    ran: float
    why: str = ""
    retry_after: float = 0.0


def heard(outcome: Outcome) -> tuple[Said, str, float]:
    """What an outcome says about the dependency: the word, the error in one line, and seconds to stay away."""
    match outcome:
        case Done():
            return Said.WELL, "", 0.0
        case Failed(FailureClass.FATAL):
            return Said.NOTHING, "", 0.0
        case Failed(_, error, retry_after):
            return Said.FAILED, _in_short(error), retry_after or 0.0
        case TimedOut(error):
            return Said.FAILED, _in_short(error), 0.0
        case Skipped() | Snoozed() | Cancelled() | WorkerStopped() | LeaseLost() | Unclassified():
            return Said.NOTHING, "", 0.0
        case _:
            assert_never(outcome)


def _in_short(error: ErrorReport) -> str:
    return one_line(": ".join(part for part in (error.error_type, error.message) if part), 200)


def observe(circuit: Circuit, breaker: Breaker, ends: Iterable[Seen], now: datetime) -> Circuit:
    """The state after these ends of runs, in their order."""
    for end in ends:
        circuit = _observe(circuit, breaker, end, now)
    return circuit


def _observe(circuit: Circuit, breaker: Breaker, end: Seen, now: datetime) -> Circuit:
    probe = end.pair in circuit.permits
    if probe:
        circuit = replace(circuit, permits=tuple(pair for pair in circuit.permits if pair != end.pair))
    if end.said is Said.NOTHING or _began_before(circuit, end, now):
        return circuit
    match circuit.state:
        case CircuitState.CLOSED:
            if end.said is Said.WELL:
                return replace(circuit, failures=0)
            failures = circuit.failures + 1
            if failures < breaker.failures:
                return replace(circuit, failures=failures)
            row = "a failure" if failures == 1 else f"{failures} failures in a row, the last"
            return _opened(replace(circuit, failures=failures, opened_at=now), breaker, end, now, row)
        case CircuitState.OPEN:
            return circuit
        case CircuitState.HALF_OPEN:
            if not probe:
                return circuit
            if end.said is Said.FAILED:
                return _opened(circuit, breaker, end, now, "a probe failed")
            if circuit.successes + 1 < breaker.probes:
                return replace(circuit, successes=circuit.successes + 1)
            proved = "a probe succeeded" if breaker.probes == 1 else f"{breaker.probes} probes succeeded"
            return Circuit(changed_at=now, reason=proved, version=circuit.version)
        case _:
            assert_never(circuit.state)


def _began_before(circuit: Circuit, end: Seen, now: datetime) -> bool:
    if circuit.changed_at is None or _set_back(circuit, now):
        return False
    return now - timedelta(seconds=max(0.0, end.ran)) < circuit.changed_at


def _set_back(circuit: Circuit, now: datetime) -> bool:
    return circuit.changed_at is not None and circuit.changed_at - now > SET_BACK


def _opened(circuit: Circuit, breaker: Breaker, end: Seen, now: datetime, because: str) -> Circuit:
    # Permits stay: a probe that still runs counts as under way also when the breaker probes again.
    away = max(breaker.open_seconds, min(end.retry_after, LONGEST_OPEN))
    return replace(
        circuit,
        state=CircuitState.OPEN,
        successes=0,
        changed_at=now,
        probe_at=now + timedelta(seconds=away),
        reason=f"{because}: {end.why}" if end.why else because,
    )


def probe_in(circuit: Circuit, now: datetime) -> float:
    """Seconds until it may probe, 0 when it may; a clock that was set back does not keep it open."""
    if circuit.probe_at is None:  # an open one has it
        return 0.0
    if _set_back(circuit, now):
        return 0.0
    return max(0.0, (circuit.probe_at - now).total_seconds())


def room(circuit: Circuit, breaker: Breaker, now: datetime) -> int:
    """How many probes may begin now. The permits of ``circuit`` must be those in force: see ``in_force``."""
    if not circuit.blocks or probe_in(circuit, now) > 0:
        return 0
    return max(0, breaker.probes - len(circuit.permits))


def in_force(circuit: Circuit, held: Collection[Pair]) -> Circuit:
    """The circuit with only those permits whose pairs still hold their jobs."""
    return replace(circuit, permits=tuple(pair for pair in circuit.permits if pair in held))


def permit(circuit: Circuit, pairs: Iterable[Pair], now: datetime) -> Circuit:
    """The circuit with these runs let through as probes."""
    granted = tuple(pairs)
    if not granted:
        return circuit
    changed = now if circuit.state is CircuitState.OPEN else circuit.changed_at
    return replace(
        circuit,
        state=CircuitState.HALF_OPEN,
        changed_at=changed,
        probe_at=None,
        permits=(*circuit.permits, *granted),
    )


def reset(circuit: Circuit, now: datetime, why: str) -> Circuit:
    """Closed by an operator: what ran before counts for nothing."""
    return Circuit(changed_at=now, reason=why, version=circuit.version)
