"""The log of a worker on a terminal: plain tracebacks, and no stored text with power over the terminal."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

from redrive.domain.text import printable


def log_to_stderr() -> None:
    """Standard output belongs to the handlers."""
    import structlog  # a tenth of a second that other commands need not wait

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.dev.set_exc_info,
            structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ", utc=True),
            harmless,
            # The default formatter shows local variables, and those hold payloads.
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def harmless(_logger: object, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Error messages and types come from jobs: their controls are shown, not obeyed."""
    return {key: printable(value, lines=False) if isinstance(value, str) else value for key, value in event.items()}
