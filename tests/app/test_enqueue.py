"""Accepting work: options, batches, keys, the caller's transaction."""

import asyncio
import datetime as dt
import math
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from redrive import InvalidField, JobContext, PayloadError, Redrive
from redrive.domain.filters import JobFilter
from redrive.domain.states import Place, Spot
from redrive.domain.text import one_line


def waiting(app: Redrive) -> int:
    return app.insight().count(JobFilter(place=Place.HOT)).number


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"priority": "high"}, "priority"),
        ({"priority": 101}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.0}, "priority"),
        ({"run_after": math.nan}, "run_after"),
        ({"run_after": math.inf}, "run_after"),
        ({"run_after": -5}, "run_after"),
        ({"run_after": dt.timedelta(seconds=-5)}, "run_after"),
        ({"run_after": 10**400}, "run_after"),
        ({"run_after": "soon"}, "run_after"),
        ({"run_after": True}, "run_after"),
        ({"run_after": dt.datetime(2030, 1, 1)}, "run_after"),  # noqa: DTZ001 - that it has no zone is the point
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "a\0b"}, "idempotency_key"),
        ({"idempotency_key": "x" * 401}, "idempotency_key"),
        ({"lock_key": "\ud800"}, "lock_key"),
        ({"tags": "one"}, "tags"),
        ({"tags": ["ok", "a\nb"]}, "tags[1]"),
        ({"tags": [f"t{n}" for n in range(51)]}, "tags"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"labels": ["a"]}, "labels"),
        ({"queue": "no spaces"}, "queue"),
        ({"queue": ""}, "queue"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 2.5}, "max_attempts"),
        ({"created_by": "\x1b[31m"}, "created_by"),
    ],
    ids=str,
)
def test_an_option_out_of_range_is_named_and_nothing_is_stored(lite, options: dict[str, Any], field):
    app = lite

    @app.job("t")
    def handler(n: int) -> None: ...

    for attempt in (
        lambda: app.enqueue("t", {"n": 1}, **options),
        lambda: app.enqueue_raw("t", b"{}", **options),
        lambda: handler.using(**options).enqueue(1),
        lambda: app.item("t", {"n": 1}, **options),
    ):
        with pytest.raises(InvalidField) as refused:
            attempt()
        assert refused.value.field == field
    assert waiting(app) == 0


def test_an_option_that_does_not_exist_is_no_silence(lite):
    with pytest.raises(TypeError, match="'delay' is no option"):
        lite.enqueue("t", {}, delay=5)


@pytest.mark.parametrize("name", ["", "no spaces", "a\nb", None, 3, "x" * 201])
def test_a_type_is_a_name(lite, name: Any):
    with pytest.raises(InvalidField, match="type"):
        lite.enqueue(name, {})


def test_options_are_stored(app):
    later = dt.datetime(2031, 5, 6, 7, 8, 9, 123456, dt.timezone(dt.timedelta(hours=5, minutes=45)))
    handle = app.enqueue(
        "t", {"a": 1}, queue="q", priority=30, run_after=later, idempotency_key="k", lock_key="l", tags=["x", "y", "x"],
        labels={"customer": "42"}, max_attempts=7, created_by="ann",
    )  # fmt: skip
    head = app.desk("test").get(handle.id).head
    assert (head.queue, head.priority, head.due_at) == ("q", 30, later)
    assert (head.idempotency_key, head.lock_key, head.tags, head.labels) == ("k", "l", ("x", "y"), {"customer": "42"})
    assert (head.max_attempts, head.created_by, head.spot) == (7, "ann", Spot.SCHEDULED)
    assert handle.status() is Spot.SCHEDULED


def test_a_delay_counts_on_the_clock_of_the_database(app):
    handle = app.enqueue("t", {}, run_after=dt.timedelta(hours=1))
    away = app.desk("test").get(handle.id).head.due_at - app.store.now()
    assert dt.timedelta(minutes=59) < away <= dt.timedelta(hours=1)
    assert app.enqueue("t", {}, run_after=0).status() is Spot.PENDING


