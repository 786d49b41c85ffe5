"""Slots: which moments a schedule means, across changes of the clock too, and which of them are enqueued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.domain.errors import InvalidField
from redrive.domain.job import NewJob
from redrive.domain.schedule import (
    ALL_LIMIT,
    ARGUMENTS_LIMIT,
    CatchUp,
    Plan,
    Rhythm,
    Schedule,
    check_schedule,
    digest,
    plan,
)
from redrive.worker import crontab


def at(text: str) -> datetime:
    """A moment in UTC, as ``2026-03-29 01:00``."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def slots(rhythm: Rhythm, after: datetime) -> Iterator[datetime]:
    while (following := rhythm.after(after)) is not None:
        yield following
        after = following


# -- cases -------------------------------------------------------------------------------------------------------------

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"

CASES = [
    # A plain day: the wall clock is one or two hours ahead of UTC.
    ("0 3 * * *", BERLIN, "2026-01-10 12:00", ["2026-01-11 02:00", "2026-01-12 02:00"]),
    ("0 3 * * *", BERLIN, "2026-07-10 12:00", ["2026-07-11 01:00", "2026-07-12 01:00"]),
    ("30 5 * * 1-5", "UTC", "2026-05-01 06:00", ["2026-05-04 05:30", "2026-05-05 05:30"]),
    # 2026-03-29 in Berlin goes from 02:00 to 03:00: a time left out is due at the end of the gap, once.
    ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:30"]),
    ("15 2 * * *", BERLIN, "2026-03-29 00:59", ["2026-03-29 01:00", "2026-03-30 00:15"]),
    ("30 2 * * *", BERLIN, "2026-03-29 01:00", ["2026-03-30 00:30"]),
    ("0,15,30 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:00", "2026-03-30 00:15"]),
    ("30 2,3 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-29 01:30", "2026-03-30 00:30"]),
    ("0 2,3 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-29 01:00", "2026-03-30 00:00"]),
    ("30 2 * * 0", BERLIN, "2026-03-28 12:00", ["2026-03-29 01:00", "2026-04-05 00:30"]),
    # 2026-10-25 goes from 03:00 to 02:00: a time shown twice is due the first time, once.
    ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["2026-10-25 00:30", "2026-10-26 01:30"]),
    ("30 2 * * *", BERLIN, "2026-10-25 00:30", ["2026-10-26 01:30"]),
    ("30 2 * * *", BERLIN, "2026-10-25 01:10", ["2026-10-26 01:30"]),
    ("0,30 2 * * *", BERLIN, "2026-10-25 00:10", ["2026-10-25 00:30", "2026-10-26 01:00"]),
    ("30 1-3 * * *", BERLIN, "2026-10-24 12:00", ["2026-10-24 23:30", "2026-10-25 00:30", "2026-10-25 02:30"]),
    # With a star in minute or hour the clock is followed: left out is left out, twice is twice.
    ("*/30 * * * *", BERLIN, "2026-03-29 00:15", ["2026-03-29 00:30", "2026-03-29 01:00", "2026-03-29 01:30"]),
    ("*/30 * * * *", BERLIN, "2026-10-25 00:15", ["2026-10-25 00:30", "2026-10-25 01:00", "2026-10-25 01:30"]),
    ("0 * * * *", BERLIN, "2026-10-24 23:30", ["2026-10-25 00:00", "2026-10-25 01:00", "2026-10-25 02:00"]),
    ("*/30 2 * * *", BERLIN, "2026-03-28 12:00", ["2026-03-30 00:00", "2026-03-30 00:30"]),
    ("*/30 2 * * *", BERLIN, "2026-10-24 12:00", ["2026-10-25 00:00", "2026-10-25 00:30", "2026-10-25 01:00"]),
    ("0 */2 * * *", BERLIN, "2026-03-28 23:00", ["2026-03-29 02:00", "2026-03-29 04:00"]),
    # Elsewhere: the other direction of the year, half an hour, no change, a whole day left out, summer time in winter.
    ("30 2 * * *", NEW_YORK, "2026-03-08 00:00", ["2026-03-08 07:00", "2026-03-09 06:30"]),
    ("30 1 * * *", NEW_YORK, "2026-11-01 00:00", ["2026-11-01 05:30", "2026-11-02 06:30"]),
    ("*/15 2 * * *", LORD_HOWE, "2026-04-04 14:00", ["2026-04-04 15:30", "2026-04-04 15:45", "2026-04-04 16:00"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04 14:00", ["2026-04-04 14:45", "2026-04-05 15:15"]),
    ("15 2 * * *", LORD_HOWE, "2026-10-03 15:00", ["2026-10-03 15:30", "2026-10-04 15:15"]),
    ("30 2 * * *", "Asia/Kolkata", "2026-03-28 12:00", ["2026-03-28 21:00", "2026-03-29 21:00", "2026-03-30 21:00"]),
    ("0 12 30 12 *", "Pacific/Apia", "2011-12-01 00:00", ["2011-12-30 10:00", "2012-12-29 22:00"]),
    ("0 3 * * *", "Africa/Casablanca", "2026-02-14 12:00", ["2026-02-15 03:00", "2026-02-16 03:00"]),
    ("30 2 * * *", "Europe/Dublin", "2026-10-24 12:00", ["2026-10-25 02:30", "2026-10-26 02:30"]),
    # The calendar: 29 February, months without a 31st, the last day, a day of the week and of the month.
    ("0 0 29 2 *", "UTC", "2026-01-01 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
    ("0 0 29 2 *", "UTC", "2096-03-01 00:00", ["2104-02-29 00:00"]),
    ("0 12 29 2 *", BERLIN, "2026-01-01 00:00", ["2028-02-29 11:00"]),
    ("*/30 23 29 2 *", BERLIN, "2026-01-01 00:00", ["2028-02-29 22:00", "2028-02-29 22:30", "2032-02-29 22:00"]),
    ("0 0 31 * *", "UTC", "2026-01-31 00:00", ["2026-03-31 00:00", "2026-05-31 00:00"]),
    ("0 0 L * *", "UTC", "2026-01-31 00:00", ["2026-02-28 00:00", "2026-03-31 00:00"]),
    ("0 0 13 * 5", "UTC", "2026-02-10 00:00", ["2026-02-13 00:00", "2026-02-20 00:00"]),
    # Fractions of seconds and of minutes after a slot are after it; before it, before.
    ("0 3 * * *", BERLIN, "2026-01-10 02:00:00.000001", ["2026-01-11 02:00"]),
    ("0 3 * * *", BERLIN, "2026-01-10 01:59:59.999999", ["2026-01-10 02:00"]),
    ("*/5 * * * *", BERLIN, "2026-01-10 02:04:59.999999", ["2026-01-10 02:05", "2026-01-10 02:10"]),
    ("*/5 * * * *", BERLIN, "2026-01-10 02:05:00.000001", ["2026-01-10 02:10"]),
]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"), CASES, ids=[f"{c[0]} {c[1]} {c[2]}" for c in CASES]
)
def test_the_slots_of_an_expression(expression, zone, after, expected):
    rhythm, _ = crontab.cron(expression, zone)
    found = list(islice(slots(rhythm, at(after)), len(expected)))
    assert found == [at(text) for text in expected]
    assert {slot.tzinfo for slot in found} == {UTC}


EVERY = [
    (3600, "2026-05-01 06:00", "2026-05-01 07:00"),
    (3600, "2026-05-01 06:59:59.999999", "2026-05-01 07:00"),
    (900, "2026-10-25 00:59", "2026-10-25 01:00"),
    (timedelta(days=1), "2026-03-29 12:00", "2026-03-30 00:00"),
    (7, "1969-12-31 23:59:59", "1970-01-01 00:00"),
    (1, "2026-05-01 06:00:00.5", "2026-05-01 06:00:01"),
]


@pytest.mark.parametrize(("interval", "after", "expected"), EVERY, ids=str)
def test_the_slots_of_an_interval(interval, after, expected):
    rhythm, _ = crontab.every(interval)
    assert rhythm.after(at(after)) == at(expected)


# -- any expression, any zone, any change of the clock -----------------------------------------------------------------

ZONES = (
    BERLIN, NEW_YORK, LORD_HOWE, "Asia/Kolkata", "Africa/Casablanca", "Europe/Dublin", "America/St_Johns",
    "Antarctica/Troll", "Pacific/Apia", "Asia/Gaza", "America/Asuncion", "Pacific/Chatham", "UTC",
)  # fmt: skip
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@cache
def changes(name: str) -> list[datetime]:
    """Hours before which the zone's clock was changed, found by looking at each day of two years, and a plain one."""
    zone, found = ZoneInfo(name), [datetime(2020, 6, 1, tzinfo=UTC)]
    for year in (2011, 2026):
        for day in (datetime(year, 1, 2, tzinfo=UTC) + n * timedelta(days=1) for n in range(366)):
            hours = [day - n * HOUR for n in range(25)]
            offsets = [hour.astimezone(zone).utcoffset() for hour in (hours[0], hours[-1])]
            if offsets[0] != offsets[1]:
                found.append(next(hour for hour in hours if hour.astimezone(zone).utcoffset() == offsets[1]))
    return found


@cache
def clock(name: str, middle: datetime) -> list[tuple[datetime, datetime]]:
    """What the wall clock shows in each minute of the day and a half around a moment."""
    zone, begin = ZoneInfo(name), middle - timedelta(hours=18)
    moments = (begin + n * MINUTE for n in range(36 * 60))
    return [(moment, moment.astimezone(zone).replace(tzinfo=None)) for moment in moments]


def numbers(most: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field of an expression, and the numbers it stands for."""
    every = st.just(("*", frozenset(range(most + 1))))
    steps = st.integers(2, most).map(lambda n: (f"*/{n}", frozenset(range(0, most + 1, n))))
    lists = st.frozensets(st.integers(0, most), min_size=1, max_size=4).map(
        lambda some: (",".join(map(str, sorted(some))), some)
    )
    return st.one_of(lists, lists, steps, every)


WEEKDAYS = st.one_of(
    st.just(("*", frozenset(range(7)))),
    st.frozensets(st.integers(0, 6), min_size=1).map(lambda some: (",".join(map(str, sorted(some))), some)),
)


@pytest.mark.slow
@settings(max_examples=50)
@given(data=st.data(), minutes=numbers(59), hours=numbers(23), weekdays=WEEKDAYS, name=st.sampled_from(ZONES))
def test_no_slot_is_left_out_or_doubled_across_a_change(data: Any, minutes: Any, hours: Any, weekdays: Any, name: str):
    """By the rule as it is documented, minute by minute, for times around each change of a zone's clock."""
    middle = data.draw(st.sampled_from(changes(name)))
    shown = clock(name, middle)

    def named(wall: datetime) -> bool:
        return wall.minute in minutes[1] and wall.hour in hours[1] and wall.isoweekday() % 7 in weekdays[1]

    expected: set[datetime] = set()
    if name != "UTC" and "*" in minutes[0][0] + hours[0][0]:
        expected = {moment for moment, wall in shown if named(wall)}
    else:
        high = shown[0][1]
        for moment, wall in shown:
            if any(named(high + n * MINUTE) for n in range(1, (wall - high) // MINUTE + 1)):  # one minute, or a gap
                expected.add(moment)
            high = max(high, wall)
    rhythm, _ = crontab.cron(f"{minutes[0]} {hours[0]} * * {weekdays[0]}", name)

    begin, end = middle - 12 * HOUR, middle + 12 * HOUR
    found = []
    for slot in slots(rhythm, begin):
        if slot > end:
            break
        found.append(slot)
    assert found == sorted(slot for slot in expected if begin < slot <= end)
    assert all(one < two for one, two in pairwise(found))
    # From wherever one asks, the next slot is the same: there is nothing to remember.
    somewhere = begin + data.draw(st.integers(0, 24 * 3600 * 10)) * timedelta(milliseconds=100)
    later = [slot for slot in found if slot > somewhere]
    if later:
        assert rhythm.after(somewhere) == rhythm.after(somewhere.astimezone(ZoneInfo(name))) == later[0]


# -- what is enqueued --------------------------------------------------------------------------------------------------

HOURLY, BOTH, FOUR = "0 * * * *", ["05:00", "05:01"], ["02:00", "03:00", "04:00", "05:00"]
PLANS: list[tuple[str, str, str, dict[CatchUp, list[str]], str]] = [
    # cron, the oldest slot nobody has seen to, now, what each rule enqueues, the next slot
    (HOURLY, "05:00", "05:00", {"latest": ["05:00"], "none": ["05:00"], "all": ["05:00"]}, "06:00"),
    (HOURLY, "05:00", "05:01", {"latest": ["05:00"], "none": ["05:00"], "all": ["05:00"]}, "06:00"),
    (HOURLY, "05:00", "05:01:00.1", {"latest": ["05:00"], "none": [], "all": ["05:00"]}, "06:00"),
    (HOURLY, "02:00", "05:00:10", {"latest": ["05:00"], "none": ["05:00"], "all": FOUR}, "06:00"),
    (HOURLY, "02:00", "05:59", {"latest": ["05:00"], "none": [], "all": FOUR}, "06:00"),
    ("* * * * *", "05:00", "05:01", {"latest": BOTH, "none": BOTH, "all": BOTH}, "05:02"),
    # The slot that is stored counts, also where the zone's rules have changed since and it is none any more.
    (HOURLY, "04:30", "05:59", {"latest": ["05:00"], "none": [], "all": ["04:30", "05:00"]}, "06:00"),
    (HOURLY, "05:30", "05:59", {"latest": ["05:30"], "none": [], "all": ["05:30"]}, "06:00"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "first", "now", "expected", "following"), PLANS, ids=str)
def test_what_becomes_of_slots_that_have_come(expression, first, now, expected, following):
    rhythm, _ = crontab.cron(expression, "UTC")
    day = "2026-05-01 "
    for rule, enqueued in expected.items():
        made = plan(rhythm, at(day + first), at(day + now), rule)
        wanted = tuple(at(day + text) for text in enqueued)
        missed = None if at(day + first) in wanted else at(day + first)
        assert made == Plan(wanted, at(day + following), missed), rule


YEARS = [
    ("* * * * *", BERLIN),
    ("* * * * 1", BERLIN),
    ("*/5 * 29 2 *", BERLIN),
    ("0 0 1 1 *", "UTC"),
    ("30 2 * * *", BERLIN),
]


@pytest.mark.parametrize(("expression", "zone"), YEARS)
def test_after_years_the_work_is_bounded_and_the_newest_slots_are_found(expression, zone):
    """The slots of years are not gone through one by one."""
    rhythm, _ = crontab.cron(expression, zone)
    first, now = rhythm.after(at("2020-01-01 00:00")), at("2026-12-06 05:00:30")
    assert first is not None
    made = plan(rhythm, first, now, "all")
    assert 0 < len(made.slots) <= ALL_LIMIT
    assert all(one < two for one, two in pairwise(made.slots))
    assert rhythm.after(made.slots[-1]) == made.next
    assert made.next is not None
    assert made.slots[-1] <= now < made.next
    assert plan(rhythm, first, now, "latest").slots == made.slots[-1:]


def test_an_interval_of_seconds_does_not_flood_after_a_week():
    rhythm, _ = crontab.every(1)
    now = at("2026-05-08 00:00:00.5")
    assert len(plan(rhythm, at("2026-05-01 00:00"), now, "latest").slots) == 1
    assert len(plan(rhythm, at("2026-05-01 00:00"), now, "none").slots) == 1
    assert len(plan(rhythm, at("2026-05-01 00:00"), now, "all").slots) == ALL_LIMIT
    assert len(plan(rhythm, at("2026-05-07 23:59:51"), now, "none").slots) == 10


def test_a_minute_is_a_minute_in_whatever_zone_the_clock_is_told():
    """Within one zone Python subtracts by the wall clock: a minute before the second 02:00 is then an hour and more."""
    rhythm, _ = crontab.every(1800)
    now = at("2026-10-25 01:00:30").astimezone(ZoneInfo(BERLIN))
    assert plan(rhythm, at("2026-10-25 00:30"), now, "none").slots == (at("2026-10-25 01:00"),)


# -- declarations ------------------------------------------------------------------------------------------------------

JOB = NewJob(UUID(int=1), "report.v1", "reports", b'{"region":"eu"}', priority=30, tags=("night",), labels={"a": "b"})


def schedule(**but: Any) -> Schedule:
    rhythm, when = crontab.cron("30 2 * * *", BERLIN)
    known: dict[str, Any] = {"name": "nightly", "rhythm": rhythm, "when": when, "catch_up": "latest", "template": JOB}
    return Schedule(**(known | but))


def test_the_job_of_a_slot_names_schedule_and_slot():
    slot = at("2026-03-29 01:00")
    job = schedule().job(slot, UUID(int=2))
    said = {"schedule": "nightly", "slot": "2026-03-29T01:00:00Z"}
    assert job == replace(
        JOB,
        id=UUID(int=2),
        labels={"a": "b"} | said,
        idempotency_key="nightly@2026-03-29T01:00:00Z",
        created_by="schedule",
    )
    named = schedule(template=replace(JOB, idempotency_key="one at a time", created_by="team"))
    assert named.job(slot, UUID(int=2)).idempotency_key == "one at a time"
    assert named.job(slot, UUID(int=2)).created_by == "team"


def test_whatever_is_declared_otherwise_is_another_declaration():
    same = digest(schedule().spec)
    assert digest(schedule(template=replace(JOB, id=UUID(int=9))).spec) == same
    assert digest(dict(reversed(schedule().spec.items()))) == same
    rhythm, when = crontab.cron("30 2 * * *", "Europe/Paris")
    changed: dict[str, Any] = {
        "type": "report.v2", "queue": "other", "payload": b"{}", "priority": 0, "tags": (), "labels": {},
        "idempotency_key": "k", "lock_key": "l", "max_attempts": 7, "created_by": "team",
    }  # fmt: skip
    others = [
        schedule(rhythm=rhythm, when=when),
        schedule(catch_up="none"),
        *(schedule(template=replace(JOB, **{name: value})) for name, value in changed.items()),
    ]
    assert len({same, *(digest(other.spec) for other in others)}) == len(others) + 1
    assert [schedule().same_rhythm(other.spec) for other in others] == [False] + [True] * (len(others) - 1)


def test_a_new_rhythm_begins_after_now_and_after_the_last_slot():
    now, ahead = at("2026-05-01 12:00"), at("2026-05-03 12:00")
    assert schedule().begin(now, None) == at("2026-05-02 00:30")
    assert schedule().begin(now, at("2026-05-01 00:30")) == at("2026-05-02 00:30")
    assert schedule().begin(now, ahead) == at("2026-05-04 00:30"), "the clock was set back: no slot comes twice"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": "no spaces"}, "name"),
    ({"name": ""}, "name"),
    ({"catch_up": "some"}, "catch_up"),
    ({"catch_up": None}, "catch_up"),
    ({"template": replace(JOB, due=timedelta(0))}, "run_after"),
    ({"template": replace(JOB, payload=b" " * (ARGUMENTS_LIMIT + 1))}, "arguments"),
    ({"template": replace(JOB, labels={"slot": "x"})}, "labels"),
    ({"template": replace(JOB, labels={"schedule": "x"})}, "labels"),
    ({"template": replace(JOB, labels={str(n): "x" for n in range(49)})}, "labels"),
]


@pytest.mark.parametrize(("but", "field"), REFUSED, ids=[str(case[1]) + str(n) for n, case in enumerate(REFUSED)])
def test_what_no_job_could_carry_is_refused(but, field):
    with pytest.raises(InvalidField) as refused:
        check_schedule(schedule(**but))
    assert refused.value.field == field
    assert check_schedule(schedule()).name == "nightly"
