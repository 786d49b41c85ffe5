"""Field reports about what must not start any more: cancelled jobs, and jobs of a paused queue."""

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from redrive import Redrive
from redrive.domain.moves import Answered, Did
from redrive.store.port import QueueInfo
from tests.cli.command import run
from tests.faults.evidence import account, placed_once
from tests.faults.handlers import QUEUE
from tests.faults.nursery import Child, Nursery
from tests.faults.scene import Scene
from tests.faults.serving import serving
from tests.faults.waiting import Crew, until

KINDS = ("loop", "thread")  # the first start with their claim, the others come back fetched


def accept(scene: Scene, number: int, *, ms: int) -> list[UUID]:
    items = [scene.app.item(f"fault.{KINDS[n % 2]}.v1", {"ms": ms}, queue=QUEUE) for n in range(number)]
    return [handle.id for handle in scene.app.enqueue_many(items)]


def queue(app: Redrive, name: str = QUEUE) -> QueueInfo:
    return next(found for found in app.store.queues() if found.name == name)


def starts(scene: Scene) -> int:
    """Of all jobs, wherever they are, by the tables alone."""
    tables = " UNION ALL ".join(f"SELECT attempt FROM {{s}}jobs_{place}" for place in ("hot", "archive", "dlq"))
    return int(scene.evidence.query(f"SELECT coalesce(sum(attempt), 0) FROM ({tables}) jobs")[0][0])


# -- row 25 ------------------------------------------------------------------------------------------------------------


class Canceller:
    """Cancels jobs one by one where workers are just taking them, and keeps the answers."""

    def __init__(self, scene: Scene, seed: int, width: int) -> None:
        self.answers: dict[UUID, Answered] = {}
        self._scene, self._desk, self._dice = scene, scene.app.desk("canceller"), random.Random(seed)
        self._head = f"SELECT id FROM {{s}}jobs_hot ORDER BY id LIMIT {width}"
        self._lock = threading.Lock()

    def work(self) -> None:
        head = self._scene.evidence.query(self._head)
        with self._lock:
            jobs = [job for job in (UUID(row[0]) for row in head) if job not in self.answers]
            if not jobs:
                return
            chosen = self._dice.choice(jobs)
            self.answers[chosen] = Answered(chosen, None)  # nobody else asks for it
        (self.answers[chosen],) = self._desk.cancel([chosen])


def cancel_while_workers_take(scene: Scene, jobs: int, workers: int) -> str:
    ids = accept(scene, jobs, ms=20 * workers)
    canceller = Canceller(scene, seed=jobs, width=8 * workers)  # more than are running
    for _ in range(workers):
        scene.start()
    with Crew() as crew:
        for _ in range(3):
            crew.keep(canceller.work, 0.001)
        until(lambda: scene.evidence.hot() == 0, 120, why=scene.outputs)
    entered = {line.key[0] for line in scene.lines() if line.how == "in"}
    archived, dead = scene.evidence.archived(), scene.evidence.dead()
    audit = {entry.target: entry for entry in scene.app.store.audit_entries(limit=2 * jobs, actor="canceller")}
    seen: Counter[str] = Counter()
    for job in ids:
        answer, entry, name = canceller.answers.get(job), audit.get(str(job)), job.hex
        if answer is None or answer.did is None:
            assert (entry, name in archived) == (None, True), "nobody stopped it"
            seen["too late" if answer else "not asked"] += 1
        elif answer.did is Did.DONE:
            assert name not in entered, f"{job} was started after it was cancelled"
            assert dead[name][1] == "cancelled"
            assert entry is not None
            assert entry.result == "cancelled"
            seen[f"cancelled when {entry.details['was']}"] += 1
        else:
            assert entry is not None
            assert entry.result == "cancel requested"
            assert name in entered
            assert name in archived or dead[name][1] == "cancelled"
            seen["asked to stop"] += 1
    assert placed_once(scene.evidence, {job.hex for job in ids}) == []
    assert account(scene.evidence, scene.lines(), set()) == []
    scene.promises()
    said = ", ".join(f"{name}: {number}" for name, number in sorted(seen.items()))
    print(f"\n{jobs} jobs, {workers} workers: {said}")
    assert min(seen["cancelled when fetched"], seen["cancelled when pending"], seen["asked to stop"]) > 0, said
    return said


@pytest.mark.slow
def test_row_25_what_was_cancelled_is_not_started(database_url: str, nursery: Nursery, tmp_path: Path):
    """Cancel and dequeue raced, and jobs already cancelled were still started."""
    with Scene(database_url, nursery, tmp_path) as scene:
        cancel_while_workers_take(scene, 200, 2)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_row_25_a_thousand_jobs_and_many_workers(
    database_url: str, nursery: Nursery, tmp_path: Path, report: Callable[[str], None]
):
    """Ten processes with six slots each: more would be more than the shared server's connections."""
    with Scene(database_url, nursery, tmp_path) as scene:
        report(cancel_while_workers_take(scene, 1000, 10))


# -- row 51 ------------------------------------------------------------------------------------------------------------


def by_desk(scene: Scene) -> None:
    scene.app.desk("ann").pause(QUEUE)


def by_command(scene: Scene) -> None:
    assert run("queues", "pause", QUEUE, "--database", scene.url).code == 0


def all_wait(scene: Scene, crew: list[Child]) -> bool:
    """Whether each of these workers has claimed, got nothing, and said so."""
    waiting = {pid for (pid,) in scene.evidence.query("SELECT pid FROM {s}workers WHERE waiting")}
    return waiting >= {child.pid for child in crew}