def test_a_handler_brings_its_queue(lite):
    @lite.job("mail", queue="notifications", aliases=["mail.old"])
    def mail(to: str) -> None: ...

    handles = [mail.enqueue("a"), lite.enqueue("mail", {"to": "a"}), lite.enqueue("mail.old", {"to": "a"})]
    handles += [mail.using(queue="urgent").enqueue("a"), lite.enqueue("other", {})]
    queues = [lite.desk("test").get(handle.id).head.queue for handle in handles]
    assert queues == ["notifications", "notifications", "notifications", "urgent", "default"]


def test_the_decorated_function_stays_a_function(lite):
    @lite.job("add")
    def add(ctx: JobContext, a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    nobody: Any = None
    assert add(nobody, 1) == 3
    assert (add.__name__, add.__doc__, add.type) == ("add", "Adds.", "add")


def test_options_of_using_add_up_and_leave_the_handler_alone(lite):
    @lite.job("t")
    def handler(n: int) -> None: ...

    urgent = handler.using(priority=90)
    both = urgent.using(tags=["x"])
    heads = [lite.desk("t").get(one.enqueue(1).id).head for one in (handler, urgent, both)]
    assert [(head.priority, head.tags) for head in heads] == [(10, ()), (90, ()), (90, ("x",))]


# -- many at once ------------------------------------------------------------------------------------------------------


def test_items_of_every_kind(lite):
    @lite.job("t", queue="q")
    def handler(n: int) -> None: ...

    items = [handler.job(1), handler.using(priority=50).job(2), ("t", {"n": 3}), lite.item("u", {}, tags=["x"])]
    handles = lite.enqueue_many(items)
    records = [lite.desk("t").get(handle.id) for handle in handles]
    assert [record.payload for record in records] == [b'{"n":1}', b'{"n":2}', b'{"n":3}', b"{}"]
    assert [record.head.priority for record in records] == [10, 50, 10, 10]
    assert [record.head.queue for record in records] == ["q", "q", "q", "default"]
    assert lite.enqueue_many([]) == []


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (("t", {"x": math.nan}), "items[70].payload.x"),
        (("t", {"x": {"y": [1, {2}]}}), "items[70].payload.x.y[1]"),
        (("t", {"x": (1, 2)}), "items[70].payload.x"),
        (("t", {1: 2}), "items[70].payload"),
        (("t", [1]), "items[70].payload"),
        (("t t", {}), "items[70].type"),
        ("t", "items[70]"),
        (None, "items[70]"),
    ],
    ids=lambda value: one_line(value, 30),
)
def test_one_bad_item_of_a_hundred_and_nothing_is_stored(lite, bad: Any, field):
    items: list[Any] = [("t", {"x": n}) for n in range(100)]
    items[70] = bad
    with pytest.raises(InvalidField) as refused:
        lite.enqueue_many(items)
    assert refused.value.field == field
    assert waiting(lite) == 0


def test_an_item_is_one_job(lite):
    item = lite.item("t", {})
    with pytest.raises(InvalidField, match=r"items\[2\]: is items\[0\] again"):
        lite.enqueue_many([item, ("t", {}), item])
    assert waiting(lite) == 0


@pytest.mark.slow
def test_ten_thousand_in_one_call_and_payloads_around_8000_bytes(app):
    """A notification of a database holds less than 8,000 bytes; a payload that goes into one breaks the insert."""
    app.override(limits={"payload": 6_000_000})
    for size in (7_999, 8_001, 5_000_000):
        payload = b'"%s"' % (b"x" * (size - 2))
        assert app.desk("t").get(app.enqueue_raw("t", payload).id).payload == payload
    app.enqueue_many([("t", {"n": n}) for n in range(10_000)])
    assert sum(queue.pending for queue in app.store.queues()) == 10_003


