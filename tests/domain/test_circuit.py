"""The rules of a breaker, and a model of workers that break, vanish and race on one."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from redrive.domain.circuit import (
    CLOSED,
    LONGEST_OPEN,
    Breaker,
    Circuit,
    CircuitState,
    Said,
    Seen,
    heard,
    in_force,
    observe,
    permit,
    probe_in,
    reset,
    room,
)
from redrive.domain.errors import InvalidField
from redrive.domain.failures import FailureClass
from redrive.domain.outcome import (
    Cancelled,
    Done,
    ErrorReport,
    Failed,
    LeaseLost,
    Skipped,
    Snoozed,
    TimedOut,
    Unclassified,
    WorkerStopped,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ERROR = ErrorReport("ConnectionError", "refused", "", "0" * 16, 1)
BREAKER = Breaker("payments", failures=3, open_for=30, probes=1)
SECOND = timedelta(seconds=1)


def end(said: Said, pair: tuple[bytes, int] = (b"a", 1), ran: float = 0.0, why: str = "", stated: float = 0.0) -> Seen:
    return Seen(pair, said, ran, why, stated)


WELL, FAILED, NOTHING = end(Said.WELL), end(Said.FAILED), end(Said.NOTHING)


def opened(breaker: Breaker = BREAKER, at: datetime = NOW) -> Circuit:
    return observe(CLOSED, breaker, [FAILED] * breaker.failures, at)


def probing(*pairs: tuple[bytes, int], breaker: Breaker = BREAKER, at: datetime = NOW + 30 * SECOND) -> Circuit:
    return permit(opened(breaker), pairs, at)


class TestDeclaration:
    @pytest.mark.parametrize(
        ("field", "wrong"),
        [
            ("name", "no spaces"), ("failures", 0), ("failures", True), ("failures", 10_001), ("failures", 2.0),
            ("probes", 0), ("probes", 101), ("open_for", 0.05), ("open_for", timedelta(hours=2)), ("open_for", "30"),
            ("open_for", float("nan")), ("open_for", True),
        ],
    )  # fmt: skip
    def test_what_is_refused_names_its_field(self, field: str, wrong: object):
        with pytest.raises(InvalidField) as refused:
            Breaker(**{field: wrong})  # type: ignore[arg-type]
        assert refused.value.field == f"breaker.{field}"
        assert repr(wrong) in str(refused.value)
        expected = {
            "name": "1 to 200 letters",
            "failures": "a whole number from 1 to 10000",
            "probes": "a whole number from 1 to 100",
            "open_for": "seconds or a timedelta, from 0.1 to 3600",
        }
        assert expected[field] in str(refused.value)

    @pytest.mark.parametrize(
        "fine",
        [
            {"failures": 1}, {"failures": 10_000}, {"probes": 1}, {"probes": 100}, {"open_for": 0.1},
            {"open_for": LONGEST_OPEN}, {"open_for": timedelta(minutes=5)}, {"name": "pay-api.v2"},
        ],
    )  # fmt: skip
    def test_its_range(self, fine: dict[str, object]):
        Breaker(**fine)  # type: ignore[arg-type]

    def test_what_a_console_shows(self):
        shown = Breaker("pay", open_for=timedelta(minutes=1)).spec
        assert shown == {"name": "pay", "failures": 5, "open_for": 60.0, "probes": 1}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Done(), (Said.WELL, "", 0.0)),
        (Failed(FailureClass.TRANSIENT, ERROR), (Said.FAILED, "ConnectionError: refused", 0.0)),
        (Failed(FailureClass.THROTTLED, ERROR, 60.0), (Said.FAILED, "ConnectionError: refused", 60.0)),
        (Failed(FailureClass.THROTTLED, ERROR), (Said.FAILED, "ConnectionError: refused", 0.0)),
        (TimedOut(ERROR), (Said.FAILED, "ConnectionError: refused", 0.0)),
        *(
            (outcome, (Said.NOTHING, "", 0.0))
            for outcome in (
                Failed(FailureClass.FATAL, ERROR), Snoozed(1), Skipped("done"), Cancelled(ERROR), WorkerStopped(ERROR),
                LeaseLost(ERROR), Unclassified(ERROR),
            )
        ),
    ],
    ids=lambda item: " ".join(re.findall(r"^\w+|FATAL|TRANSIENT|THROTTLED|retry_after=\d+", repr(item))),
)  # fmt: skip
def test_what_an_outcome_says_of_the_dependency(outcome, expected):
    assert heard(outcome) == expected


def test_the_error_is_told_in_one_short_line():
    _, why, _ = heard(TimedOut(replace(ERROR, message="line\n" * 100)))
    assert (len(why), why[:32]) == (200, "ConnectionError: line line line ")


def test_what_is_no_outcome_and_no_state_is_a_mistake():
    with pytest.raises(AssertionError, match="odd"):
        heard("odd")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="odd"):
        observe(replace(CLOSED, state="odd"), BREAKER, [WELL], NOW)  # type: ignore[arg-type]


class TestClosed:
    def test_so_many_failures_in_a_row_open_it(self):
        two = observe(CLOSED, BREAKER, [FAILED, FAILED], NOW)
        assert (two.state, two.failures, two.opened_at, two.blocks) == (CircuitState.CLOSED, 2, None, False)
        third = observe(two, BREAKER, [end(Said.FAILED, why="ConnectionError: refused")], NOW)
        assert third == Circuit(
            CircuitState.OPEN, 3, 0, NOW, NOW, NOW + 30 * SECOND, (),
            "3 failures in a row, the last: ConnectionError: refused",
        )  # fmt: skip
        assert third.blocks

    def test_a_success_between_begins_the_count_anew(self):
        assert observe(CLOSED, BREAKER, [FAILED, FAILED, WELL, FAILED, FAILED], NOW).failures == 2

    def test_what_says_nothing_changes_nothing(self):
        assert observe(CLOSED, BREAKER, [FAILED, FAILED, NOTHING], NOW) == replace(CLOSED, failures=2)

    def test_a_single_failure_may_be_enough(self):
        circuit = observe(CLOSED, Breaker(failures=1), [end(Said.FAILED, why="Timeout")], NOW)
        assert (circuit.state, circuit.reason) == (CircuitState.OPEN, "a failure: Timeout")
        assert observe(CLOSED, Breaker(failures=1), [FAILED], NOW).reason == "a failure"

    def test_runs_that_began_before_it_closed_count_for_nothing(self):
        closed = reset(opened(), NOW, "reset")
        late = NOW + 10 * SECOND
        assert observe(closed, BREAKER, [end(Said.FAILED, ran=10.1)] * 9, late) == closed
        assert observe(closed, BREAKER, [end(Said.FAILED, ran=10)] * 3, late).state is CircuitState.OPEN
        soon = NOW + timedelta(seconds=0.5)
        assert observe(closed, BREAKER, [end(Said.FAILED, ran=-1)] * 3, soon).state is CircuitState.OPEN


class TestStatedTime:
    """A throttling peer's Retry-After keeps the breaker open until then."""

    @pytest.mark.parametrize(
        ("stated", "away"), [(0.0, 30), (29.0, 30), (60.0, 60), (3600.0, 3600), (10 * 365 * 86400.0, 3600)]
    )
    def test_it_is_never_shortened_and_an_hour_at_most(self, stated: float, away: float):
        circuit = observe(CLOSED, Breaker(failures=1), [end(Said.FAILED, stated=stated)], NOW)
        assert probe_in(circuit, NOW) == away


