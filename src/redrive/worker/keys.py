"""``key=``, ``lock_key=`` and ``once=`` of a handler: keys of an enqueue and the marker of a run, from arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from redrive.domain.edits import check_key
from redrive.domain.errors import InvalidField
from redrive.domain.once import Mark, Once

UserKey = Callable[..., str | None]
EXPECTED = "a function of the handler's parameters, or of some of them, that answers text or None"


class Key:
    """Calls ``key`` with those arguments that it names, defaults of the handler filled in. ``name`` is for errors."""

    def __init__(
        self, function: Callable[..., Any], context: str | None, key: Callable[..., str | None], name: str = "key"
    ) -> None:
        self._name = name
        signature = inspect.signature(function)
        parameters = [one for one in signature.parameters.values() if one.name != context]
        self._signature = signature.replace(parameters=parameters)
        self._extra = next((one.name for one in parameters if one.kind is one.VAR_KEYWORD), None)
        self._key = key
        self._wanted = self._read(key, frozenset(one.name for one in parameters if one.kind is not one.VAR_KEYWORD))

    def _read(self, key: object, known: frozenset[str]) -> frozenset[str] | None:
        """The names ``key`` wants; None when it takes whatever there is."""
        if not callable(key):
            raise InvalidField(self._name, f"{key!r} cannot be called", expected=EXPECTED)
        try:
            parameters = inspect.signature(key).parameters.values()
        except (TypeError, ValueError):
            raise InvalidField(self._name, f"{key!r} does not say what it takes", expected=EXPECTED) from None
        wanted = set()
        for one in parameters:
            if one.kind is one.VAR_KEYWORD:
                return None
            if one.kind in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY):
                raise InvalidField(self._name, f"takes {one} by position", expected=EXPECTED)
            if one.name in known or self._extra is not None:
                wanted.add(one.name)
            elif one.default is one.empty:
                raise InvalidField(self._name, f"takes {one.name!r}, which the handler does not", expected=EXPECTED)
        return frozenset(wanted)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The key of one enqueue. The arguments were accepted before, so they bind."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        if self._extra is not None:
            given |= given.pop(self._extra)
        chosen = given if self._wanted is None else {name: given[name] for name in given if name in self._wanted}
        made = self._key(**chosen)
        return None if made is None else check_key(made, self._name)


class Marking:
    """Makes the marker of a run from the handler's arguments."""

    def __init__(self, type: str, function: Callable[..., Any], context: str | None, once: Once | UserKey) -> None:
        said = once if isinstance(once, Once) else Once(once)
        self._key = Key(function, context, said.key, "once")
        self._scope = said.scope or type
        self._keep = said.seconds

    def __call__(self, arguments: dict[str, Any]) -> Mark | None:
        """The marker; None where the key is None. Raises what the application's function raises."""
        key = self._key((), arguments)
        return None if key is None else Mark(self._scope, key, self._keep)
