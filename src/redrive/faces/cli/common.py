"""What every command has: --database, --config, --actor, a session on the database, errors in words."""

from __future__ import annotations

import getpass
import inspect
import os
import sys
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, NoReturn

import typer

from redrive.app import Redrive
from redrive.config import Settings
from redrive.domain.audit import Actor, Channel
from redrive.domain.errors import ConfigError, NotMigrated, PayloadError, RedriveError, Unavailable
from redrive.ops.insight import Insight
from redrive.ops.service import Desk
from redrive.store.port import Store

from .output import remark

DONE, REFUSED, USAGE = 0, 1, 2

Database = Annotated[
    str | None, typer.Option("--database", metavar="URL", help="Database, such as sqlite:///redrive.db.")
]
Config = Annotated[str | None, typer.Option("--config", metavar="FILE", help="Settings file; else redrive.toml here.")]
ActorName = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who acts, for the audit; else the user of this shell.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
Note = Annotated[str | None, typer.Option("--note", help="Why, for the audit.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Rows of a page.")]
Cursor = Annotated[str | None, typer.Option("--cursor", help="Where the page before ended.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
Type = Annotated[str | None, typer.Option("--type", help="Only this type.")]


class Session:
    """One run of a command: an application without handlers, and who acts through it."""

    def __init__(self, database: str | None, config: str | None, actor: str | None, *, creates: bool = False) -> None:
        self.database = database
        self.config = config
        self.app = Redrive(database, config=config)
        self.app.creates = creates
        self._actor = actor

    @property
    def settings(self) -> Settings:
        """The settings in force for this command."""
        return self.app.settings

    @property
    def store(self) -> Store:
        """The database of the settings."""
        return self.app.store

    @cached_property
    def actor(self) -> Actor:
        """Who acts. The command line is a trusted channel, and the audit says that it was this one."""
        return Actor(self._actor or _user(), Channel.CLI)

    @property
    def desk(self) -> Desk:
        """The operator service."""
        return self.app.desk(self.actor)

    @property
    def insight(self) -> Insight:
        """What is read."""
        return self.app.insight()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return f"uid-{os.getuid()}"


def command(
    app: typer.Typer, name: str, *, creates: bool = False, **options: Any
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Make ``function(session, ...)`` a command with the common options; its answer is the exit code, None for 0.

    ``creates``: a SQLite file that is not there is made, rather than refused.
    """

    def decorate(function: Callable[..., int | None]) -> Callable[..., None]:
        def run(database: str | None, config: str | None, actor: str | None, **given: Any) -> None:
            session = Session(database, config, actor, creates=creates)
            try:
                code = function(session, **given)
                sys.stdout.flush()
            except RedriveError as error:
                fail(error)
            finally:
                session.app.close()
            if code:
                raise typer.Exit(code)

        hints = typing.get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
        for common, hint in (("database", Database), ("config", Config), ("actor", ActorName)):
            parameters.append(inspect.Parameter(common, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint))
        run.__signature__ = inspect.Signature(_keywords(parameters))  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command(name, **options)(run)
        return run

    return decorate


def _keywords(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]


def group(parent: typer.Typer, name: str, text: str) -> typer.Typer:
    """A group of commands."""
    made = typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)
    parent.add_typer(made, name=name)
    return made


def fail(error: RedriveError) -> NoReturn:
    """Say what was refused and what to do next, and end the command."""
    remark(f"redrive: {error}")
    if hint := _next_step(error):
        remark(hint)
    raise typer.Exit(USAGE if isinstance(error, ConfigError) else REFUSED)


def _next_step(error: RedriveError) -> str:
    if isinstance(error, NotMigrated) and "db upgrade" not in str(error):
        return "next: redrive db upgrade"
    if isinstance(error, Unavailable):
        return "next: see that the database runs and that the URL is right: redrive doctor"
    if isinstance(error, ConfigError):
        return "next: redrive doctor shows each setting and where it comes from" if "\n" not in str(error) else ""
    if isinstance(error, PayloadError) and error.code == "payload-too-large":
        return "next: raise limits.payload, or store the data elsewhere and enqueue a reference to it"
    return ""


def usage(text: str) -> NoReturn:
    """The command was called wrongly."""
    raise typer.BadParameter(text)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only when a person says so; without a terminal only with --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        usage("this asks for confirmation: add --yes where nobody can answer")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        remark("nothing was done")
        raise typer.Exit(REFUSED)
