"""Which parameters of a handler make up its payload, with their annotations evaluated."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel

from redrive.domain.errors import InvalidField

from .context import JobContext

Function = Callable[..., Any]
_KINDS = inspect.Parameter


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler's parameters. ``extra`` is the annotation of ``**kwargs``, ``whole`` the name that takes it all."""

    context: str | None
    annotations: dict[str, Any]
    required: frozenset[str]
    takes_extra: bool
    extra: Any
    whole: str | None


def read(function: Function) -> Signature:
    """The signature of a handler, or ``InvalidField`` naming the parameter that no payload could fill."""
    parameters = list(inspect.signature(function).parameters.values())
    hints = _evaluate(function, parameters)
    context = None
    if parameters and _is_context(hints[parameters[0].name]):
        context = parameters.pop(0).name
    extra: Any = Any
    takes_extra = False
    annotations: dict[str, Any] = {}
    for parameter in parameters:
        hint = hints[parameter.name]
        if parameter.kind is _KINDS.VAR_KEYWORD:
            takes_extra, extra = True, hint
        elif parameter.kind in (_KINDS.VAR_POSITIONAL, _KINDS.POSITIONAL_ONLY):
            raise InvalidField(
                str(parameter), "a payload has names only", expected="parameters that can be passed by name"
            )
        elif _is_context(hint):
            raise InvalidField(parameter.name, "JobContext is not the first parameter", expected="it to come first")
        else:
            annotations[parameter.name] = hint
    required = frozenset(p.name for p in parameters if p.name in annotations and p.default is _KINDS.empty)
    whole = None
    if len(annotations) == 1 and required and not takes_extra:
        ((name, hint),) = annotations.items()
        whole = name if _is_record(hint) else None
    return Signature(context, annotations, required, takes_extra, extra, whole)


def _is_context(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, JobContext)


def _is_record(hint: object) -> bool:
    return isinstance(hint, type) and (issubclass(hint, BaseModel) or dataclasses.is_dataclass(hint))


def _evaluate(function: Function, parameters: list[inspect.Parameter]) -> dict[str, Any]:
    """Annotations by parameter, those written as text evaluated where the function was written."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    names = _surroundings(inner)
    hints: dict[str, Any] = {}
    for number, parameter in enumerate(parameters):
        if parameter.annotation is _KINDS.empty:
            hints[parameter.name] = Any
            continue
        try:
            hints[parameter.name] = _one(parameter.annotation, inner.__globals__, names)
        except Exception as error:
            # Under TYPE_CHECKING the name is never there at run time; what it means is clear all the same.
            if number == 0 and str(parameter.annotation).rpartition(".")[2] == JobContext.__name__:
                hints[parameter.name] = JobContext
                continue
            raise InvalidField(
                parameter.name,
                f"its annotation {parameter.annotation!r} cannot be evaluated: {error}",
                expected="a type that exists when the module is imported",
            ) from error
    return hints


def _one(annotation: object, module: dict[str, Any], names: dict[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return get_type_hints(holder, module, names, include_extras=True)["it"]


def _surroundings(function: Function) -> dict[str, Any]:
    """Names of the functions around a function that is being defined right now: for types that live there."""
    names: dict[str, Any] = {}
    if "<locals>" in function.__qualname__:
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_globals is function.__globals__ and frame.f_code.co_name in function.__qualname__.split("."):
                names = {**frame.f_locals, **names}
    return names