def test_ids_are_version_7_and_rise(lite):
    handles = lite.enqueue_many([("t", {}) for _ in range(100)])
    assert {handle.id.version for handle in handles} == {7}
    assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)
    assert all(type(handle.id) is UUID for handle in handles)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_a_live_job_with_the_key_is_the_answer(app):
    first = app.enqueue("t", {"n": 1}, idempotency_key="k")
    again = app.enqueue("t", {"n": 2}, idempotency_key="k")
    other = app.enqueue("u", {"n": 3}, idempotency_key="k")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert again.id == first.id
    assert other.id != first.id
    handles = app.enqueue_many([app.item("t", {}, idempotency_key=key) for key in ("k", "new", "new")])
    assert [handle.duplicate for handle in handles] == [True, False, True]
    assert handles[0].id == first.id
    assert handles[2].id == handles[1].id
    assert waiting(app) == 3


def test_many_threads_and_one_key(database_url):
    """Each thread with an application of its own, as processes would have; twenty rounds at a barrier."""
    import threading

    apps = [Redrive(database_url) for _ in range(6)]
    barrier = threading.Barrier(len(apps))

    def race(app: Redrive) -> list[tuple[UUID, bool]]:
        answers = []
        for number in range(20):
            barrier.wait(30)
            handle = app.enqueue("t", {}, idempotency_key=f"k{number}")
            answers.append((handle.id, handle.duplicate))
        return answers

    with ThreadPoolExecutor(len(apps)) as pool:
        found = list(pool.map(race, apps))
    for answers in zip(*found, strict=True):
        assert len({identity for identity, _ in answers}) == 1
        assert [duplicate for _, duplicate in answers].count(False) == 1
    assert waiting(apps[0]) == 20
    for app in apps:
        app.close()


RACE = """
import sys
from redrive import Redrive
app = Redrive(sys.argv[1])
app.enqueue("warm", {})
print("ready", flush=True)
for line in sys.stdin:
    handle = app.enqueue("t", {}, idempotency_key=line.strip())
    print(handle.id, handle.duplicate, flush=True)
"""


@pytest.mark.slow
def test_many_processes_and_one_key(database_url):
    """Row 49 of the field reports, scaled down: 5 processes, 10 rounds."""
    racers = [
        subprocess.Popen([sys.executable, "-c", RACE, database_url], stdin=-1, stdout=-1, text=True) for _ in range(5)
    ]
    try:
        streams = [(racer.stdin, racer.stdout) for racer in racers]
        for _, out in streams:
            assert out is not None
            assert out.readline() == "ready\n"
        for number in range(10):
            for given, _ in streams:
                assert given is not None
                given.write(f"k{number}\n")
                given.flush()
            answers = [out.readline().split() for _, out in streams if out is not None]
            assert len({identity for identity, _ in answers}) == 1
            assert [duplicate for _, duplicate in answers].count("False") == 1
    finally:
        for racer in racers:
            racer.communicate()


# -- values ------------------------------------------------------------------------------------------------------------


MOMENT = dt.datetime(2026, 4, 30, 14, 32, 7, 123456, dt.timezone(dt.timedelta(hours=5, minutes=45)))
VALUES: dict[str, Any] = {
    "aware": MOMENT,
    "naive": MOMENT.replace(tzinfo=None),
    "day": MOMENT.date(),
    "amount": Decimal("1.10"),
    "ref": UUID("01a22ebe-59e4-76ad-86d9-6e06c9a33868"),
    "blob": bytes(range(256)),
    "zero": -0.0,
    "tenth": 0.1,
    "least": 5e-324,
}


