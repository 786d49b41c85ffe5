"""redrive work: run a worker for the application of a module."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from redrive.app import Redrive
from redrive.config import FILE_VARIABLE
from redrive.domain.errors import RedriveError

from .common import Session, command, usage
from .logs import log_to_stderr


def add(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "work")(work)


def work(
    session: Session,
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, such as shop.jobs:app.")],
    burst: Annotated[bool, typer.Option("--burst", help="End when nothing is left that is due.")] = False,
    queues: Annotated[str | None, typer.Option("--queues", help="Only these, separated by commas.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Async handlers at a time.")] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=1000, help="So many workers, kept alive by a supervisor.")
    ] = 1,
) -> int:
    """Run jobs of an application's handlers until SIGINT or SIGTERM: what runs may end, the rest is given back.

    A second signal ends it at once. After SIGUSR1 it finishes what runs and takes nothing more. The current folder is
    importable. The database is the application's, unless --database says otherwise. Exit code 3: too many handlers are
    stuck in their threads, start it anew.

    With --processes each worker is a process of its own; one that dies is replaced, and signals are passed on. When
    workers end again and again before they serve, the supervisor stops the others and exits with their code, never 0.
    """
    if processes > 1:
        from redrive.worker.supervisor import Supervisor  # a tenth of a second that other commands need not wait

        log_to_stderr()
        return Supervisor(_again(session, target, burst, queues, concurrency), processes, burst=burst).run()
    if session.config is not None:
        os.environ[FILE_VARIABLE] = session.config  # the application reads it while it is imported
    app = find_app(target)
    if session.database is not None:
        app.override(url=session.database)
    if not len(app.registry):
        usage(f"{target} has no handler: decorate one with @{target.partition(':')[2]}.job(...), and import its module")
    wanted = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    log_to_stderr()
    return app.worker(queues=wanted, concurrency=concurrency).run(burst=burst, setup=log_to_stderr)


def _again(session: Session, target: str, burst: bool, queues: str | None, concurrency: int | None) -> list[str]:
    """The command of one worker."""
    command = [sys.executable, "-m", "redrive.faces.cli", "work", target]
    given = {
        "--database": session.database,
        "--config": session.config,
        "--queues": queues,
        "--concurrency": None if concurrency is None else str(concurrency),
    }
    for option, value in given.items():
        if value is not None:
            command += [option, value]
    return [*command, "--burst"] if burst else command


def find_app(target: str) -> Redrive:
    """The application that ``MODULE:APP`` names; what is wrong with the name is said in words."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        usage(f"{target!r} is not MODULE:APP, such as shop.jobs:app")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            hint = f"there is no module {error.name!r} in {Path.cwd()} or among the installed packages"
            if module_name.endswith(".py"):
                hint += f"; without its ending it is {module_name.removesuffix('.py')}:{attribute}"
            usage(hint)
        usage(f"{module_name} cannot be imported, because it imports {error.name!r}, which is not there")
    except RedriveError:
        raise  # its settings or a handler's declaration: says by itself what is wrong
    except Exception as error:
        usage(f"{module_name} failed while it was imported: {type(error).__name__}: {error} ({_place(error)})")
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = [name for name, value in vars(module).items() if isinstance(value, Redrive)]
            known = f"; it has {', '.join(f'{module_name}:{name}' for name in apps)}" if apps else ""
            usage(f"module {module_name} has no {attribute!r}{known}")
        found = getattr(found, part)
    if not isinstance(found, Redrive):
        usage(f"{target} is a {type(found).__name__}, not a Redrive application")
    return found


def _place(error: Exception) -> str:
    """Where in the application's own code it happened."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}, line {last.lineno}"
