"""redrive init and demo: the first minutes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .common import Session, command, usage
from .output import say

APP = '''"""A first application. Run a worker in one terminal:

    redrive work app:app

and in another give it work, of which one piece fails:

    redrive enqueue greet.v1 '{"name": "Ada"}'
    redrive enqueue greet.v1 '{"nmae": "Grace"}'

Then look at what died, repair it and send it back:

    redrive dlq list
    redrive dlq resurrect ID --payload '{"name": "Grace"}'
"""

from redrive import JobContext, Redrive

app = Redrive()  # the database is set in redrive.toml


# The type is what stored jobs carry: it stays when the function moves or is renamed.
@app.job("greet.v1")
async def greet(ctx: JobContext, name: str) -> str:
    """Parameters are the keys of the payload; what is returned is kept with the job."""
    print(f"Hello, {name}! (attempt {ctx.attempt})")
    return f"greeted {name}"


if __name__ == "__main__":
    # How a program enqueues: the arguments are checked against the handler's.
    handle = greet.enqueue(name="Ada")
    print("enqueued", handle.id)
'''

SETTINGS = """# Settings of Redrive. Environment variables beat them, such as REDRIVE_DATABASE_URL.
# `redrive doctor` shows each value in force and where it comes from.

[database]
url = "sqlite:///redrive.db"        # or postgresql://user:password@host/name, then: redrive db upgrade

[retry]                             # for handlers that state no policy of their own; times in seconds
max_attempts = 3                    # executions, the first included
base = 3.0                          # before the second attempt; each further wait is twice as long

[worker]
concurrency = 100                   # async handlers at a time
threads = 20                        # plain `def` handlers at a time
"""

PROJECT = {"app.py": APP, "redrive.toml": SETTINGS}
BREAKS = ("conservation", "owner", "exclusive", "evidence", "exactness", "audited")


def add(app: typer.Typer) -> None:
    """Add the commands."""
    command(app, "init")(init)
    command(app, "demo")(demo)


def init(
    session: Session,  # noqa: ARG001 - every command has one
    folder: Annotated[str, typer.Argument(metavar="[FOLDER]", help="Where to write; by default here.")] = ".",
) -> None:
    """Write a small commented project that runs: app.py and redrive.toml. Nothing is overwritten."""
    root = Path(folder)
    there = [name for name in PROJECT if (root / name).exists()]
    if there:
        usage(f"{root / there[0]} is there already: nothing was written; name another folder")
    try:
        root.mkdir(parents=True, exist_ok=True)
        for name, text in PROJECT.items():
            with (root / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        usage(f"{root}: {error.strerror}")
    say(f"written: {', '.join(str(root / name) for name in PROJECT)}")
    inside = "" if folder == "." else f"cd {folder}; "
    say(f"next: {inside}redrive work app:app")


def demo(
    session: Session,  # noqa: ARG001 - every command has one
    broken: Annotated[
        str | None, typer.Option("--break", metavar="PROMISE", help=f"Damage the data: {', '.join(BREAKS)}.")
    ] = None,
) -> int:
    """Tell the whole story on SQLite in under a minute: work, failures, repair, proof. Needs a source checkout."""
    if broken is not None and broken not in BREAKS:
        usage(f"--break {broken}: there are {', '.join(BREAKS)}")
    root = next((folder for folder in _checkouts() if (folder / "examples" / "lab" / "run.py").is_file()), None)
    if root is None:
        usage("the demo is not part of the installed package: clone the repository and run make demo there")
    arguments = [] if broken is None else ["--break", broken]
    with subprocess.Popen([sys.executable, "-m", "examples.lab.run", *arguments], cwd=root) as runner:
        # The runner stops its own processes. A terminal interrupts it together with us; a kill is meant for it.
        interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
        terminated = signal.signal(signal.SIGTERM, lambda number, _: runner.send_signal(number))
        try:
            return 0 if runner.wait() == 0 else 1
        finally:
            signal.signal(signal.SIGINT, interrupted)
            signal.signal(signal.SIGTERM, terminated)


def _checkouts() -> list[Path]:
    """Where a source checkout may be: around this file, or here."""
    return [*Path(__file__).resolve().parents, Path.cwd()]
