"""The handlers of an application by type: what a worker may run and what it announces about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from redrive.domain.errors import InvalidField
from redrive.domain.lifecycle import TypeRules
from redrive.domain.policy import RetryPolicy
from redrive.store.port import TypeInfo

from .handler import RESULT_LIMIT, Defaults, Handler, announcement, declare
from .middleware import Around

__all__ = ["Handler", "Registry"]


@dataclass(slots=True)
class Registry:
    """Handlers by type and alias. ``retry`` and ``timeout`` are for handlers that state none; results in bytes."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: float | None = None
    result_limit: int = RESULT_LIMIT
    around: list[Around] = field(default_factory=list)
    _handlers: dict[str, Handler] = field(default_factory=dict)
    _names: dict[str, Handler] = field(default_factory=dict)

    def register(self, function: Callable[..., Any], type: str, **declared: Any) -> Handler:
        """Add a handler with what ``handler.declare`` takes; ``InvalidField`` names what was expected instead."""
        handler = declare(
            Defaults(self.retry, self.timeout, self.result_limit, self.around), function, type, **declared
        )
        for name in (handler.type, *handler.aliases):
            if name in self._names:
                other = self._names[name].function
                taken = f"{name} is taken by {other.__module__}.{other.__qualname__}"
                raise InvalidField("type" if name == type else "aliases", taken, expected="a name of its own")
        self._check_breaker(handler)
        self._handlers[handler.type] = handler
        self._names.update(dict.fromkeys((handler.type, *handler.aliases), handler))
        return handler

    def _check_breaker(self, handler: Handler) -> None:
        if (breaker := handler.breaker) is None:
            return
        for other in self:
            if other.breaker is not None and other.breaker.name == breaker.name and other.breaker != breaker:
                said = f"{breaker.name} is declared otherwise for {other.type}"
                raise InvalidField("breaker", said, expected="one Breaker for all handlers that share its name")

    def get(self, name: str) -> Handler | None:
        """The handler of a type or alias."""
        return self._names.get(name)

    def rules(self, name: str) -> TypeRules | None:
        """What was declared for a type or alias, as far as the lifecycle needs it."""
        handler = self._names.get(name)
        return None if handler is None else handler.rules

    def __iter__(self) -> Iterator[Handler]:
        return iter(self._handlers.values())

    def __len__(self) -> int:
        return len(self._handlers)

    @property
    def types(self) -> tuple[str, ...]:
        """Every type and alias that is served."""
        return tuple(self._names)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of the handlers, in order of registration."""
        return tuple(dict.fromkeys(handler.queue for handler in self))

    def announcements(self) -> tuple[TypeInfo, ...]:
        """What consoles without the application's code need to know, one for each type and alias."""
        return tuple(announcement(handler, name) for name, handler in self._names.items())
