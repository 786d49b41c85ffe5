"""The application whose jobs are measured."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from redrive import Fatal, Redrive

LETTER = {
    "to": "someone.with.a.name@example.org",
    "subject": "Your order 4711 is on its way",
    "body": "Dear customer, the parcel left our house this morning and should arrive within two days. Yours.",
}
"""About 190 bytes of JSON."""
AWAITED = 0.01


class Tally:
    """What the handlers of this process did."""

    def __init__(self) -> None:
        self.ends: list[None] = []  # a list, because appending is atomic and counting up in threads is not
        self.now = 0
        self.peak = 0
        self.delays: list[float] = []


def application(url: str, kind: str, tally: Tally | None = None) -> tuple[Redrive, Any]:
    """The application with one handler, of type `bench.<kind>`, and what enqueues it. Everything else is default."""
    app = Redrive(url)
    seen = Tally() if tally is None else tally

    async def nothing(to: str, subject: str, body: str) -> None:  # noqa: ARG001
        seen.ends.append(None)

    def nothing_sync(to: str, subject: str, body: str) -> None:  # noqa: ARG001
        seen.ends.append(None)

    async def awaits(to: str, subject: str, body: str) -> None:  # noqa: ARG001
        seen.now += 1
        seen.peak = max(seen.peak, seen.now)
        await asyncio.sleep(AWAITED)
        seen.now -= 1
        seen.ends.append(None)

    async def fails(to: str, subject: str, body: str) -> None:  # noqa: ARG001
        seen.ends.append(None)
        raise Fatal("the address is not one we may write to")

    async def stamp(sent: float) -> None:
        seen.delays.append(time.time() - sent)

    handlers: Mapping[str, Any] = {
        "async": nothing,
        "sync": nothing_sync,
        "awaits": awaits,
        "fails": fails,
        "stamp": stamp,
    }
    return app, app.job(f"bench.{kind}")(handlers[kind])
