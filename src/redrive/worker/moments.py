"""Named moments of a worker, for tests that must stop it exactly there. Without a hook a moment costs one comparison.

===================  ===================================================================================
``claimed``          a claim was answered with jobs
``started``          fetched jobs were started by a statement of their own
``handler-entered``  the payload is bound, the handler is called next
``handler-returned`` the handler has ended, nothing is written yet
``settle-sending``   the ends of runs are sent next
``settle-sent``      they are being sent: from another thread, up to 3 ms into the store's call
``settled``          the store has answered
===================  ===================================================================================

``REDRIVE_TEST_MOMENT=name:nth:action`` arms one in a worker process: the nth time (from 1), ``kill`` is SIGKILL,
``stop`` is SIGSTOP, ``hang`` blocks the thread that got there.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from redrive.domain.errors import ConfigError

NAMES = (
    "claimed",
    "started",
    "handler-entered",
    "handler-returned",
    "settle-sending",
    "settle-sent",
    "settled",
)
VARIABLE = "REDRIVE_TEST_MOMENT"
_SENT_WITHIN = 0.003

Hook = Callable[[str], None]

hook: Hook | None = None
"""Called with the moment's name, in the thread that reached it. Call sites look here themselves: it is mostly None."""


@contextmanager
def during_settle() -> Iterator[None]:
    """Reach ``settle-sent`` while the caller is inside the store: nothing in a synchronous call could say so itself.

    A call that has answered is not in that moment any more; one that is cannot answer while the hook runs.
    """
    if hook is None:
        yield
        return
    at = hook
    lock = threading.Lock()
    answered = False

    def soon() -> None:
        time.sleep(random.uniform(0, _SENT_WITHIN))
        with lock:
            if not answered:
                at("settle-sent")

    threading.Thread(target=soon, name="redrive-moment", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            answered = True


def arm(environ: Mapping[str, str] | None = None) -> None:
    """Install the hook that ``REDRIVE_TEST_MOMENT`` asks for, if it asks."""
    global hook
    wanted = (os.environ if environ is None else environ).get(VARIABLE)
    if not wanted:
        return
    name, _, rest = wanted.partition(":")
    nth, _, action = rest.partition(":")
    if name not in NAMES or not nth.isdecimal() or int(nth) < 1 or action not in _ACTIONS:
        raise ConfigError(f"{VARIABLE} is name:nth:action with a name of {', '.join(NAMES)} and kill, stop or hang")
    left = int(nth)
    lock = threading.Lock()

    def count(reached: str) -> None:
        nonlocal left
        if reached != name:
            return
        with lock:
            left -= 1
            now = left == 0
        if now:
            _ACTIONS[action]()

    hook = count


def _hang() -> None:
    threading.Event().wait()


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
}
