"""What differs between the databases, as one protocol. Nothing outside ``store/sql`` asks which database it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Select, Table

from redrive.domain.errors import Retryable
from redrive.domain.job import ClaimedJob, Enqueued, NewJob
from redrive.domain.moves import Succeed
from redrive.store.port import ClaimRequest, Guarded, Listener, Pair, Promoted, Pulse

T = TypeVar("T")


class Again(Retryable):
    """The transaction met another one (deadlock, serialization): it did nothing and is run again."""


class Clash(Again):
    """A unique key is taken: by another transaction, which the next run will see, or for good."""


class HotStatements(Protocol):
    """The statements that decide the speed, on the driver's own cursor. See the port for what they promise."""

    def enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]: ...
    def enqueue_in(self, connection: object, jobs: Sequence[NewJob]) -> list[Enqueued]: ...
    def claim(self, request: ClaimRequest) -> list[ClaimedJob]: ...
    def claim_in(self, connection: object, request: ClaimRequest) -> list[ClaimedJob]: ...
    def held_back(self, request: ClaimRequest) -> float | None: ...
    def start(self, queues: Sequence[str], pairs: Sequence[Pair], guarded: Guarded) -> frozenset[Pair]: ...
    def succeed(self, moves: Sequence[Succeed], *, slot: int) -> frozenset[Pair]: ...
    def heartbeat(self, pairs: Sequence[Pair], progress: Mapping[Pair, str]) -> Pulse: ...
    def promote(self, limit: int) -> Promoted: ...


class Dialect(Protocol):
    """One database behind the store."""

    name: str
    engine: Engine

    @property
    def hot(self) -> HotStatements:
        """The statements that decide the speed."""
        ...

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` over one snapshot."""
        ...

    def look(self, work: Callable[[Connection], T]) -> T:
        """``read`` for a worker's chore: with plans that cannot flip."""
        ...

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one write transaction; a deadlock or serialization failure runs it again from the start."""
        ...

    def enqueue_in(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Accept jobs through a connection of the driver that belongs to the caller."""
        ...

    async def aenqueue_in(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """``enqueue_in`` through a connection that is awaited."""
        ...

    def insert(self, table: Table) -> Any:
        """An INSERT that knows ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
        ...

    def locking(self, statement: Select[Any], *, of: Table, skip: bool = False, share: bool = False) -> Select[Any]:
        """``statement`` with its rows of ``of`` locked, in the order it names; ``skip`` leaves out locked ones.

        ``share``: others may hold them as well, and nobody may change them.
        """
        ...

    def now(self) -> ColumnElement[Any]:
        """The database's clock; the host's on SQLite, where the host is the database."""
        ...

    def after(self, seconds: ColumnElement[Any] | float) -> ColumnElement[Any]:
        """The moment ``seconds`` from now (negative: ago)."""
        ...

    def this_second(self) -> ColumnElement[Any]:
        """The database's clock, cut to the second: the key of a metric bucket."""
        ...

    def age(self, moment: ColumnElement[Any]) -> ColumnElement[float]:
        """Seconds since ``moment``."""
        ...

    def sha256(self, content: ColumnElement[bytes]) -> ColumnElement[str]:
        """SHA-256 of bytes, as 64 hex digits."""
        ...

    def numbering(self, column: ColumnElement[int]) -> ColumnElement[int]:
        """An expression that gives the next number for people (incidents, plans, operations)."""
        ...

    def alone(self, connection: Connection, name: str) -> bool:
        """Whether no other transaction does what ``name`` says: asked at once, never waited for, until the end."""
        ...

    def notify(self, connection: Connection, names: Sequence[str]) -> None:
        """Tell those who listen to these names, when the transaction commits; where nobody can be told, nothing."""
        ...

    def wake(self, connection: Connection, queues: Collection[str]) -> None:
        """Wake workers that wait, when this transaction has committed."""
        ...

    def listen(self, queues: Sequence[str]) -> Listener:
        """Subscribe to new work."""
        ...

    def upgrade(self) -> None:
        """Bring the schema to the newest version."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Facts for ``doctor``."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...
