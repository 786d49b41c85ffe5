"""Lists, counts, search: pages by keyset, every filter, what is refused."""

import base64
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from redrive.domain.errors import InvalidField
from redrive.domain.failures import Reason
from redrive.domain.filters import Count, JobFilter, PageRequest, Sort
from redrive.domain.states import HotState, Place, Spot, Verb
from redrive.store.port import JobPage
from redrive.store.sql import lists
from redrive.store.sql.rows import head_columns
from redrive.store.sql.tables import jobs_archive, jobs_dlq, jobs_hot

from .make import OTHER, QUEUE, Floor, bury, error, job, retry, succeed
from .rows import Rows


def ids(store, limit: int = 50, sort: Sort | None = None, **by: Any) -> list[UUID]:
    """All pages of a list."""
    found: list[UUID] = []
    cursor = None
    while True:
        page = store.list_jobs(JobFilter(**by), PageRequest(limit, cursor, sort))
        found += [head.id for head in page.jobs]
        assert len(page.jobs) <= limit
        cursor = page.next_cursor
        if cursor is None:
            return found


def some(floor: Floor, rows: Rows, place: Place, number: int) -> list[UUID]:
    """Jobs of a place, oldest first, several at one and the same moment."""
    jobs = [job(due=timedelta(hours=1) if place is Place.HOT else None) for _ in range(number)]
    floor.accept(*jobs)
    if place is Place.HOT:
        table, column = jobs_hot, "due_at"
    else:
        held = floor.take(number)
        floor.settle(*((bury if place is Place.DLQ else succeed)(one) for one in held))
        table, column = (jobs_dlq, "failed_at") if place is Place.DLQ else (jobs_archive, "finished_at")
    now = floor.store.now()
    made = sorted(one.id for one in jobs)
    for n, one in enumerate(made):
        rows.set(table, one, **{column: now + timedelta(seconds=n // 3, microseconds=n // 3)})
    return made


SORTED = [
    (Place.DLQ, None, -1),
    (Place.DLQ, Sort.FAILED_AT, -1),
    (Place.DLQ, Sort.CREATED_AT, -1),
    (Place.ARCHIVE, Sort.FINISHED_AT, -1),
    (Place.ARCHIVE, Sort.CREATED_AT, -1),
    (Place.HOT, None, -1),
    (Place.HOT, Sort.DUE_AT, 1),
]


@pytest.mark.parametrize(("place", "sort", "direction"), SORTED)
def test_pages_hold_every_job_once_in_order(store, floor: Floor, rows: Rows, place: Place, sort, direction: int):
    made = some(floor, rows, place, 11)
    by = {"state": HotState.SCHEDULED} if sort is Sort.DUE_AT else {}
    for limit in (1, 2, 3, 10, 11, 12):
        assert ids(store, limit, sort, place=place, **by) == made[::direction]


def test_a_page_tells_whether_another_follows(store, floor: Floor, rows: Rows):
    some(floor, rows, Place.DLQ, 4)
    assert store.list_jobs(JobFilter(), PageRequest(4)).next_cursor is None
    assert store.list_jobs(JobFilter(), PageRequest(3)).next_cursor is not None
    assert store.list_jobs(JobFilter(queue="none"), PageRequest(3)) == JobPage((), None)


@pytest.mark.slow
def test_pages_are_stable_while_jobs_come_and_go(store, floor: Floor, rows: Rows):
    """Thirty dead jobs with one to forty lines of history: three pages of ten, together all thirty."""
    made = []
    for n in range(30):
        one = floor.one()
        for _ in range(n % 4):
            floor.settle(retry(floor.take()[0]))
            store.promote()
        floor.settle(bury(floor.take()[0]))
        made.append(one)
    seen: list[UUID] = []
    cursor = None
    for _ in range(3):
        page = store.list_jobs(JobFilter(), PageRequest(10, cursor))
        assert len(page.jobs) == 10
        seen += [head.id for head in page.jobs]
        floor.dead()  # new ones arrive above
        floor.resurrect(seen[-2])  # one that was shown leaves
        (held,) = floor.take()
        floor.settle(succeed(held))
        cursor = page.next_cursor
    assert seen == made[::-1]
    assert cursor is None


def test_a_list_shows_heads_and_reads_no_payload(store, floor: Floor):
    one = floor.dead(payload=b"x" * 1000, tags=("t",))
    (head,) = store.list_jobs(JobFilter(), PageRequest()).jobs
    assert head == floor.head(one)
    assert (head.payload_size, head.tags, head.spot) == (1000, ("t",), Spot.DLQ)
    read = [str(column) for place in Place for column in head_columns(place)]
    assert not [name for name in read if name.endswith((".payload", ".result", ".traceback"))]


# -- filters -----------------------------------------------------------------------------------------------------------


def test_every_filter_of_the_dlq(store, floor: Floor, rows: Rows):
    plain = floor.dead()
    other = floor.dead(
        Reason.TIMEOUT,
        error("Connection refused by Host-A", "builtins.ConnectionError", cause="f" * 16),
        queue=OTHER,
        tags=("signup", "vip"),
        labels={"customer": "42"},
        idempotency_key="k",
    )
    second = floor.dead(Reason.ISOLATED)
    floor.resurrect(second)
    floor.settle(bury(floor.take()[0], Reason.ISOLATED))
    cancelled = floor.dead(Reason.CANCELLED)
    rows.set(jobs_dlq, plain, failed_at=store.now() - timedelta(hours=5))
    hour_ago = store.now() - timedelta(hours=1)
    wanted: dict[str, tuple[Any, set[UUID]]] = {
        "queue": (OTHER, {other}),
        "reason": (Reason.TIMEOUT, {other}),
        "incident": ("f" * 16, {other}),
        "tag": ("vip", {other}),
        "label": (("customer", "42"), {other}),
        "key": ("k", {other}),
        "life_min": (2, {second}),
        "failed_after": (hour_ago, {other, second}),
        "failed_before": (hour_ago, {plain}),
        "type": ("email.send.v1", {plain, other, second}),
        "cancelled": (True, {plain, other, second, cancelled}),
    }
    assert set(ids(store)) == {plain, other, second}, "cancelled work is not in the default view"
    for name, (value, found) in wanted.items():
        assert set(ids(store, **{name: value})) == found, name
        assert store.count_jobs(JobFilter(**{name: value})) == Count(len(found)), name
    assert ids(store, reason=Reason.CANCELLED) == [cancelled]
    strange: dict[str, Any] = {"tag": "no", "label": ("customer", "43"), "key": "x", "type": "x", "incident": "x"}
    for name, value in strange.items():
        assert ids(store, **{name: value}) == [], name
    assert ids(store, tag="vip", queue=QUEUE) == [], "all of them must hold"
    assert store.dead_by_reason() == {"cancelled": 1, "fatal": 1, "isolated": 1, "timeout": 1}
    assert store.dead_by_reason(OTHER) == {"timeout": 1}


def test_by_operation(store, floor: Floor, rows: Rows):
    one, operation = floor.dead(), UUID(int=77)
    floor.dead()
    rows.set(jobs_dlq, one, operation_id=operation)
    assert ids(store, operation=operation) == [one]


def test_hot_and_archive_by_their_filters(store, floor: Floor, rows: Rows):
    scheduled = floor.later(idempotency_key="k")
    fetched, running = floor.fetched().uuid, floor.running().uuid
    old, done = floor.archived(), floor.archived(queue=OTHER)
    pending = floor.one()
    for state, one in zip(HotState, (scheduled, pending, fetched, running), strict=True):
        assert ids(store, place=Place.HOT, state=state) == [one]
    assert set(ids(store, place=Place.HOT)) == {scheduled, pending, fetched, running}
    assert ids(store, place=Place.HOT, key="k") == [scheduled]
    rows.set(jobs_archive, old, finished_at=store.now() - timedelta(days=2))
    yesterday = store.now() - timedelta(days=1)
    assert ids(store, place=Place.ARCHIVE, finished_after=yesterday) == [done]
    assert ids(store, place=Place.ARCHIVE, finished_before=yesterday) == [old]
    assert ids(store, place=Place.ARCHIVE, queue=OTHER) == [done]


def test_before_and_after_do_not_overlap(store, floor: Floor):
    one = floor.dead()
    at = floor.head(one).failed_at
    assert ids(store, failed_after=at) == [one]
    assert ids(store, failed_before=at) == []


SEARCHES = {
    "refused": True,
    "REFUSED host-a": True,
    "ConnectionError": True,
    "email.send": True,
    "email отказано": True,
    "ОТКАЗАНО": True,
    "100%": True,
    "a_b": True,
    "refused missing": False,
    "10_%": False,
    "aXb": False,
    "Traceback": False,
}


def test_a_search_finds_every_word_in_type_error_or_message(store, floor: Floor):
    floor.dead(report=error("Host-A refused: Отказано 100% of a_b", "builtins.ConnectionError"))
    floor.dead(report=error("something else"), type="email.send.v1")
    for q, found in SEARCHES.items():
        assert len(ids(store, q=q)) == (2 if q == "email.send" else int(found)), q


def test_a_search_by_id(store, floor: Floor):
    one = floor.dead()
    floor.dead()
    for q in (str(one), f"  {one} ", one.hex, str(one).upper()):
        assert ids(store, q=q) == [one]
    assert ids(store, q=str(UUID(int=5))) == []


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", ["", "   ", "a b c d e f"])
def test_a_search_is_refused_never_widened(store, q: str):
    with pytest.raises(InvalidField, match="q"):
        store.list_jobs(JobFilter(q=q), PageRequest())
    with pytest.raises(InvalidField, match="q"):
        store.count_jobs(JobFilter(q=q))


def test_text_that_cannot_be_stored_is_refused_by_name(store):
    for name in ("queue", "type", "incident", "tag", "key", "q", "label"):
        for text in ("a\x00b", "\ud800"):
            value: Any = ("x", text) if name == "label" else text
            with pytest.raises(InvalidField) as refused:
                store.list_jobs(JobFilter(**{name: value}), PageRequest())
            assert refused.value.field == name


def test_sorts_without_an_index_are_refused(store):
    for place, sort in (
        (Place.DLQ, Sort.DUE_AT),
        (Place.DLQ, Sort.FINISHED_AT),
        (Place.HOT, Sort.FAILED_AT),
        (Place.HOT, Sort.DUE_AT),
        (Place.ARCHIVE, Sort.FAILED_AT),
    ):
        with pytest.raises(InvalidField, match="sort"):
            store.list_jobs(JobFilter(place=place), PageRequest(sort=sort))


def test_a_filter_of_another_place_is_refused(store):
    with pytest.raises(InvalidField, match="tag"):
        store.list_jobs(JobFilter(place=Place.HOT, tag="x"), PageRequest())
    with pytest.raises(InvalidField, match="state"):
        store.count_jobs(JobFilter(state=HotState.PENDING))


def coded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


ID, TIME = str(UUID(int=1)), "2026-01-01T00:00:00+00:00"
BAD_CURSORS = {
    "no base64": "%%%",
    "no JSON": base64.urlsafe_b64encode(b"{").decode(),
    "letters": "ääää",
    "a number": coded(5),
    "too few": coded(["failed_at", TIME]),
    "no time": coded(["failed_at", None, ID]),
    "a naive time": coded(["failed_at", "2026-01-01T00:00:00", ID]),
    "a number as time": coded(["failed_at", 5, ID]),
    "a number as id": coded(["failed_at", TIME, 5]),
    "no id": coded(["failed_at", TIME, "x"]),
    "another sort": coded(["created_at", None, ID]),
    "a sort that is none": coded([None, TIME, ID]),
    "endless": coded(["failed_at", TIME, ID, "x" * 5000]),
    "nested": base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    "a lone surrogate": "\ud800",
    "NUL": "\x00",
    "empty": "",
}


def test_a_cursor_that_cannot_be_read_is_refused(store):
    for cursor in BAD_CURSORS.values():
        with pytest.raises(InvalidField, match="cursor"):
            store.list_jobs(JobFilter(), PageRequest(cursor=cursor))


def test_a_cursor_of_another_list_is_refused(store, floor: Floor, rows: Rows):
    some(floor, rows, Place.DLQ, 3)
    cursor = store.list_jobs(JobFilter(), PageRequest(1)).next_cursor
    with pytest.raises(InvalidField, match="cursor"):
        store.list_jobs(JobFilter(), PageRequest(1, cursor, Sort.CREATED_AT))


# -- counts ------------------------------------------------------------------------------------------------------------


def test_counting_stops_at_the_cap(store, floor: Floor, rows: Rows, monkeypatch):
    some(floor, rows, Place.DLQ, 6)
    for cap, wanted in ((5, Count(5, capped=True)), (6, Count(6)), (7, Count(6))):
        monkeypatch.setattr(lists, "COUNT_CAP", cap)
        assert store.count_jobs(JobFilter()) == wanted


# -- one job -----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_nowhere(store):
    assert store.find(UUID(int=3)) is None
    assert store.head(UUID(int=3)) is None


def test_a_job_is_found_with_its_whole_trail(store, floor: Floor):
    one = floor.one()
    floor.settle(retry(floor.take()[0], report=error("first")))
    store.promote()
    floor.settle(bury(floor.take()[0], report=error("second")))
    floor.edit(one, payload=b"2")
    floor.resurrect(one)
    floor.edit(one, priority=1)
    record = store.find(one)
    assert record is not None
    assert [(line.life, line.attempt, line.error_message) for line in record.ledger] == [
        (1, 1, "first"),
        (1, 2, "second"),
    ]
    assert [(old.revision, old.life) for old in record.revisions] == [(1, 1), (2, 2)]
    assert all(line.traceback for line in record.ledger)
    assert store.head(one) == record.head


def test_incidents_are_listed_last_seen_first(store, floor: Floor):
    for cause in ("a", "b", "c", "a"):
        floor.dead(report=error(cause=cause * 16))
    assert [(one.id[0], one.number, one.deaths) for one in store.incidents()] == [("a", 1, 2), ("c", 3, 1), ("b", 2, 1)]
    assert [one.id[0] for one in store.incidents(limit=2)] == ["a", "c"]
    first = store.incidents()[0]
    assert (first.state, first.owner, first.version) == ("open", None, 2)
    assert "no such customer" in first.title


def test_an_isolated_job_is_in_the_default_view(store, floor: Floor):
    one = floor.one()
    floor.ask(Verb.ISOLATE, one)
    assert ids(store) == [one]
