"""Every setting with its default and its range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, PrivateAttr
from pydantic.fields import FieldInfo

from redrive.domain.policy import RetryPolicy

from .values import SecretUrl, parse_seconds, parse_url

YEAR = 31_536_000
Seconds = Annotated[float, BeforeValidator(parse_seconds)]


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


class Table(BaseModel):
    """A table of settings: nothing unknown, nothing infinite, no value repeated in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False)


class Database(Table):
    """Where the jobs are."""

    url: Annotated[
        InstanceOf[SecretUrl] | None,
        BeforeValidator(parse_url),
        Field(description="sqlite:///redrive.db or postgresql://user:password@host/name"),
    ] = None
    schema_name: Annotated[
        str,
        Field(
            alias="schema",
            pattern=r"^[a-z_][a-z0-9_]{0,62}$",
            description="up to 63 lower-case letters, digits and _, not starting with a digit",
        ),
    ] = "redrive"
    pooler: Annotated[
        Literal["auto", "transaction", "session"],
        Field(description="auto (found out), transaction or session"),
    ] = "auto"


class Worker(Table):
    """How a worker process works. Times in seconds."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 100
    threads: Annotated[int, Field(ge=1, le=1_000)] = 20
    isolated: Annotated[int, Field(ge=1, le=1_000)] = 4
    heartbeat: Annotated[Seconds, Field(ge=0.05, le=3600)] = 10.0
    grace: Annotated[Seconds, Field(ge=0, le=86_400)] = 30.0
    poll: Annotated[Seconds, Field(ge=0.01, le=3600)] = 1.0
    unserved_timeout: Annotated[Seconds, Field(ge=0.1, le=YEAR)] = 600.0
    stuck_limit: Annotated[int, Field(ge=1, le=10_000)] = 20
    build: Annotated[str, Field(max_length=200, description="the application's release, up to 200 characters")] = ""
    queues: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_names),
        Field(min_length=1, description="names of queues, in a list or separated by commas"),
    ] = None


class Retry(Table):
    """The policy of handlers that state none. Times in seconds."""

    max_attempts: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    base: Annotated[Seconds, Field(ge=0, le=YEAR)] = 3.0
    factor: Annotated[float, Field(ge=1, le=1_000)] = 2.0
    cap: Annotated[Seconds, Field(ge=0, le=YEAR)] = 3600.0
    jitter: Annotated[Seconds, Field(ge=0, le=YEAR)] = 1.0
    max_age: Annotated[Seconds, Field(ge=0, le=100 * YEAR)] = 86_400.0

    def policy(self) -> RetryPolicy:
        """These settings as the domain's value."""
        return RetryPolicy(**self.model_dump())


class Recovery(Table):
    """When a lease counts as lost. Times in seconds, never below three heartbeats."""

    zombie_timeout: Annotated[Seconds, Field(gt=0, le=YEAR)] = 60.0
    fetched_timeout: Annotated[Seconds, Field(gt=0, le=YEAR)] = 60.0


class Timeouts(Table):
    """How long a handler may run, in seconds, when neither it nor its queue says so; None is without end."""

    handler: Annotated[Seconds | None, Field(gt=0, le=YEAR)] = None


class Limits(Table):
    """Sizes in bytes; ``batch`` in rows."""

    payload: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1_000_000
    result: Annotated[int, Field(ge=0, le=1_000_000_000)] = 65_536
    batch: Annotated[int, Field(ge=1, le=1_000)] = 1_000


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting as it is in force, secrets masked."""

    name: str
    shown: str
    origin: str


class Settings(Table):
    """Every setting. ``load`` makes one; ``Settings()`` alone is the defaults."""

    database: Database = Database()
    worker: Worker = Worker()
    retry: Retry = Retry()
    recovery: Recovery = Recovery()
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def effective(self) -> Iterator[Effective]:
        """Every setting with the value in force and its origin."""
        for name, value in flat(self.model_dump(by_alias=True)):
            shown = "-" if value is None else ", ".join(value) if isinstance(value, tuple) else str(value)
            yield Effective(name, shown, self._origins.get(name, "default"))


def flat(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """``table.key`` with its value; a table that is a single value comes under its own name."""
    for table, keys in tables.items():
        if isinstance(keys, Mapping):
            yield from ((f"{table}.{key}", value) for key, value in keys.items())
        else:
            yield table, keys


def keys_of(table: str) -> dict[str, FieldInfo]:
    """The settings of one table by name."""
    model = Settings.model_fields[table].annotation
    assert isinstance(model, type)
    assert issubclass(model, Table)
    return {field.alias or name: field for name, field in model.model_fields.items()}


def allowed(name: str) -> str:
    """What the setting ``table.key`` may be, in words."""
    table, key = name.split(".")
    field = keys_of(table)[key]
    if field.description:
        return field.description
    bounds = {
        word: getattr(rule, word) for rule in field.metadata for word in ("ge", "gt", "le") if hasattr(rule, word)
    }
    kind = "a whole number" if field.annotation is int else "a number"
    low = f"from {bounds['ge']:g}" if "ge" in bounds else f"above {bounds['gt']:g}"
    return f"{kind} {low} to {bounds['le']}"
