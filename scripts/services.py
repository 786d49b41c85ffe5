"""PostgreSQL for the tests, the benchmark and the proofs, from wherever there is one.

    python scripts/services.py postgres

prints the URL of a server and of a user who may create databases there, and ends; where it had to start a server of
its own, it stays until it is stopped, and takes the server with it. In Python: `with services.postgres() as url`.

Tried in this order: REDRIVE_TEST_POSTGRES_URL (named, so it must work); the standard local port; a private instance
from installed binaries; the Debian package, when we are root. What is missing is said in one line.
"""

import atexit
import contextlib
import fcntl
import getpass
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TextIO

URL_VARIABLE = "REDRIVE_TEST_POSTGRES_URL"
DEBIAN = Path("/usr/lib/postgresql")  # the folder of versions
FOLDER_PREFIX = "redrive-postgres-"
StopMode = Literal["fast", "immediate"]


class MissingError(Exception):
    """Says in one line what is missing."""


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The URL of a server where databases may be created; a private one lives as long as the block."""
    if url := existing():
        yield url
    else:
        with PrivatePostgres() as private:
            yield private.url


def existing(port: int = 5432) -> str | None:
    return named_server() or local_server(port)


def named_server() -> str | None:
    """The server the environment names. There is no other choice beside it: a wrong name must be seen."""
    url = os.environ.get(URL_VARIABLE)
    if url and (reason := unusable(url)):
        raise MissingError(f"{URL_VARIABLE}={masked(url)} cannot be used: {reason}")
    return url or None


def local_server(port: int) -> str | None:
    """A server on the standard port that lets us in without a password and lets us create databases."""
    urls = (f"postgresql://{user}@127.0.0.1:{port}/postgres" for user in ("postgres", getpass.getuser()))
    return next((url for url in urls if unusable(url) is None), None) if answers(port) else None


def answers(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def unusable(url: str) -> str | None:
    """Why databases cannot be created with this URL, in one line; None if they can."""
    try:
        import psycopg  # here, because starting a server needs nothing but the standard library
    except ImportError:
        raise MissingError("missing: psycopg (`make setup`, then run this with .venv/bin/python)") from None
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            may = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            row = connection.execute(may).fetchone()
    except psycopg.Error as error:
        return masked(" ".join(str(error).split()))
    return None if row and row[0] else "this user may not create databases"


def masked(text: str) -> str:
    return re.sub(r"(://[^:/@\s]*:)[^@\s]*@", r"\1***@", text)


def installed() -> Path | None:
    """The folder with the server's programs: on PATH, else the newest of Debian's."""
    newest_first = sorted(DEBIAN.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    for folder in [*map(Path, os.get_exec_path()), *newest_first]:
        if all((folder / program).is_file() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    return None


APT = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")


def _runner(missing: str, package: str) -> Callable[..., None]:
    """Runs commands that install a Debian package; what goes wrong is said with ``missing``."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingError(f"{missing} (on Debian: apt-get install {package})")

    def run(*command: str) -> None:
        # In run level 1 packages start no services.
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise MissingError(f"{missing}; `{' '.join(command)}` failed: {reason}")

    return run


def packaged(found: Callable[[], Path | None], package: str) -> Path:
    """What ``found`` finds, where need be after installing the Debian package."""
    if path := found():
        return path
    missing = f"missing: {package}"
    run = _runner(missing, package)
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found():
            print(f"installing the Debian package {package}", file=sys.stderr)
            run("apt-get", "update", "-qq")
            run(*APT, package)
    if path := found():
        return path
    raise MissingError(f"{missing}, although the package is installed")


def install() -> None:
    """The Debian package, without the cluster it would create, start and leave running."""
    missing = f"missing: a PostgreSQL server, installed, or on port 5432, or named by {URL_VARIABLE}"
    run = _runner(missing, "postgresql")
    switch = ("pg_conftool", "/etc/postgresql-common/createcluster.conf")
    # The workers of a parallel test run get here together; dpkg serves one at a time and refuses the others.
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if installed():
            return
        print("installing the Debian package postgresql", file=sys.stderr)
        run("apt-get", "update", "-qq")
        run(*APT, "postgresql-common")
        run(*switch, "set", "create_main_cluster", "off")
        try:
            run(*APT, "postgresql")
        finally:
            run(*switch, "remove", "create_main_cluster")