def test_arguments_arrive_as_they_were_given_also_after_death_edit_and_resurrection(app):
    seen: list[dict[str, Any]] = []

    @app.job("t")
    def handler(
        aware: dt.datetime, naive: dt.datetime, day: dt.date, amount: Decimal, ref: UUID, blob: bytes,
        zero: float, tenth: float, least: float,
    ) -> None:  # fmt: skip
        seen.append({name: value for name, value in locals().items() if name in VALUES})

    handler.enqueue(**VALUES)
    dead = handler.enqueue(**VALUES)
    desk = app.desk("test")
    assert all(answer.ok for answer in desk.isolate(dead.id))
    desk.edit(dead.id, tags=["looked at"])
    desk.resurrect(dead.id, priority=20)
    app.worker().run(burst=True)

    assert len(seen) == 2
    for arrived in seen:
        assert arrived == VALUES
        assert {name: type(value) for name, value in arrived.items()} == {n: type(v) for n, v in VALUES.items()}
        assert math.copysign(1, arrived["zero"]) == -1
        assert arrived["aware"].utcoffset() == MOMENT.utcoffset()
        assert str(arrived["amount"]) == "1.10"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_argument_that_is_no_number_is_named(lite, value):
    @lite.job("t")
    def handler(price: float) -> None: ...

    with pytest.raises(InvalidField) as refused:
        handler.enqueue(price=value)
    assert refused.value.field == "price"
    assert waiting(lite) == 0


@pytest.mark.parametrize(
    "value", [MOMENT, Decimal(1), UUID(int=1), b"x", {1}, (1,), {1: 2}, object()], ids=lambda v: type(v).__name__
)
def test_by_type_only_what_json_brings_back_is_accepted(lite, value):
    with pytest.raises(InvalidField, match=r"payload\.value"):
        lite.enqueue("t", {"value": value})
    assert waiting(lite) == 0


def test_text_that_has_no_bytes_is_refused_with_its_place(lite):
    with pytest.raises(PayloadError) as refused:
        lite.enqueue_raw("t", 'é\n{"s": "\ud800"}')
    assert (refused.value.offset, refused.value.line, refused.value.column) == (10, 2, 8)
    with pytest.raises(InvalidField, match="payload"):
        lite.enqueue_raw("t", {"a": 1})


# -- async, and transactions -------------------------------------------------------------------------------------------


def test_async_forms(app):
    @app.job("t")
    async def handler(n: int) -> int:
        return n * 2

    async def story() -> None:
        one = await handler.aenqueue(1)
        two = await app.aenqueue("t", {"n": 2})
        three = await app.aenqueue_raw("t", b'{"n":3}')
        rest = await app.aenqueue_many([handler.job(4), ("t", {"n": 5})])
        assert await one.astatus() is Spot.PENDING
        async with app.worker():
            for number, handle in enumerate([one, two, three, *rest], 1):
                assert await handle.await_end(20) is Spot.ARCHIVE
                assert await handle.aresult() == number * 2

    asyncio.run(story())


def test_in_the_transaction_of_the_caller(sqlite_url):
    app = Redrive(sqlite_url)

    @app.job("t")
    def handler(n: int) -> None: ...

    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    for end, number in (("ROLLBACK", 0), ("COMMIT", 5)):
        connection.execute("BEGIN IMMEDIATE")
        app.enqueue("t", {"n": 1}, connection=connection)
        app.enqueue_raw("t", b"{}", connection=connection)
        handler.using(connection=connection).enqueue(2)
        app.enqueue_many([handler.job(3)], connection=connection)
        asyncio.run(app.aenqueue("t", {"n": 4}, connection=connection))
        connection.execute(end)
        assert waiting(app) == number
    connection.close()
    app.close()


@pytest.mark.postgres
def test_in_the_transaction_of_the_caller_on_postgres(postgres_url):
    import psycopg

    app = Redrive(postgres_url)
    for rollback, number in ((True, 0), (False, 2)):
        with psycopg.connect(postgres_url) as connection:
            app.enqueue("t", {"n": 1}, connection=connection)
            app.enqueue_many([("t", {"n": 3})], connection=connection)
            assert waiting(app) == 0
            if rollback:
                connection.rollback()
        assert waiting(app) == number
    app.close()
