"""Declaring handlers: what is wrong is said where it is written, naming what was expected."""

import functools
from datetime import timedelta

import pytest

from redrive.domain.errors import InvalidField
from redrive.domain.policy import RetryPolicy
from redrive.worker.registry import Registry

from .make import shown


async def send(to: str) -> None: ...


def render(name: str) -> str:
    return name


def test_a_handler_is_found_by_type_and_alias():
    registry = Registry(RetryPolicy(max_attempts=7), 12.0)
    handler = registry.register(send, "email.send.v1", queue="mail", aliases=["email.v1", "email"])
    other = registry.register(
        render, "report.v1", retry=RetryPolicy(max_attempts=1), timeout=timedelta(minutes=1), idempotent=True,
        on_zombie="retry",
    )  # fmt: skip
    assert registry.get("email.send.v1") is registry.get("email.v1") is registry.get("email") is handler
    assert registry.get("nothing") is None
    assert registry.types == ("email.send.v1", "email.v1", "email", "report.v1")
    assert registry.queues == ("mail", "default")
    assert [handler, other] == list(registry)
    assert (handler.kind, other.kind) == ("async", "thread")
    assert (handler.rules.retry.max_attempts, other.rules.retry.max_attempts) == (7, 1)
    assert (handler.timeout, other.timeout) == (12.0, 60.0)
    assert registry.rules("email") is handler.rules
    assert registry.rules("nothing") is None


def test_announcements_cover_aliases_and_can_be_json():
    import json

    registry = Registry()
    registry.register(send, "email.v2", aliases=["email.v1"], retry=RetryPolicy(base=timedelta(seconds=5)), owner="ann")
    first, second = registry.announcements()
    assert (first.type, second.type) == ("email.v2", "email.v1")
    assert first.retry["base"] == 5.0
    assert first.owner == "ann"
    assert json.loads(json.dumps(dict(first.schema)))["properties"] == {"to": {"title": "To", "type": "string"}}
    assert json.dumps(dict(second.retry))


def yields(to: str):
    yield to


class CallMe:
    def __call__(self, to: str) -> None: ...


class Method:
    async def send(self, to: str) -> None: ...

    @staticmethod
    def render(name: str) -> None: ...


def test_methods_are_handlers():
    assert Registry().register(Method().send, "a").kind == "async"
    assert Registry().register(Method.render, "a").kind == "thread"


class NoSchema: ...


def unannotatable(callback: NoSchema) -> None: ...


WRONG = [
    ({"function": lambda: None}, "handler", "def or async def"),
    ({"function": CallMe()}, "handler", "def or async def"),
    ({"function": functools.partial(send, "x")}, "handler", "def or async def"),
    ({"function": "send"}, "handler", "def or async def"),
    ({"function": CallMe}, "handler", "def or async def"),
    ({"function": yields}, "handler", "returns"),
    ({"function": unannotatable}, "callback", "pydantic"),
    ({"type": ""}, "type", "letters"),
    ({"type": "has space"}, "type", "letters"),
    ({"type": 5}, "type", "letters"),
    ({"type": "email\n"}, "type", "letters"),
    ({"queue": "-x"}, "queue", "letters"),
    ({"aliases": "email"}, "aliases", "list"),
    ({"aliases": ["a b"]}, "aliases", "letters"),
    ({"aliases": ["old", "old"]}, "aliases", "once"),
    ({"aliases": ["new.v1"]}, "aliases", "once"),
    ({"type": "taken.v1"}, "type", "of its own"),
    ({"type": "taken.v0"}, "type", "of its own"),
    ({"aliases": ["taken.v1"]}, "aliases", "of its own"),
    ({"isolation": "fiber"}, "isolation", "expected nothing"),
    ({"isolation": "process"}, "isolation", "event loop"),
    ({"isolation": "thread"}, "isolation", "event loop"),
    ({"retry": 3}, "retry", "RetryPolicy"),
    ({"timeout": 0}, "timeout", "more than 0"),
    ({"timeout": float("inf")}, "timeout", "more than 0"),
    ({"timeout": "30"}, "timeout", "more than 0"),
    ({"idempotent": "yes"}, "idempotent", "True or False"),
    ({"on_zombie": "ignore", "idempotent": True}, "on_zombie", "bury"),
    ({"on_zombie": "retry"}, "on_zombie", "idempotent=True"),
    ({"fatal": ValueError}, "fatal", "tuple"),
    ({"transient": ("OSError",)}, "transient", "tuple"),
    ({"classify": "transient"}, "classify", "function"),
    ({"backoff": 5}, "backoff", "function"),
]


@pytest.mark.parametrize(("declared", "field", "said"), WRONG, ids=shown)
def test_a_wrong_declaration_is_refused_by_name_and_leaves_nothing_behind(declared, field, said):
    registry = Registry()
    registry.register(render, "taken.v1", aliases=["taken.v0"])
    given = {"function": send, "type": "new.v1"} | declared
    with pytest.raises(InvalidField) as refused:
        registry.register(**given)
    assert refused.value.field == field
    assert said in str(refused.value)
    assert registry.types == ("taken.v1", "taken.v0")


def test_a_backoff_may_answer_a_timedelta():
    handler = Registry().register(send, "a", backoff=lambda charged: timedelta(minutes=charged))
    assert handler.backoff is not None
    assert handler.backoff(2) == 120.0
