"""Where a job can be, and every arrow between those spots: the lifecycle as data.

Place is state: a job row is in exactly one of three tables. Within the hot table a
job is in one of four states. ``ARROWS`` is the lifecycle of the design; the tests
walk the store against it, so a move that is not written here cannot exist.
"""

from __future__ import annotations

from enum import StrEnum


class Place(StrEnum):
    """The table a job is in."""

    HOT = "hot"
    ARCHIVE = "archive"
    DLQ = "dlq"


class HotState(StrEnum):
    """What a hot job is doing. ``fetched`` is reserved in a worker's memory, ``processing`` has a running handler."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    FETCHED = "fetched"
    PROCESSING = "processing"


class Stored(StrEnum):
    """How the hot state is stored: ``fetched`` and ``processing`` are both ``taken`` and told apart by ``started_at``.

    Starting a job then changes no indexed column, which keeps the start a cheap update.
    """

    SCHEDULED = "scheduled"
    PENDING = "pending"
    TAKEN = "taken"


class Spot(StrEnum):
    """Place and hot state in one word, with ``nowhere`` for a job that does not exist (yet, or any more)."""

    NOWHERE = "nowhere"
    SCHEDULED = "scheduled"
    PENDING = "pending"
    FETCHED = "fetched"
    PROCESSING = "processing"
    ARCHIVE = "archive"
    DLQ = "dlq"


def spot_of(place: Place, state: HotState | None) -> Spot:
    """The spot of a job that is in ``place``, with ``state`` when the place is hot."""
    if place is Place.HOT:
        if state is None:
            raise ValueError("a hot job has a state")
        return Spot(state.value)
    return Spot(place.value)


def hot_state(stored: str, *, started: bool) -> HotState:
    """The state of a hot row from its stored word and whether ``started_at`` is set."""
    match Stored(stored):
        case Stored.SCHEDULED:
            return HotState.SCHEDULED
        case Stored.PENDING:
            return HotState.PENDING
        case Stored.TAKEN:
            return HotState.PROCESSING if started else HotState.FETCHED


class Verb(StrEnum):
    """Every move of the lifecycle."""

    ENQUEUE = "enqueue"
    PROMOTE = "promote"
    CLAIM = "claim"
    CLAIM_AND_START = "claim-and-start"
    START = "start"
    RELEASE = "release"
    PUT_OFF = "put-off"
    SNOOZE = "snooze"
    SUCCEED = "succeed"
    SKIP = "skip"
    RETRY = "retry"
    BURY = "bury"
    CANCEL = "cancel"
    ISOLATE = "isolate"
    RESCUE = "rescue"
    EDIT = "edit"
    RUN_NOW = "run-now"
    RESURRECT = "resurrect"
    TAKE_BACK = "take-back"
    PURGE = "purge"


_N, _S, _P, _F, _R, _A, _D = (
    Spot.NOWHERE,
    Spot.SCHEDULED,
    Spot.PENDING,
    Spot.FETCHED,
    Spot.PROCESSING,
    Spot.ARCHIVE,
    Spot.DLQ,
)

ARROWS: dict[Verb, frozenset[tuple[Spot, Spot]]] = {
    Verb.ENQUEUE: frozenset({(_N, _P), (_N, _S)}),
    Verb.PROMOTE: frozenset({(_S, _P)}),
    Verb.CLAIM: frozenset({(_P, _F)}),
    Verb.CLAIM_AND_START: frozenset({(_P, _R), (_P, _F)}),
    Verb.START: frozenset({(_F, _R)}),
    Verb.RELEASE: frozenset({(_F, _P)}),
    Verb.PUT_OFF: frozenset({(_F, _S)}),
    Verb.SNOOZE: frozenset({(_R, _S)}),
    Verb.SUCCEED: frozenset({(_R, _A)}),
    Verb.SKIP: frozenset({(_R, _A)}),
    Verb.RETRY: frozenset({(_R, _S)}),
    Verb.BURY: frozenset({(_S, _D), (_P, _D), (_F, _D), (_R, _D)}),
    Verb.CANCEL: frozenset({(_S, _D), (_P, _D), (_F, _D)}),
    Verb.ISOLATE: frozenset({(_S, _D), (_P, _D)}),
    Verb.RESCUE: frozenset({(_F, _P), (_R, _D), (_R, _S)}),
    Verb.EDIT: frozenset({(_S, _S), (_P, _P), (_D, _D)}),
    Verb.RUN_NOW: frozenset({(_S, _P)}),
    Verb.RESURRECT: frozenset({(_D, _P), (_D, _S)}),
    Verb.TAKE_BACK: frozenset({(_S, _D), (_P, _D)}),
    Verb.PURGE: frozenset({(_D, _N), (_A, _N)}),
}
"""Every legal move, as (from, to). Settings of a job that stay in place are arrows to themselves."""


def sources(verb: Verb) -> frozenset[Spot]:
    """The spots a job may be in when ``verb`` is asked of it."""
    return frozenset(source for source, _ in ARROWS[verb])


def allows(verb: Verb, source: Spot, target: Spot) -> bool:
    """Whether ``verb`` may take a job from ``source`` to ``target``."""
    return (source, target) in ARROWS[verb]
