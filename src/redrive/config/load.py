"""Three sources become one set of settings."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from redrive.domain.errors import ConfigError
from redrive.domain.lifecycle import shortest_lease

from .tables import Settings, allowed, flat, keys_of

PREFIX = "REDRIVE_"
FILE_VARIABLE = "REDRIVE_CONFIG"
URL_VARIABLE = "REDRIVE_DATABASE_URL"
DEBUG_VARIABLE = "REDRIVE_DEBUG"
SUPERVISOR_VARIABLE = "REDRIVE_SUPERVISOR_FD"
"""Set by a supervisor for its workers, by nobody else: the number of one end of a socket pair."""
OTHERS = (FILE_VARIABLE, DEBUG_VARIABLE, SUPERVISOR_VARIABLE)
RESERVED = "REDRIVE_TEST_"
FILE_NAME = "redrive.toml"


def load(
    url: str | None = None, settings: Mapping[str, Any] | None = None, *, file: str | os.PathLike[str] | None = None
) -> Settings:
    """The settings in force. ``file`` (or REDRIVE_CONFIG) must exist; redrive.toml in the current folder may."""
    arguments = dict(settings or {})
    if url is not None:
        arguments["database"] = {**_table(arguments.get("database", {}), "database"), "url": url}
    from_file, path = _file(file)
    from_environment, variables = _environment()
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, values in ((f"file {path}", from_file), ("environment", from_environment), ("argument", arguments)):
        for table, keys in values.items():
            whole = isinstance(keys, Mapping)
            merged[table] = {**_table(merged.get(table, {}), table), **keys} if whole else keys
        origins |= {
            name: f"environment {variables[name]}" if values is from_environment else source for name, _ in flat(values)
        }
    made = _made(merged, origins)
    _check_recovery(made, origins)
    return made


def check(settings: Mapping[str, Any]) -> None:
    """Refuse arguments that no file and no environment could make right."""
    _made(settings, {})


def _made(tables: Mapping[str, Any], origins: dict[str, str]) -> Settings:
    try:
        made = Settings(**tables)
    except ValidationError as error:
        raise ConfigError(_explain(error, origins)) from None
    made._origins.update(origins)
    return made


def _environment() -> tuple[dict[str, Any], dict[str, str]]:
    """``REDRIVE_<TABLE>__<KEY>`` as tables. A REDRIVE_ name that is no setting stays in, so that it is refused."""
    tables: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for name, table, key in _names():
        variables[f"{table}.{key}" if key else table] = name
        if key is None:
            tables[table] = os.environ[name]
        else:
            inner = tables.setdefault(table, {})
            if isinstance(inner, dict):
                inner[key] = os.environ[name]
    return tables, variables


def _names() -> Iterator[tuple[str, str, str | None]]:
    for name in sorted(os.environ):
        if name == URL_VARIABLE:
            yield name, "database", "url"
        elif name.startswith(PREFIX) and not name.startswith(RESERVED) and name not in OTHERS:
            table, _, key = name.removeprefix(PREFIX).lower().partition("__")
            yield name, table, key or None


def _file(given: str | os.PathLike[str] | None) -> tuple[dict[str, Any], Path | None]:
    named = given or os.environ.get(FILE_VARIABLE)
    path = Path(named or FILE_NAME)
    if not named and not path.is_file():
        return {}, None
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), path
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(
            f"settings file {path} (from {'argument' if given else FILE_VARIABLE}) cannot be read: {error.strerror}"
        ) from None


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is a table of settings, not a single value; {_known([name, ''])}")
    return dict(value)


def _check_recovery(settings: Settings, origins: Mapping[str, str]) -> None:
    beat, beat_origin = settings.worker.heartbeat, origins.get("worker.heartbeat", "default")
    for key in ("zombie_timeout", "fetched_timeout"):
        value = getattr(settings.recovery, key)
        if value < shortest_lease(beat):
            origin = origins.get(f"recovery.{key}", "default")
            raise ConfigError(
                f"recovery.{key} = {value:g} ({origin}) is out of range: allowed is {shortest_lease(beat):g} or more, "
                f"three times worker.heartbeat = {beat:g} ({beat_origin})"
            )


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        parts = [str(part) for part in problem["loc"]][:2]
        name = ".".join(parts)
        origin = origins.get(name) or next((o for n, o in origins.items() if n.startswith(f"{name}.")), "argument")
        if problem["type"] == "extra_forbidden":
            lines.append(f"{name} ({origin}) is no setting; {_known(parts)}")
        elif len(parts) == 1:
            lines.append(f"{name} ({origin}) is a table of settings, not a single value; {_known([*parts, ''])}")
        else:
            lines.append(f"{name} ({origin}) is not accepted: allowed is {allowed(name)}")
    return "\n".join(dict.fromkeys(lines))


def _known(parts: list[str]) -> str:
    if len(parts) > 1 and parts[0] in Settings.model_fields:
        return f"{parts[0]} has {', '.join(keys_of(parts[0]))}"
    return f"the tables are {', '.join(Settings.model_fields)}"
