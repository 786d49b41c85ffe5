"""Each measure once: a fresh database, the work in processes of its own, a check that every job was done once."""

import random
import time
from collections.abc import Callable
from functools import partial

from bench.child import Child, ask
from bench.ground import Ground, expect
from bench.jobs import application

SINGLES = 2_000
LONE = 200
GAP = (0.04, 0.06)
"""Seconds between jobs for an idle worker: by chance, so that they meet every phase of its polling."""

Figures = dict[str, float]


def bare(ground: Ground, jobs: int) -> Figures:
    with ground.postgres() as url:
        ask("bench.enqueue_main", url, "async", "many", jobs)
        took = ask("bench.bare", url)
        expect(url, jobs_archive=jobs)
    return _rate(took, jobs)


def drain(ground: Ground, jobs: int, *, kind: str = "async", workers: int = 1, sqlite: bool = False) -> Figures:
    """Worker processes at default settings empty the queue; they begin together, connected and imported."""
    with ground.sqlite() if sqlite else ground.postgres() as url:
        ask("bench.enqueue_main", url, kind, "many", jobs)
        children = [Child("bench.worker_main", url, kind) for _ in range(workers)]
        try:
            for child in children:
                child.ready()
            for child in children:
                child.go()
            answers = [child.answer() for child in children]
        finally:
            for child in children:
                child.__exit__()
        if sum(found["jobs"] for found in answers) != jobs:
            raise RuntimeError("handlers were not called once for each job")
        expect(url, **{"jobs_dlq" if kind == "fails" else "jobs_archive": jobs})
    busy = [found for found in answers if found["jobs"]]
    seconds = max(found["last"] for found in busy) - min(found["first"] for found in busy)
    return {
        **_rate({"seconds": seconds, "cpu": sum(found["cpu"] for found in busy)}, jobs),
        "over": max(found["over"] for found in busy),
        "claim": jobs / sum(found["claims"] for found in busy),
        "settle": jobs / sum(found["settles"] for found in busy),
    }


def enqueue(ground: Ground, jobs: int, *, form: str = "many", sqlite: bool = False) -> Figures:
    number = jobs if form == "many" else min(jobs, SINGLES)
    with ground.sqlite() if sqlite else ground.postgres() as url:
        return _rate(ask("bench.enqueue_main", url, "async", form, number), number)


def peer(ground: Ground, jobs: int, *, form: str) -> Figures:
    number = min(jobs, SINGLES) if form == "single" else jobs
    with ground.postgres(empty=True) as url:
        return _rate(ask("bench.peer_main", url, form, number), number)


def latency(ground: Ground, jobs: int) -> Figures:
    """From before an enqueue in this process to the start of the handler in an idle worker, milliseconds."""
    number = min(LONE, jobs)
    with ground.postgres() as url, Child("bench.worker_main", url, "stamp", "forever") as worker:
        app, stamp = application(url, "stamp")
        worker.ready().go()
        stamp.enqueue(sent=time.time())
        time.sleep(1.0)
        for _ in range(number):
            time.sleep(random.uniform(*GAP))
            stamp.enqueue(sent=time.time())
        time.sleep(0.5)
        worker.end()
        delays = sorted(1000 * delay for delay in worker.answer()["delays"][1:])
        app.close()
    if len(delays) != number:
        raise RuntimeError(f"{len(delays)} of {number} jobs were run")
    return {f"p{share}": delays[int(number * share / 100)] for share in (50, 95, 99)}


def beside_bare(measure: Callable[[Ground, int], Figures]) -> Callable[[Ground, int], Figures]:
    """The measure with the bare loop just before it: what a shared machine can do changes within a minute."""

    def both(ground: Ground, jobs: int) -> Figures:
        base = bare(ground, jobs)["rate"]
        return {**measure(ground, jobs), "bare": base}

    return both


MEASURES: dict[str, Callable[[Ground, int], Figures]] = {
    "bare": bare,
    "worker": beside_bare(drain),
    "workers": beside_bare(partial(drain, workers=2)),
    "peer": beside_bare(partial(peer, form="drain")),
    "enqueue": enqueue,
    "peer-enqueue": partial(peer, form="many"),
    "single": partial(enqueue, form="single"),
    "peer-single": partial(peer, form="single"),
    "latency": latency,
    "sync": beside_bare(partial(drain, kind="sync")),
    "awaits": beside_bare(partial(drain, kind="awaits")),
    "fails": beside_bare(partial(drain, kind="fails")),
    "sqlite": partial(drain, sqlite=True),
    "sqlite-enqueue": partial(enqueue, sqlite=True),
}


def _rate(took: Figures, jobs: int) -> Figures:
    return {"rate": jobs / took["seconds"], "cpu": 1e6 * took["cpu"] / jobs}
