"""Enqueues while the database comes and goes."""

from redrive import Retryable, Unavailable
from tests.faults.handlers import HOPELESS, KINDS, QUEUE
from tests.faults.scene import Scene


class Load:
    """Enqueues as an application must whose database may go away: what is unknown is looked for, never sent blindly."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.accepted: set[str] = set()
        self.unknown: set[str] = set()
        self._numbers = iter(range(1_000_000))

    def enqueue(self) -> None:
        app = self._scene.app
        kinds = [kind for kind in KINDS if kind != HOPELESS]
        items = [app.item(kinds[next(self._numbers) % len(kinds)], {"ms": 3}, queue=QUEUE) for _ in range(3)]
        ids = {item.job.id.hex for item in items}
        try:
            if self._scene.evidence.hot() > 100:
                return
            app.enqueue_many(items)
        except (Unavailable, Retryable):
            self.unknown |= ids
        except Exception as error:  # the look-up is the driver's own
            if type(error).__module__.partition(".")[0] != "psycopg":
                raise
        else:
            self.accepted |= ids