class TestOpen:
    def test_nothing_begins_until_its_time_is_over(self):
        circuit = opened()
        just_before = NOW + timedelta(seconds=29.999)
        assert probe_in(circuit, just_before) == pytest.approx(0.001)
        assert room(circuit, BREAKER, just_before) == 0
        assert (probe_in(circuit, NOW + 30 * SECOND), room(circuit, BREAKER, NOW + 30 * SECOND)) == (0.0, 1)

    @pytest.mark.parametrize("late", [WELL, FAILED])
    def test_ends_of_runs_from_before_neither_close_nor_prolong_it(self, late: Seen):
        circuit = opened()
        assert observe(circuit, BREAKER, [late], NOW + SECOND) == circuit

    def test_a_clock_that_was_set_back_does_not_keep_it_open(self):
        circuit = opened()
        assert probe_in(circuit, NOW - 60 * SECOND) == 90, "a transaction may have begun a little earlier"
        assert probe_in(circuit, NOW - 61 * SECOND) == 0.0
        assert room(circuit, BREAKER, NOW - timedelta(days=1)) == 1

    def test_nothing_granted_leaves_it_as_it_is(self):
        assert permit(opened(), [], NOW + 60 * SECOND) == opened()


class TestHalfOpen:
    A, B, C = (b"a", 1), (b"b", 2), (b"c", 3)
    LATER = NOW + 31 * SECOND

    def test_a_permit_makes_it_half_open_and_takes_room(self):
        circuit = probing(self.A)
        assert (circuit.state, circuit.permits, circuit.probe_at) == (CircuitState.HALF_OPEN, (self.A,), None)
        assert (circuit.opened_at, circuit.changed_at) == (NOW, NOW + 30 * SECOND)
        assert (circuit.blocks, room(circuit, BREAKER, self.LATER)) == (True, 0)
        again = permit(circuit, [self.B], self.LATER)
        assert (again.changed_at, again.permits) == (NOW + 30 * SECOND, (self.A, self.B))

    def test_success_closes_it(self):
        circuit = observe(replace(probing(self.A), version=7), BREAKER, [end(Said.WELL, self.A)], self.LATER)
        assert circuit == Circuit(changed_at=self.LATER, reason="a probe succeeded", version=7)

    def test_as_many_successes_as_it_has_probes(self):
        breaker = replace(BREAKER, probes=3)
        circuit = probing(self.A, self.B, breaker=breaker)
        assert room(circuit, breaker, self.LATER) == 1
        circuit = observe(circuit, breaker, [end(Said.WELL, self.A), end(Said.WELL, self.B)], self.LATER)
        assert (circuit.state, circuit.successes, room(circuit, breaker, self.LATER)) == (CircuitState.HALF_OPEN, 2, 3)
        failed = observe(permit(circuit, [self.C], self.LATER), breaker, [end(Said.FAILED, self.C)], self.LATER)
        assert failed.successes == 0, "it begins anew"
        closed = observe(permit(circuit, [self.C], self.LATER), breaker, [end(Said.WELL, self.C)], self.LATER)
        assert (closed.state, closed.reason) == (CircuitState.CLOSED, "3 probes succeeded")

    def test_a_failure_opens_it_again_and_the_other_permits_stay(self):
        breaker = replace(BREAKER, probes=2)
        circuit = probing(self.A, self.B, breaker=breaker)
        again = observe(circuit, breaker, [end(Said.FAILED, self.A, why="still down", stated=60)], self.LATER)
        assert (again.state, again.successes, again.permits) == (CircuitState.OPEN, 0, (self.B,))
        assert (again.opened_at, again.probe_at) == (NOW, self.LATER + 60 * SECOND)
        assert again.reason == "a probe failed: still down"
        later = self.LATER + 60 * SECOND
        assert room(again, breaker, later) == 1, "the other probe still runs"
        third = permit(again, [self.C], later)
        told = observe(third, breaker, [end(Said.WELL, self.B, ran=61)], later)
        assert (told.successes, told.permits) == (0, (self.C,)), "its success is of the time before"

    def test_a_probe_that_says_nothing_gives_its_permit_back(self):
        circuit = observe(probing(self.A), BREAKER, [end(Said.NOTHING, self.A)], self.LATER)
        assert (circuit.state, circuit.permits, room(circuit, BREAKER, self.LATER)) == (CircuitState.HALF_OPEN, (), 1)

    @pytest.mark.parametrize("said", [Said.WELL, Said.FAILED])
    def test_runs_without_a_permit_decide_nothing(self, said: Said):
        circuit = probing(self.A)
        assert observe(circuit, BREAKER, [end(said, self.B)], self.LATER) == circuit

    def test_a_permit_whose_lease_is_gone_is_not_in_force(self):
        circuit = in_force(probing(self.A, self.B), {self.B, self.C})
        assert circuit.permits == (self.B,)

    def test_a_clock_that_was_set_back_does_not_make_it_deaf(self):
        circuit = observe(probing(self.A), BREAKER, [end(Said.WELL, self.A)], NOW - timedelta(hours=1))
        assert circuit.state is CircuitState.CLOSED


