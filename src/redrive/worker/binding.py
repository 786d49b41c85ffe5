"""Between a payload and the parameters of a handler, in both directions, by pydantic.

**Strict, as JSON allows.** Parameters are checked in pydantic's strict mode for JSON: ``"3"`` is no ``int``, ``3`` no
``str``, but text stands for what JSON has no word for (datetime, date, UUID, Decimal, Enum; bytes as base64). A payload
that was repaired wrongly fails by name and is not guessed at; ``Annotated[int, Field(strict=False)]`` is the way out
for one parameter. Dataclasses, named tuples and TypedDicts follow the same rule; a pydantic model keeps its own
configuration, inside as well, because that is the application's word.

**Names.** Parameters are the keys of the payload's object. Unknown keys are refused unless the handler takes
``**kwargs``. A single parameter without default that is a model or a dataclass takes the whole object; a model that
says ``extra=`` itself decides about unknown keys.

``dump`` serialises through the same annotations and reads back: what would not be the same in the handler is refused.
"""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, RootModel, TypeAdapter, ValidationError
from pydantic_core import SchemaSerializer, from_json
from typing_extensions import TypedDict

from redrive.domain import payload as json_payload
from redrive.domain.errors import InvalidField, PayloadError
from redrive.domain.job import JSON
from redrive.domain.text import one_line

from . import refusals, signature
from .sameness import same

_CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, ser_json_bytes="base64", val_json_bytes="base64")


