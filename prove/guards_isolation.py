"""The guards of handlers in processes of their own, and of workers under a supervisor."""

from __future__ import annotations

from .removal import Guard, guards

_T = "tests/faults/test_isolated.py"

ISOLATION: list[Guard] = [
    *guards(
        "worker/child.py",
        _T,
        ("what a handler started is killed with it", "    os.setpgid(0, 0)", "    os.getpgrp()"),
        (
            "the kernel ends the processes of a dead worker",
            "        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)\n",
            "        return\n",
        ),
        ("it is asked where it is", "            if order.reason is not Stop.CANCEL:\n", "            if False:\n"),
        ("a handler that is told can hear it", "                run.stop = order.reason\n", "                pass\n"),
        ("progress is told", "run.progress is not None and run.progress != told", "False"),
        (
            "a name that leads to no job is refused",
            "    if not isinstance(handler, Handler) or handler.type != target.type:\n",
            "    if False:\n",
        ),
    ),
    *guards(
        "worker/children.py",
        _T,
        ("killed is the whole group", "os.killpg(self.pid, signal.SIGKILL)", "os.kill(self.pid, signal.SIGKILL)"),
        (
            "a lost lease kills at once",
            "            child.kill(run)\n        else:\n",
            "            pass\n        else:\n",
        ),
        (
            "who does not answer is killed all the same",
            "            self._loop.call_later(CANCEL_WITHIN if reason is Stop.CANCEL else ANSWER, child.kill, run)\n",
            "",
        ),
        (
            "a process is used again",
            "if child.alive and len(self._idle) < self.keep and not self._closed:",
            "if False:",
        ),
        ("they end with the worker", "            for child in self._all:\n                child.kill()\n", ""),
        (
            "one that died is not used again",
            "return not self._killed and self._process.is_alive()",
            "return True",
        ),
    ),
    *guards(
        "worker/runner.py",
        _T,
        (
            "the timeout counts from the handler's start",
            "self._deadlines.watch(run, run.handler.timeout, run.began)\n",
            "pass\n",
        ),
    ),
    *guards(
        "worker/process.py",
        _T,
        (
            "a process is tried before anything is claimed",
            "                await claims(children.check)\n",
            "                pass\n",
        ),
    ),
    *guards(
        "app.py",
        _T,
        (
            "a process has the settings of its worker",
            "            if word != (self._url, self._config, self._arguments):\n",
            "            if False:\n",
        ),
    ),
    *guards(
        "worker/supervisor.py",
        "tests/faults/test_supervisor.py",
        (
            "Ctrl-C reaches workers once",
            "                    process_group=0,",
            "                    process_group=None,",
        ),
        (
            "none is replaced while it stops",
            "            if self._stop.is_set():\n                self._code",
            "            if False:\n                self._code",
        ),
        ("wrong use is not repeated", "code == WRONG or failures >= TRIES", "failures >= TRIES"),
        ("it does not try for ever", "code == WRONG or failures >= TRIES", "code == WRONG"),
        ("giving up is no success", "self._code = code if code > 0 else 1", "self._code = 0"),
        ("the others wait for the first", "        await _either(self._serving, self._stop)\n", ""),
        ("a burst ends", "            if self._burst and code == 0:\n", "            if False:\n"),
        ("signals are passed on", "                process.send_signal(number)\n", "                pass\n"),
    ),
    *guards(
        "worker/signals.py",
        "tests/faults/test_supervisor.py",
        (
            "a worker says that it serves",
            '                os.write(self._supervisor, b"1")\n',
            "                pass\n",
        ),
    ),
]
