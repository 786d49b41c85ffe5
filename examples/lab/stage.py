"""The demo's folder and its processes: the peers and the workers. Whatever happens, none is left behind."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import httpx

from examples.lab.story import StoryError

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "redrive.db"
DEADLINE = 150.0  # seconds for the whole story; an idle machine needs a fifth of it
PATIENCE = 20.0  # seconds a process has to end in order

# What would take minutes or days takes seconds here. Everything else is as it comes.
SHORTENED = {
    "REDRIVE_RETRY__BASE": "0.2",
    "REDRIVE_RETRY__JITTER": "0.1",
    "REDRIVE_WORKER__HEARTBEAT": "0.5",
    "REDRIVE_WORKER__GRACE": "3",
    "REDRIVE_WORKER__UNSERVED_TIMEOUT": "4",
    "REDRIVE_RECOVERY__ZOMBIE_TIMEOUT": "4",
    "REDRIVE_RECOVERY__FETCHED_TIMEOUT": "4",
}


class Stage:
    """Where the story is played. ``with`` it; leaving ends every process that was started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / DATABASE}"
        self.http = self.smtp = ""
        self._ends = time.monotonic() + DEADLINE
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._on_terminate = signal.signal(signal.SIGTERM, _terminated)
        for name in [name for name in os.environ if name.startswith(("REDRIVE_", "LAB_"))]:
            del os.environ[name]  # a setting of somebody's shell is no part of this story
        settings = self.folder / "redrive.toml"
        settings.write_text(f"[database]\nurl = {json.dumps(self.url)}\n", encoding="utf-8")
        os.environ.update(SHORTENED, REDRIVE_CONFIG=str(settings), LAB_OUT=str(self.folder), LAB_RELEASE="1")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave half of them behind
        running = list(self._processes.values())
        for process in running:
            process.terminate()
        for process in running:
            _ended(process)
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, self._on_terminate)

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_peers(self) -> None:
        """Start the mail server and the HTTP server, and wait until both say where they are."""
        command = [sys.executable, "-m", "examples.lab.peers", "--mailbox", str(self.folder / "mailbox")]
        peers = self._start("peers", command, stdout=subprocess.PIPE)
        assert peers.stdout is not None
        readable, _, _ = select.select([peers.stdout], [], [], 20)
        line = peers.stdout.readline() if readable else b""
        if not line.startswith(b"{"):
            raise StoryError(f"the peers did not start; {self._last_words('peers')}")
        addresses = json.loads(line)
        self.smtp, self.http = addresses["smtp"], addresses["http"]
        os.environ.update(LAB_SMTP=self.smtp, LAB_HTTP=self.http)

    def start_worker(self, name: str, *options: str) -> int:
        """Start ``redrive work`` on the application of the lab; the answer is its process id."""
        redrive = str(Path(sys.executable).with_name("redrive"))
        return self._start(name, [redrive, "work", "examples.lab.app:app", *options]).pid

    def kill(self, name: str) -> None:
        """SIGKILL: no handler, no clean-up, no last word."""
        process = self._processes.pop(name)
        process.kill()
        if (code := process.wait(PATIENCE)) != -signal.SIGKILL:
            raise StoryError(f"the worker ended with {code} before it could be killed; {self._last_words(name)}")

    def stop(self, *names: str) -> None:
        """SIGTERM, and an orderly end of each."""
        for name in names:
            self._processes[name].terminate()
        for name in names:
            if (code := _ended(self._processes.pop(name))) != 0:
                raise StoryError(f"{name} did not stop in order (exit code {code}); {self._last_words(name)}")

    def _start(self, name: str, command: list[str], stdout: int | None = None) -> subprocess.Popen[bytes]:
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log if stdout is None else stdout, stderr=log
            )
        self._processes[name] = process
        return process

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self.folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()
        last = [line.strip() for line in lines if line.strip()][-2:]
        return f"{self.log(name)} ends: {' / '.join(last) or '(it is empty)'}"

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_for(self, what: str, done: Callable[[], bool], found: Callable[[], str]) -> None:
        """Ask until ``done`` says so. A process that ends meanwhile, or the deadline, ends the story."""
        while not done():
            for name, process in self._processes.items():
                if (code := process.poll()) is not None:
                    raise StoryError(f"{name} ended with {code} while {what} was waited for; {self._last_words(name)}")
            if time.monotonic() > self._ends:
                raise StoryError(f"{what} was waited for, and after {DEADLINE:g} s in all: {found()}")
            time.sleep(0.1)

    def peers(self, path: str, timeout: float = 10.0) -> Any:
        """What the HTTP server answers."""
        answer = httpx.get(self.http + path, timeout=timeout, trust_env=False)
        return answer.raise_for_status().json()

    def asked_about(self, about: str, times: int) -> bool:
        """Whether ``about`` was asked about so often; waits a second for it, and answers at the very moment."""
        try:
            return bool(self.peers(f"/wait/{times}/{about}", timeout=1.0)["hits"] >= times)
        except httpx.TimeoutException:
            return False


def choose_folder() -> Path:
    """LAB_DIR, which must not hold a demo yet, or a fresh folder of the system's temp."""
    wanted = os.environ.get("LAB_DIR")
    if not wanted:
        return Path(tempfile.mkdtemp(prefix="redrive-demo-"))
    folder = Path(wanted).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"LAB_DIR: {folder} is there already and not empty; name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _terminated(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)