class Binding:
    """How one handler's payload is read and written. The schema is built once, here."""

    __slots__ = ("_adapter", "_back", "_keys", "_known", "_out", "_signature", "_whole", "context")

    def __init__(self, function: signature.Function) -> None:
        self._signature = read = signature.read(function)
        self.context = read.context
        self._known = frozenset(read.annotations)
        self._whole = read.whole
        self._keys: frozenset[str] | None = None
        try:
            if read.whole is None:
                self._adapter: TypeAdapter[Any] = TypeAdapter(_record(function.__name__, read))
            else:
                # In a tuple of one: the only place where a configuration of ours reaches a class of the application.
                self._keys = _keys(read.annotations[read.whole])
                self._adapter = TypeAdapter(_alone(read.annotations[read.whole]), config=_CONFIG)
            self._out = SchemaSerializer(self._adapter.core_schema, {"ser_json_bytes": "base64"}).to_json
        except Exception as error:
            name = next((n for n, hint in read.annotations.items() if not _has_schema(hint)), function.__name__)
            raise InvalidField(
                name, f"pydantic cannot handle its type: {one_line(error)}", expected="a type that pydantic knows"
            ) from error
        self._back = self._adapter.validator.validate_json

    # -- reading -------------------------------------------------------------------------------------------------------

    def bind(self, payload: bytes, content_type: str = JSON) -> dict[str, Any]:
        """The handler's arguments by name, or ``PayloadError`` with the field, or line and column."""
        if content_type != JSON and not json_payload.is_json(content_type):
            raise PayloadError(f"its content type is {content_type!r}", expected="JSON, to be bound to parameters")
        if b"NaN" in payload or b"Infinity" in payload:
            json_payload.parse(payload)  # the validator would let the words pass; in a string they are harmless
        try:
            if self._whole is None:
                bound: dict[str, Any] = self._back(payload)
            else:
                self._refuse_unknown(payload)
                bound = {self._whole: self._back(b"[" + payload + b"]")[0]}
        except ValidationError as error:
            raise refusals.unreadable(payload, error, self._keys or self._known, 1 if self._whole else 0) from None
        except PayloadError:
            raise
        except Exception as error:  # from a validator of the application
            raise PayloadError(f"a validator failed: {type(error).__name__}: {one_line(error)}") from error
        if self.context is not None and self.context in bound:
            raise PayloadError("the handler's JobContext has this name", field=refusals.path((self.context,)))
        return bound

    def _refuse_unknown(self, payload: bytes) -> None:
        if self._keys is None:
            return
        try:
            content = from_json(payload)
        except ValueError:
            return  # the validator says it better
        if isinstance(content, dict):
            for key in content:
                if key not in self._keys:
                    raise refusals.unknown_key(key, self._keys)

    # -- writing -------------------------------------------------------------------------------------------------------

    def dump(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Arguments as a payload, or ``InvalidField`` naming the parameter that would not come back the same."""
        given = self._named(args, kwargs) if args else kwargs
        known = given.keys() <= self._known or self._signature.takes_extra
        if not (known and given.keys() >= self._signature.required):
            raise self._misnamed(given)
        try:
            data = self._out(
                tuple(given.values()) if self._whole else given, by_alias=True, warnings=False, round_trip=True
            )
            back = {self._whole: self._back(data)[0]} if self._whole else self._back(data)
        except Exception as error:
            raise self._culprit(given, error) from error
        for name, value in given.items():
            if not same(value, back[name]):
                said = f"{one_line(repr(value), 80)} would come back as {one_line(repr(back[name]), 80)}"
                raise self._unequal(name, value, said)
        return data[1:-1] if self._whole else data

    def _write(self, value: object) -> bytes:
        return self._out(value, by_alias=True, warnings=False, round_trip=True)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        order = tuple(self._signature.annotations)
        if len(args) > len(order):
            expected = f"at most {len(order)}: {', '.join(order)}"
            raise InvalidField("arguments", f"{len(args)} given by position", expected=expected)
        given = dict(zip(order, args, strict=False))
        for name in kwargs:
            if name in given:
                raise InvalidField(name, "given by position and by name", expected="it once")
        return {**given, **kwargs}

    def _misnamed(self, given: dict[str, Any]) -> InvalidField:
        for name in given:
            if name not in self._known and not self._signature.takes_extra:
                return InvalidField(name, "unknown name", expected=f"one of {', '.join(self._signature.annotations)}")
        missing = next(n for n in self._signature.annotations if n in self._signature.required and n not in given)
        return InvalidField(missing, "is missing", expected="a value for each parameter without default")

    def _culprit(self, given: dict[str, Any], error: Exception) -> InvalidField:
        """The parameter that cannot be written, or would not be read."""
        if isinstance(error, ValidationError):
            problem = error.errors(include_url=False, include_context=False)[0]
            name = self._whole or str(next(iter(problem["loc"]), ""))
            return self._unequal(name, given.get(name), problem["msg"])
        for name, value in given.items():
            try:
                self._write((value,) if self._whole else {name: value})
            except Exception as found:
                return self._unequal(name, value, f"cannot be written as JSON: {one_line(found)}")
        return InvalidField("arguments", f"cannot be written as JSON: {one_line(error)}", expected="JSON values")

    def _unequal(self, name: str, value: Any, said: str) -> InvalidField:
        return refusals.unequal(name, value, self._signature.annotations.get(name, self._signature.extra), said)

    # -- announcing ----------------------------------------------------------------------------------------------------

    def schema(self) -> dict[str, Any]:
        """The payload's JSON Schema; an open one where pydantic has none for a type."""
        try:
            if self._whole is None:
                return self._adapter.json_schema()
            return TypeAdapter(self._signature.annotations[self._whole]).json_schema()
        except Exception:  # the schema is for consoles; a type without one binds all the same
            return {"type": "object"}


def _alone(kind: Any) -> Any:
    return tuple[kind]


def _record(name: str, read: signature.Signature) -> Any:
    fields = {n: hint if n in read.required else NotRequired[hint] for n, hint in read.annotations.items()}
    make: Any = TypedDict
    record = make(name, fields, extra_items=read.extra) if read.takes_extra else make(name, fields)
    record.__pydantic_config__ = ConfigDict(**{**_CONFIG, "extra": "allow"}) if read.takes_extra else _CONFIG
    return record


def _keys(kind: Any) -> frozenset[str] | None:
    """The keys a model reads, where it says nothing about unknown ones; None where pydantic decides by itself."""
    if not issubclass(kind, BaseModel) or issubclass(kind, RootModel) or "extra" in kind.model_config:
        return None
    if any(v.info.mode != "after" for v in kind.__pydantic_decorators__.model_validators.values()):
        return None  # its input is not simply its fields
    by_name = kind.model_config.get("validate_by_name") or kind.model_config.get("populate_by_name")
    keys: set[str] = set()
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [name if alias is None else alias]
        keys.update(str(choice.path[0]) if isinstance(choice, AliasPath) else choice for choice in choices)
        if by_name:
            keys.add(name)
    return frozenset(keys)


def _has_schema(hint: Any) -> bool:
    try:
        TypeAdapter(hint)
    except Exception:
        return False
    return True
