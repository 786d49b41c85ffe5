"""Which parameters are payload. Annotations are text in this module, as they are in most applications."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from redrive.domain.errors import InvalidField
from redrive.worker.context import JobContext
from redrive.worker.signature import read

if TYPE_CHECKING:
    from redrive.worker.context import JobContext as OnlyForCheckers


@dataclass
class Row:
    x: int


def test_annotations_as_text_are_evaluated():
    def handle(ctx: JobContext, rows: list[Row], note: str | None = None, **more: int) -> NoSuchName: ...  # type: ignore[name-defined]  # noqa: F821

    found = read(handle)
    assert found.context == "ctx"
    assert found.annotations == {"rows": list[Row], "note": str | None}
    assert found.required == {"rows"}
    assert (found.takes_extra, found.extra) == (True, int)
    assert found.whole is None


def test_the_context_is_known_by_name_where_it_exists_only_for_type_checkers():
    def quoted(ctx: typing.JobContext, x: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def plain(context: OnlyForCheckers) -> None: ...

    OnlyForCheckers = JobContext  # noqa: F841, N806 - in scope, as it is not at run time

    assert read(quoted).context == "ctx"
    assert read(quoted).annotations == {"x": int}
    assert read(plain).context == "context"


def test_a_subclass_of_the_context_is_the_context_too():
    class Mine(JobContext): ...

    def handle(ctx: Mine) -> None: ...

    assert read(handle).context == "ctx"


def test_types_that_live_in_a_function_are_found():
    @dataclass
    class Local:
        y: int

    def handle(it: Local) -> None: ...

    assert read(handle).annotations == {"it": Local}
    assert read(handle).whole == "it"


def test_without_annotation_anything_goes():
    def handle(a, b=1): ...

    assert read(handle).annotations == {"a": Any, "b": Any}


def test_methods_and_wrapped_functions_are_read_like_what_they_call():
    class Mailer:
        def send(self, ctx: JobContext, row: Row) -> None: ...

    @functools.wraps(Mailer().send)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    for function in (Mailer().send, wrapped):
        assert read(function).context == "ctx"
        assert read(function).whole == "row"


def refused(function) -> InvalidField:
    with pytest.raises(InvalidField) as error:
        read(function)
    return error.value


def test_what_no_payload_could_fill_is_refused_by_name():
    def positional(a: int, /) -> None: ...
    def many(*names: str) -> None: ...
    def late(a: int, ctx: JobContext) -> None: ...
    def unknown(a: NoSuchType) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert refused(positional).field == "a: 'int'"
    assert "names" in refused(many).field
    assert refused(late).field == "ctx"
    assert refused(unknown).field == "a"
    assert "NoSuchType" in str(refused(unknown))


def test_the_context_may_be_positional_only():
    def handle(ctx: JobContext, /, a: int) -> None: ...

    assert read(handle).context == "ctx"
