"""Measured work happens in processes of its own: nothing of one measure is in the memory of another.

A child imports and connects, says `ready`, waits for a line, works, and answers with one line of JSON.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
ANSWER_WITHIN = 300.0


class Child:
    """One child process, from the parent's side."""

    def __init__(self, module: str, *arguments: object) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT, env=kept, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
        )  # fmt: skip
        self._alarm = threading.Timer(ANSWER_WITHIN, self._process.kill)
        self._alarm.daemon = True
        self._alarm.start()

    def ready(self) -> Self:
        """Waits until it has imported and connected."""
        if self._line() != "ready":
            self._fail()
        return self

    def go(self) -> None:
        """Begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Ask a child that would go on for ever to end in order."""
        self._process.send_signal(signal.SIGTERM)

    def answer(self) -> dict[str, Any]:
        """What it found."""
        line = self._line()
        self._process.wait()
        self._alarm.cancel()
        if self._process.returncode or not line.startswith("{"):
            self._fail()
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._alarm.cancel()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                stream.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _fail(self) -> None:
        self._process.kill()
        self._process.wait()
        self._said.seek(0)
        raise RuntimeError(f"{' '.join(map(str, self._process.args))} failed:\n{self._said.read()[-3000:]}")  # type: ignore[arg-type]


def ask(module: str, *arguments: object) -> dict[str, Any]:
    """One child, from start to answer."""
    with Child(module, *arguments) as child:
        child.ready().go()
        return child.answer()


def wait() -> None:
    """In the child: everything is loaded; wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


def answer(found: Mapping[str, Any]) -> None:
    """In the child: this is what came out."""
    print(json.dumps(found), flush=True)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Seconds and CPU seconds that `work` took in this process."""
    began, used = time.perf_counter(), cpu()
    work()
    return {"seconds": time.perf_counter() - began, "cpu": cpu() - used}


def cpu() -> float:
    """CPU seconds of this process, all threads, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
