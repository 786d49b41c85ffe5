"""Worker processes, forked from one process that has imported everything: importing alone takes each a second.

``python -m tests.faults.nursery`` reads requests, a JSON object a line, and answers each with the new process's pid;
between answers it says which of them stopped or ended, and how. They end with it, and it ends with whoever started it.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Child:
    """A worker process. ``output`` is what it wrote; ``code`` is as in ``subprocess``: negative for a signal."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid = pid
        self.output = output
        self.ended = threading.Event()
        self.stopped = threading.Event()
        self.code: int | None = None

    def signal(self, number: signal.Signals) -> None:
        if not self.ended.is_set():
            os.kill(self.pid, number)

    def resume(self) -> None:
        self.stopped.clear()
        self.signal(signal.SIGCONT)

    def finish(self, timeout: float = 30) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        assert self.ended.wait(timeout), f"process {self.pid} does not stop:\n{self.text()}"
        assert self.code is not None
        return self.code

    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class Nursery:
    """Starts workers; those that still live are killed at the end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answers: SimpleQueue[int] = SimpleQueue()
        self._children: dict[int, Child] = {}
        self._told: dict[int, list[int]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, environ: Mapping[str, str], output: Path) -> Child:
        """A worker with exactly this environment; what it prints goes to ``output``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"environ": dict(environ), "output": str(output)}).encode() + b"\n")
        self._process.stdin.flush()
        child = Child(self._answers.get(timeout=60), output)
        with self._lock:
            self._children[child.pid] = child
            for status in self._told.pop(child.pid, []):
                self._tell(child, status)
        return child

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "born" in said:
                self._answers.put(said["born"])
                continue
            with self._lock:
                child = self._children.get(said["pid"])
                if child is None:  # it ended before its birth was read
                    self._told.setdefault(said["pid"], []).append(said["status"])
                else:
                    self._tell(child, said["status"])

    def _tell(self, child: Child, status: int) -> None:
        if os.WIFSTOPPED(status):
            child.stopped.set()
        else:
            child.code = os.waitstatus_to_exitcode(status)
            child.ended.set()
            del self._children[child.pid]  # the number may come again

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(60)
        self._process.stdout.close()


# -- the process itself ------------------------------------------------------------------------------------------------


def main() -> None:
    import redrive.store.sql.postgres
    import redrive.store.sql.sqlite
    import redrive.store.sql.store
    import redrive.wiring
    import redrive.worker.process  # noqa: F401 - loaded here, once
    from tests.faults.handlers import make

    make("sqlite://")  # so are the settings, and what pydantic needs
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which closes our stdin
    signal.set_wakeup_fd(waker)
    children: set[int] = set()
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(children)
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                children.add(_fork(json.loads(line), wake, waker))
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(children: set[int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if not os.WIFSTOPPED(status):
            children.discard(pid)
        _say({"pid": pid, "status": status})


def _say(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _fork(request: dict[str, Any], *descriptors: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            for descriptor in descriptors:
                os.close(descriptor)
            output = os.open(request["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            os.environ.clear()
            os.environ.update(request["environ"])
            from tests.faults.handlers import make

            make().worker().run()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    _say({"born": pid})
    return pid


if __name__ == "__main__":
    main()
