"""Wake-ups: a thread that waits for news of work, and of the jobs held here, on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import structlog

from redrive.domain.errors import Retryable, Unavailable
from redrive.store.port import Listener, WorkerPort, mailbox

from .backoff import Backoff
from .outages import Outage

log = structlog.get_logger("redrive.worker")

STEP = 30.0
"""The longest single wait; stopping interrupts it."""


class Wakeup:
    """Calls ``wake`` when work may have arrived, and after each time it had to subscribe anew; ``beat`` when somebody
    asked for a job that this worker holds to be stopped, where the database can tell it.
    """

    def __init__(
        self,
        store: WorkerPort,
        worker_id: str,
        queues: Sequence[str],
        wake: Callable[[], None],
        beat: Callable[[], None],
        outage: Outage,
    ) -> None:
        self._store = store
        self._mailbox = mailbox(worker_id)
        self._names = (*queues, self._mailbox)
        self._wake = wake
        self._beat = beat
        self._outage = outage
        self._said = False
        self._stop = threading.Event()
        self._listener: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="redrive-wakeup", daemon=True)

    def start(self) -> None:
        """Subscribe."""
        self._thread.start()

    def stop(self) -> None:
        """Let go of the subscription."""
        self._stop.set()
        listener = self._listener
        if listener is not None:
            listener.interrupt()

    def join(self, timeout: float) -> None:
        """Wait until it has let go."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _say(self, silent: str) -> None:
        if silent and not self._said:
            self._said = True
            log.warning("no-wake-ups", why=silent, instead="looks for work each worker.poll seconds")

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                with self._store.listen(self._names) as listener:
                    self._listener = listener
                    self._outage.succeeded("wakeup")
                    self._say(listener.silent)
                    self._wake()  # what came while nobody listened was not announced
                    while not self._stop.is_set():
                        if listener.wait(STEP):
                            if self._mailbox in listener.heard:
                                self._beat()
                            if listener.heard != {self._mailbox}:
                                self._wake()
                        backoff.reset()
            except Unavailable as error:
                self._outage.failed("wakeup", error)
            except Retryable as error:
                log.warning("wakeup-waits", error=str(error))
            except Exception:
                log.exception("wakeup-failed")
            finally:
                self._listener = None
            self._stop.wait(backoff.next())
