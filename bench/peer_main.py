"""The peer: pgqueuer on asyncpg, as it is at its best: `URL many|single|drain NUMBER`.

Bulk enqueue is one call with lists, payloads written by `json.dumps`. The drain takes batches of 1,000 and lasts, as
for our own worker, from the first dequeue to the last line of its log.
"""

import asyncio
import json
import sys
import time
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.types import QueueExecutionMode

from bench.child import answer, cpu, wait
from bench.jobs import LETTER

BATCH = 1000


async def enqueue(queries: Queries, form: str, number: int) -> dict[str, float]:
    if form == "single":
        await asyncio.to_thread(wait)
        began, used = time.perf_counter(), cpu()
        for _ in range(number):
            await queries.enqueue("nothing", json.dumps(LETTER).encode())
        return {"seconds": time.perf_counter() - began, "cpu": cpu() - used}
    await asyncio.to_thread(wait)
    began, used = time.perf_counter(), cpu()
    payloads: list[bytes | None] = [json.dumps(LETTER).encode() for _ in range(number)]
    await queries.enqueue(["nothing"] * number, payloads, [0] * number)
    return {"seconds": time.perf_counter() - began, "cpu": cpu() - used}


async def drain(connection: Any, queries: Queries, number: int) -> dict[str, float]:
    payload = json.dumps(LETTER).encode()
    await queries.enqueue(["nothing"] * number, [payload] * number, [0] * number)
    app = PgQueuer.from_asyncpg_connection(connection)
    watched = app.qm.queries
    dequeue, log_jobs = watched.dequeue, watched.log_jobs
    first: list[tuple[float, float]] = []
    last: list[tuple[float, float]] = []
    logged = 0

    async def dequeuing(*args: Any, **kwargs: Any) -> Any:
        if not first:
            first.append((time.perf_counter(), cpu()))
        return await dequeue(*args, **kwargs)

    async def logging(job_status: Any) -> None:
        nonlocal logged
        await log_jobs(job_status)
        logged += len(job_status)
        last.append((time.perf_counter(), cpu()))
        if logged == number:
            app.shutdown.set()

    for name, stand_in in {"dequeue": dequeuing, "log_jobs": logging}.items():
        setattr(watched, name, stand_in)

    @app.entrypoint("nothing")
    async def nothing(job: Any) -> None:  # noqa: ARG001
        return

    await asyncio.to_thread(wait)
    await app.qm.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    if logged != number:
        raise RuntimeError(f"{logged} of {number} jobs were run")
    return {"seconds": last[-1][0] - first[0][0], "cpu": last[-1][1] - first[0][1]}


async def main(url: str, form: str, number: int) -> None:
    connection = await asyncpg.connect(url)
    queries = Queries.from_asyncpg_connection(connection)
    await queries.install()
    answer(await (drain(connection, queries, number) if form == "drain" else enqueue(queries, form, number)))
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
