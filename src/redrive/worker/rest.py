"""Waiting in the event loop: for an event, but not longer than so long."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def rest(event: asyncio.Event, seconds: float) -> None:
    """Until ``event`` is set, or ``seconds`` have passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
