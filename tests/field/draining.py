"""A real worker in this process that works until nothing is due."""

import asyncio

from redrive import Redrive


def drain(app: Redrive) -> None:
    asyncio.run(app.worker().serve(asyncio.Event(), burst=True))
