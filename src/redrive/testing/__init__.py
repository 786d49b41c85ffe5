"""What applications test their jobs with: a private database, a clock that stands still, and the real worker.

``Kit`` puts an application on them for a ``with`` block; the pytest plugin has it as the fixture ``redrive_kit``. See
docs/testing.md.
"""

from .clock import Clock
from .kit import Drained, Kit

__all__ = ["Clock", "Drained", "Kit"]