def test_a_closed_one_has_no_room_for_probes():
    assert room(CLOSED, BREAKER, NOW) == 0


def test_a_reset_forgets_everything():
    assert reset(replace(probing((b"a", 1)), version=4), NOW, "reset by ann") == Circuit(
        changed_at=NOW, reason="reset by ann", version=4
    )


class Workers(RuleBasedStateMachine):
    """Jobs that start, end, lose their leases and are forgotten, against one breaker and a clock that goes on."""

    @initialize(failures=st.integers(1, 4), probes=st.integers(1, 3))
    def declare(self, failures: int, probes: int) -> None:
        self.breaker = Breaker("b", failures=failures, probes=probes, open_for=10)
        self.circuit, self.now, self.lease = CLOSED, NOW, count(1)
        self.runs: dict[tuple[bytes, int], datetime] = {}
        self.probes: set[tuple[bytes, int]] = set()

    def _begin(self) -> tuple[bytes, int]:
        self.now += timedelta(microseconds=1)
        pair = (b"job", next(self.lease))
        self.runs[pair] = self.now
        return pair

    @rule(seconds=st.sampled_from([0.5, 3, 10, 45]))
    def time_goes_on(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @precondition(lambda self: not self.circuit.blocks)
    @rule()
    def a_run_begins(self) -> None:
        self._begin()

    @rule(wanted=st.integers(1, 5))
    def somebody_asks_for_probes(self, wanted: int) -> None:
        self.circuit = in_force(self.circuit, set(self.runs))
        granted = [self._begin() for _ in range(min(wanted, room(self.circuit, self.breaker, self.now)))]
        if granted:
            assert self.circuit.probe_at is None or self.now >= self.circuit.probe_at
        self.probes |= set(granted)
        self.circuit = permit(self.circuit, granted, self.now)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), said=st.sampled_from(Said), reported=st.booleans())
    def a_run_ends(self, data: st.DataObject, said: Said, reported: bool) -> None:
        self.now += timedelta(microseconds=1)
        pair = data.draw(st.sampled_from(sorted(self.runs)))
        before, ran = self.circuit, (self.now - self.runs[pair]).total_seconds()
        if reported:
            self.circuit = observe(before, self.breaker, [end(said, pair, ran)], self.now)
        if before.blocks and not self.circuit.blocks:
            assert pair in self.probes, "only a probe closes it"
            assert said is Said.WELL
        del self.runs[pair]

    @rule()
    def an_operator_resets(self) -> None:
        self.circuit = reset(self.circuit, self.now, "reset")

    @invariant()
    def no_more_probes_than_allowed(self) -> None:
        if self.circuit.blocks:
            began = self.circuit.opened_at or self.now
            under_way = {pair for pair in self.probes & set(self.runs) if self.runs[pair] >= began}
            assert len(under_way) <= self.breaker.probes
            assert under_way <= set(self.circuit.permits)

    @invariant()
    def its_fields_agree(self) -> None:
        circuit = self.circuit
        assert circuit.blocks == (circuit.opened_at is not None)
        assert (circuit.state is CircuitState.OPEN) == (circuit.probe_at is not None)
        assert circuit.successes < self.breaker.probes
        if not circuit.blocks:
            assert (circuit.permits, circuit.successes) == ((), 0)
            assert circuit.failures < self.breaker.failures

    @invariant()
    def it_never_hangs(self) -> None:
        if self.circuit.blocks:
            waited = self.now + timedelta(seconds=11)
            idle = in_force(self.circuit, ())
            assert room(idle, self.breaker, waited) >= 1


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=60, stateful_step_count=40)