class PrivatePostgres:
    """A server of our own, under a temporary folder: started, stopped, crashed and configured at will.

    It ends with its `with` block, else with the process. Should the process be killed, the next one that starts a
    server finds the folder without an owner and removes both.
    """

    def __init__(self, **settings: object) -> None:
        if not installed():
            install()
        if not (programs := installed()):
            raise MissingError("missing: initdb, pg_ctl and postgres, although the package is installed")
        sweep()
        self.programs = programs
        self.user = server_user()
        self.folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        self.owner = claim(self.folder)
        atexit.register(self.remove)
        self.data = self.folder / "data"
        self.settings = settings | {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "fsync": "on",
        }
        self.port = 0
        if self.user:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        self._fill()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _fill(self) -> None:
        self._call("initdb", "--pgdata", self.data, "--username=postgres", "--auth=trust", "--encoding=UTF8",
                   "--no-locale", "--no-sync")  # fmt: skip

    def start(self) -> Self:
        """Starts it, on the same port as before if there was one."""
        for attempt in range(5):
            port = self.port or free_port()
            self._write(self.settings | {"port": port})
            try:
                self._call("pg_ctl", "start", "--pgdata", self.data, "--wait", "--log", self.folder / "log")
            except RuntimeError as error:
                # Another process may have taken the port in the meantime. A known port is awaited, it is in the URL.
                if "could not create any TCP/IP sockets" not in self.log() or attempt == 4:
                    raise RuntimeError(f"{error}\n{self.log()[-2000:]}") from None
                time.sleep(0.2)
            else:
                self.port = port
                break
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Stops it: `fast` ends connections in order, `immediate` is a crash; recovery comes with the next start."""
        self._call("pg_ctl", "stop", "--pgdata", self.data, "--wait", "--mode", mode)

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def configure(self, **settings: object) -> None:
        """Sets server options; the server reads them at once, those that need a restart at the next start."""
        self._write(settings)
        self._call("pg_ctl", "reload", "--pgdata", self.data)

    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def remove(self) -> None:
        """Ends the server and removes all that it left. Safe to call again."""
        atexit.unregister(self.remove)
        discard(self.folder)
        self.owner.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.remove()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    def _write(self, settings: dict[str, object]) -> None:
        with (self.data / "postgresql.conf").open("a") as file:  # of two lines for one name the later counts
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _call(self, program: str, *arguments: str | Path) -> None:
        # The server refuses to run as root. The folder is its working directory: root's own may be closed to it.
        identity: dict[str, Any] = {}
        if self.user:
            identity = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}
        output = self.folder / "output"  # a file, not a pipe: the server started by pg_ctl would hold a pipe open
        with output.open("w+") as out:
            # Of programs that are linked into a folder of PATH some may be linked and some not.
            folder = (self.programs / "pg_ctl").resolve().parent
            command: Sequence[str | Path] = [folder / program, *arguments]
            run = subprocess.run(command, cwd=self.folder, stdout=out, stderr=out, check=False, **identity)
        if run.returncode:
            raise RuntimeError(f"{program} failed: {output.read_text().strip()}")


class Standby(PrivatePostgres):
    """A hot standby of another server, until it is promoted."""

    def __init__(self, primary: PrivatePostgres, **settings: object) -> None:
        self._primary = primary
        super().__init__(**settings)

    def promote(self) -> None:
        """Makes it a primary; returns when it can be written."""
        self._call("pg_ctl", "promote", "--pgdata", self.data, "--wait")

    def _fill(self) -> None:
        source = f"host=127.0.0.1 port={self._primary.port} user=postgres"
        self._call("pg_basebackup", "--pgdata", self.data, "--dbname", source, "--write-recovery-conf",
                   "--checkpoint=fast", "--no-sync", "--wal-method=stream")  # fmt: skip


def server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as when we are root; None for ourselves."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def free_port() -> int:
    """A free port below those the system gives to outgoing connections, which could take it while a server restarts."""
    while True:
        port = random.randrange(20_000, 32_000)
        if not answers(port):
            return port


def claim(folder: Path) -> TextIO:
    """Marks the folder as ours by a lock that ends with this process, however it ends."""
    lock = (folder / "owner.new").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    (folder / "owner.new").rename(folder / "owner")  # under its name only once it is locked
    return lock


def sweep() -> None:
    """Removes the servers whose owner was killed."""
    for folder in Path(tempfile.gettempdir()).glob(FOLDER_PREFIX + "*"):
        with contextlib.suppress(OSError), (folder / "owner").open() as lock:  # locked, vanished or not ours: leave it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            discard(folder)


def discard(folder: Path) -> None:
    """Ends the server in this folder, if one runs there, and removes the folder."""
    pid_file = folder / "data" / "postmaster.pid"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):  # never started, gone, half written
        pid, _, _, port, *_ = pid_file.read_text().splitlines()
        if answers(int(port)):  # else the machine was restarted, and the number may be another program's by now
            os.kill(int(pid), signal.SIGQUIT)  # what `pg_ctl stop --mode immediate` sends
            deadline = time.monotonic() + 10
            while pid_file.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    if list(arguments) != ["postgres"]:
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        try:
            if url := existing():
                print(url)
            else:
                with PrivatePostgres() as private:
                    print(private.url, flush=True)
                    signal.pause()
        except MissingError as missing:
            print(missing, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