def restart_on_a_paused_queue(scene: Scene, jobs: int, workers: int, rounds: int) -> None:
    ids = accept(scene, jobs, ms=1)
    for number in range(rounds):
        pause = (by_desk, by_command)[number % 2]
        scene.app.desk("ann").resume(QUEUE)  # nobody is there to see it
        pause(scene)
        crew = [scene.start() for _ in range(workers)]
        until(partial(all_wait, scene, crew), why=scene.outputs)
        for place, child in enumerate(crew):
            if place % 2:
                child.signal(signal.SIGKILL)
                assert child.ended.wait(30)
            else:
                assert child.finish() == 0, scene.outputs()
        assert (scene.lines(), starts(scene)) == ([], 0), f"round {number}, paused {pause.__name__}"
        found = queue(scene.app)
        assert (found.pending, found.fetched, found.processing, found.held_back) == (jobs, 0, 0, ("paused",))
    scene.start()
    scene.app.desk("ann").resume(QUEUE)
    until(lambda: scene.evidence.hot() == 0, 60, why=scene.outputs)
    assert scene.evidence.archived() == {job.hex: (job.hex, 1, 1) for job in ids}
    scene.promises()


@pytest.mark.slow
def test_row_51_fresh_workers_leave_a_paused_queue_alone(database_url: str, nursery: Nursery, tmp_path: Path):
    """Freshly started workers ran a few jobs of a paused queue before they had read that it was paused."""
    with Scene(database_url, nursery, tmp_path) as scene:
        restart_on_a_paused_queue(scene, jobs=40, workers=2, rounds=2)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_row_51_ten_workers_are_restarted_twenty_times(database_url: str, nursery: Nursery, tmp_path: Path):
    with Scene(database_url, nursery, tmp_path) as scene:
        restart_on_a_paused_queue(scene, jobs=1000, workers=10, rounds=20)


# -- row 52 ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_row_52_what_was_fetched_goes_back_and_who_waits_takes_nothing(database_url: str):
    """A fetch already waiting when the queue was paused still took and ran the next job after the pause."""
    gate = threading.Event()
    order: list[int] = []

    holder, waiter = (Redrive(database_url, worker={"poll": 0.02, "threads": 1, "concurrency": 30}) for _ in "ab")

    @holder.job("slow.v1", queue="q")
    def slow(n: int) -> None:
        order.append(n)
        if n == 0:
            assert gate.wait(30)

    @holder.job("quick.v1", queue="q")  # with slots of its own, so that claims ask for more than the thread can take
    async def quick() -> None: ...

    @waiter.job("other.v1", queue="q")
    async def other() -> None:
        order.append(-1)

    desk = holder.desk("ann")
    with closing(holder), closing(waiter):
        with serving(waiter) as waiting, serving(holder):
            until(lambda: waiting.line.waiting)
            jobs = [handle.id for handle in holder.enqueue_many([slow.job(n) for n in range(21)])]
            until(lambda: queue(holder, "q").fetched == 20)
            versions = [desk.get(job).head.version for job in jobs]
            desk.pause("q")
            looks = waiting.line.claims[0]
            late = waiter.enqueue("other.v1", {}, queue="q")
            until(lambda: waiting.line.claims[0] > looks + 1)  # woken by it or by its poll, it has looked for it
            gate.set()
            until(lambda: queue(holder, "q").pending == 21)
            found = [desk.get(job).head for job in jobs[1:]]
            assert order == [0]
            assert {(head.attempt, head.spent) for head in found} == {(0, 0)}
            assert all(head.version > before for head, before in zip(found, versions[1:], strict=True))
        desk.resume("q")
        with serving(holder):
            until(lambda: len(order) == 21)
        assert order == list(range(21)), "none is lost, and they are in order"
        with serving(waiter):
            assert late.wait(30)
        assert [found.number for found in holder.store.promises() if found.number] == []


def pause_under_load(scene: Scene, jobs: int, workers: int, rounds: int) -> None:
    ids = accept(scene, jobs, ms=3 * workers)
    desk = scene.app.desk("ann")
    desk.pause(QUEUE)
    for _ in range(workers):
        scene.start()
    for number in range(rounds):
        if scene.evidence.hot() < jobs // 2:
            ids += accept(scene, jobs, ms=3 * workers)
        before = starts(scene)
        desk.resume(QUEUE)
        scene.begun(before + 10)
        desk.pause(QUEUE)
        answered = starts(scene)
        assert queue(scene.app).pending, "the queue ran empty: this round shows nothing"
        until(lambda: not scene.evidence.query("SELECT 1 FROM {s}jobs_hot WHERE state = 'taken'"), why=scene.outputs)
        begun = sum(line.how == "in" for line in scene.lines())
        assert (starts(scene), begun) == (answered, answered), f"round {number}: something started after the answer"
    desk.resume(QUEUE)
    until(lambda: scene.evidence.hot() == 0, 120, why=scene.outputs)
    assert scene.evidence.archived() == {job.hex: (job.hex, 1, 1) for job in ids}
    scene.promises()


@pytest.mark.slow
def test_row_52_after_the_answer_nothing_starts(database_url: str, nursery: Nursery, tmp_path: Path):
    with Scene(database_url, nursery, tmp_path) as scene:
        pause_under_load(scene, jobs=600, workers=2, rounds=3)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_row_52_a_hundred_pauses_under_load(database_url: str, nursery: Nursery, tmp_path: Path):
    with Scene(database_url, nursery, tmp_path) as scene:
        pause_under_load(scene, jobs=3000, workers=6, rounds=100)
