"""``redrive work tests.faults.app:app``."""

from tests.faults.handlers import make

app = make()
