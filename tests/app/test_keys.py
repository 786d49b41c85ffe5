"""``key=`` of a handler: the idempotency key made from the arguments of an enqueue."""

from dataclasses import dataclass
from typing import Any

import pytest

from redrive import InvalidField, JobContext, Redrive
from redrive.domain.edits import UNSET


def key_of(app: Redrive, job: Any) -> str | None:
    return app.desk("t").get(job.id).head.idempotency_key


def test_the_second_enqueue_with_the_same_arguments_is_the_first(app):
    @app.job("order.v1", key=lambda order_id: f"order-{order_id}")
    def order(ctx: JobContext, order_id: int, urgent: bool = False) -> None: ...

    first, again = order.enqueue(7), order.enqueue(order_id=7, urgent=True)
    other = order.using(priority=3).enqueue(8)
    assert (again.id, again.duplicate, other.duplicate) == (first.id, True, False)
    assert [key_of(app, job) for job in (first, other)] == ["order-7", "order-8"]
    many = app.enqueue_many([order.job(9), order.job(7), order.job(9)])
    assert [job.duplicate for job in many] == [False, True, True]
    app.desk("t").cancel(first.id)
    assert not order.enqueue(7).duplicate, "a dead job holds no key"


def test_a_key_given_beats_the_made_one_and_none_is_no_key(lite):
    @lite.job("order.v1", key=lambda order_id: None if order_id < 0 else f"order-{order_id}")
    def order(order_id: int) -> None: ...

    jobs = [
        order.using(idempotency_key="mine").enqueue(1),
        order.using(idempotency_key=None).enqueue(1),
        order.using(idempotency_key=None).using(priority=1).enqueue(1),
        order.enqueue(-1),
        order.enqueue(1),
    ]
    assert [key_of(lite, job) for job in jobs] == ["mine", None, None, None, "order-1"]
    # By type there is no handler's code, so there is no key.
    assert key_of(lite, lite.enqueue("order.v1", {"order_id": 1})) is None


@dataclass
class Order:
    number: int


def test_what_a_key_may_take(lite):
    @lite.job("whole", key=lambda order: str(order.number))
    def whole(order: Order) -> None: ...

    @lite.job("defaults", key=lambda n, region: f"{region}-{n}")
    def defaults(n: int, region: str = "eu") -> None: ...

    @lite.job("all", key=lambda **given: "-".join(sorted(given)))
    def everything(n: int, region: str = "eu") -> None: ...

    @lite.job("extra", key=lambda customer, n: f"{customer}-{n}")
    def extra(n: int, **rest: str) -> None: ...

    jobs = [whole.enqueue(Order(3)), defaults.enqueue(1), everything.enqueue(1), extra.enqueue(1, customer="c")]
    assert [key_of(lite, job) for job in jobs] == ["3", "eu-1", "n-region", "c-1"]


@pytest.mark.parametrize(
    "key",
    ["order", lambda other: "", lambda *args: "", lambda ctx: "", min],
    ids=["text", "unknown", "args", "ctx", "builtin"],
)
def test_a_key_that_cannot_be_called_so_is_refused_where_it_is_declared(lite, key: Any):
    with pytest.raises(InvalidField) as refused:

        @lite.job("order.v1", key=key)
        def order(ctx: JobContext, order_id: int) -> None: ...

    assert refused.value.field == "key"


@pytest.mark.parametrize("made", [7, "", "a\nb", "x" * 401], ids=["number", "empty", "lines", "long"])
def test_a_key_that_is_no_key_is_refused_and_nothing_is_stored(lite, made: Any):
    @lite.job("order.v1", key=lambda order_id: made)
    def order(order_id: int) -> None: ...

    with pytest.raises(InvalidField, match="key"):
        order.enqueue(1)
    assert lite.store.queues() == []


def test_an_operator_changes_a_key_and_both_are_on_record(app):
    @app.job("order.v1", key=lambda order_id: f"order-{order_id}")
    def order(order_id: int) -> None: ...

    desk, job = app.desk("ann"), order.enqueue(7)
    desk.edit(job.id, payload={"order_id": 8})
    assert key_of(app, job) == "order-7", "an edit of the payload makes no new key"
    desk.edit(job.id, idempotency_key="order-8")
    said = [entry.details.get("idempotency_key", UNSET) for entry in app.store.audit_entries()]
    assert said == [{"before": "order-7", "after": "order-8"}, UNSET]
    assert [revision.idempotency_key for revision in desk.get(job.id).revisions] == ["order-7", "order-7"]
