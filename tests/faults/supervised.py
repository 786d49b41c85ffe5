"""An application for supervised workers: one that can be told to die while it is imported, before it serves."""

import os
import signal
import sys
import threading
from pathlib import Path

from redrive import Redrive

ORDER = "REDRIVE_TEST_START"
"""What becomes of a process that imports this: ``dies``, ``wrong`` or nothing."""

match os.environ.get(ORDER):
    case "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    case "wrong":
        sys.exit(2)

app = Redrive()


@app.job("holds.v1")
def holds(folder: str, name: str) -> int:
    """Says which process runs it, and waits until the file ``go`` is there."""
    (Path(folder) / name).write_text(str(os.getpid()))
    while not (Path(folder) / "go").exists():
        threading.Event().wait(0.01)
    return os.getpid()


@app.job("quick.v1")
def quick() -> int:
    """Ends."""
    return os.getpid()
