"""Workers killed under load, again and again, in named windows; and what must be true all the while and afterwards.

Two workers serve one database. Each is armed to kill itself in one window; when one dies, the next takes its place.
Producers keep enqueuing and hold the accepted ids, a rescuer looks for expired leases, an operator resurrects whatever
died without deserving it, and a checker reads the promises. When the kills are done, two workers that nobody kills have
their jobs taken away under their hands (``haste``), so that they finish late; then they drain the rest.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from redrive import JobFilter
from redrive.domain.filters import PageRequest
from tests.faults.evidence import Held, account, placed_once
from tests.faults.handlers import HOPELESS, KILL_RUN, KINDS, QUEUE
from tests.faults.nursery import Child
from tests.faults.scene import Scene, patience
from tests.faults.waiting import Crew, until

CLAIM = "after claim commit"
START = "after start commit"
HANDLER = "in the handler"
RETURN = "between return and settle"
SETTLE = "after the settle is sent"
WINDOWS = {CLAIM: "claimed", START: "started", HANDLER: "", RETURN: "handler-returned", SETTLE: "settle-sent"}
"""Windows with the worker's moment; in the handler the handler itself does it."""
UP_TO = {CLAIM: 5, START: 5, HANDLER: 15, RETURN: 15, SETTLE: 8}
"""A worker dies at the nth time, n drawn from 1 to this: early and late in its life."""

BEAT, LEASE = 0.3, 1.5
RESCUE = 0.05
SLACK = 8.0
"""Seconds a rescue may take above the lease on a busy machine."""
BACKLOG = 60
MIX = [*KINDS, "fault.thread.v1", "fault.thread.v1", "fault.thread.v1"]


@dataclass(frozen=True, slots=True)
class Death:
    """One kill, and what it left."""

    window: str
    pid: int
    held: tuple[Held, ...]
    fetched: int
    unstarted: int
    """Processing, and the handler was never entered."""
    cut: int
    """Runs cut off in the handler."""
    ended: int
    """Runs that were over, their jobs still held."""

    @property
    def hit(self) -> bool:
        """Whether what was left proves the window. After a settle is sent, both are possible: applied or not."""
        match self.window:
            case "after claim commit":
                return self.fetched + self.unstarted > 0
            case "after start commit":
                return self.unstarted > 0
            case "in the handler":
                return self.cut > 0
            case "between return and settle":
                return self.ended > 0
            case _:
                return True


@dataclass
class Storm:
    """The kills of one scene, and the books of the test."""

    scene: Scene
    kills: int
    haste: int
    accepted: set[str] = field(default_factory=set)
    deaths: list[Death] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.app = self.scene.app
        self.evidence = self.scene.evidence
        self.desk = self.app.desk("operator")
        self._lock = threading.Lock()
        self._killed: set[int] = set()

    # -- those who take part -------------------------------------------------------------------------------------------

    def produce(self) -> None:
        """Single jobs and bulks of all kinds, some with a key that repeats; ids are kept once they are accepted."""
        if self.evidence.hot() > BACKLOG:
            return
        many = [
            self.app.item(random.choice(MIX), {"ms": random.randrange(8)}, queue=QUEUE)
            for _ in range(random.randrange(5, 30))
        ]
        handles = self.app.enqueue_many(many)
        key = f"key-{random.randrange(20)}"
        with_key = random.random() < 0.5
        handles.append(
            self.app.enqueue("fault.loop.v1", {"ms": 2}, queue=QUEUE, idempotency_key=key if with_key else None)
        )
        with self._lock:
            self.accepted.update(handle.id.hex for handle in handles)

    def rescue(self) -> None:
        """What every worker does too; here by somebody whom nobody kills."""
        found = self.app.store.rescue(
            zombie_timeout=LEASE, fetched_timeout=LEASE, rules=self.app.registry.rules, slot=15
        )
        self.counts["rescued"] += len(found)

    def operate(self) -> None:
        """Resurrect all that is dead but the hopeless, and look at them first, as a person would."""
        page = self.app.insight().jobs(JobFilter(), PageRequest(limit=200))
        zombies = [(job.id, job.version) for job in page.jobs if job.type != HOPELESS or job.reason != "fatal"]
        if zombies:
            answers = self.desk.resurrect_many(zombies, note="its worker was killed")
            self.counts["resurrected"] += sum(answer.ok for answer in answers)

    def look(self) -> None:
        """Conservation and the other promises, in the middle of it all."""
        with self._lock:
            accepted = set(self.accepted)
        assert placed_once(self.evidence, accepted) == []
        self.scene.promises()
        self.counts["looks"] += 1

    # -- kills ---------------------------------------------------------------------------------------------------------

    def rain(self) -> None:
        """All of it."""
        began = time.monotonic()
        with Crew() as crew:
            for action, pause in (
                (self.produce, 0.02),
                (self.produce, 0.03),
                (self.rescue, RESCUE),
                (self.operate, 0.1),
                (self.look, 0.2),
            ):
                crew.keep(action, pause)
            self._kill_all(crew)
            self.threshold()
            workers = [self.scene.start(**patience(BEAT, LEASE)) for _ in range(2)]
            self._hurry(crew)
        with Crew() as crew:
            crew.keep(self.rescue, RESCUE)
            crew.keep(self.operate, 0.1)
            until(self._drained, 90, why=lambda: (self.evidence.hot(), self.evidence.dead()))
            crew.check()
            assert [worker.finish() for worker in workers] == [0, 0]
        self.counts["seconds"] = round(time.monotonic() - began)

    def _kill_all(self, crew: Crew) -> None:
        order = [window for window, _ in zip(itertools.cycle(WINDOWS), range(self.kills), strict=False)]
        random.shuffle(order)
        alive: list[tuple[str, Child]] = []
        while order or alive:
            while order and len(alive) < 2:
                window = order.pop()
                alive.append((window, self._doomed(window)))
            until(lambda: crew.errors or any(child.ended.is_set() for _, child in alive), 60, why=_not_reached(alive))
            crew.check()
            for window, child in [found for found in alive if found[1].ended.is_set()]:
                alive.remove((window, child))
                assert child.code == -9, f"a worker to be killed {window} ended with {child.code}:\n{child.text()}"
                self._killed.add(child.pid)
                self.deaths.append(self._autopsy(window, child.pid))

    def _doomed(self, window: str) -> Child:
        nth = random.randint(1, UP_TO[window])
        moment = WINDOWS[window]
        armed = {"REDRIVE_TEST_MOMENT": f"{moment}:{nth}:kill"} if moment else {KILL_RUN: str(nth)}
        if window == SETTLE and random.random() < 0.5:
            armed |= {"REDRIVE_WORKER__CONCURRENCY": "1", "REDRIVE_WORKER__THREADS": "1"}  # settles of one job
        return self.scene.start(**patience(BEAT, LEASE), **armed)

    def _autopsy(self, window: str, pid: int) -> Death:
        held = self.evidence.held_by(pid)
        mine = [line for line in self.scene.lines() if line.pid == pid]
        begun = {line.key for line in mine if line.how == "in"}
        ended = {line.key for line in mine if line.how != "in"}
        processing = {row.key for row in held if row.started}
        return Death(
            window,
            pid,
            tuple(held),
            fetched=len(held) - len(processing),
            unstarted=len(processing - begun),
            cut=len(begun - ended),
            ended=len(processing & ended),
        )

    def threshold(self) -> None:
        """All that killed workers held is taken from them, neither too early nor too late."""
        until(lambda: not any(self.evidence.held_by(death.pid) for death in self.deaths), LEASE + SLACK)
        notes = self.evidence.notes()
        taken = {(note.key, note.lease): note.at for note in notes if note.kind == "zombie"}
        # PostgreSQL carries out what a worker sent before it died, also after somebody looked at what it held.
        settled = {note.key for note in notes if note.kind == "failed"} | set(self.evidence.archived().values())
        settled |= {line.key for line in self.scene.lines() if line.how == "snoozed"}
        waits = []
        for death in self.deaths:
            for row in death.held:
                if not row.started:
                    continue
                if (row.key, row.lease) not in taken:
                    assert row.key in settled, f"{row.key} was taken from {death.pid}, and nothing tells how"
                    self.counts["settled after death"] += 1
                    continue
                waits.append(taken[row.key, row.lease] - row.heartbeat)
                assert LEASE <= waits[-1] <= LEASE + SLACK, f"rescued {waits[-1]:.3f} s after its last heartbeat"
        self.counts["zombies"] = len(waits)
        self.counts["longest wait, ms"] = round(1000 * max(waits, default=0))

    def _hurry(self, crew: Crew) -> None:
        """Take jobs away from workers that are alive: what they do then is late."""

        def late() -> int:
            count = "SELECT count(*) FROM {s}job_ledger WHERE kind IN ('late_success', 'late_failure')"
            return int(self.evidence.query(count)[0][0])

        before = late()

        def enough() -> bool:
            crew.check()
            found = self.app.store.rescue(
                zombie_timeout=0.0, fetched_timeout=0.0, rules=self.app.registry.rules, slot=15
            )
            self.counts["taken away"] += len(found)
            return late() - before >= self.haste

        until(enough, 60)

    def _drained(self) -> bool:
        return self.evidence.hot() == 0 and {kind for kind, _ in self.evidence.dead().values()} <= {HOPELESS}

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def verdict(self) -> None:
        """Everything, when nothing moves any more."""
        lines = self.scene.lines()
        assert placed_once(self.evidence, self.accepted) == []
        self.scene.promises()
        assert account(self.evidence, lines, self._killed) == []
        dead = self.evidence.dead()
        assert set(dead.values()) <= {(HOPELESS, "fatal")}
        assert self.evidence.archived().keys() | dead.keys() == self.accepted
        kinds = Counter(note.kind for note in self.evidence.notes())
        self.counts.update({kind: kinds[kind] for kind in ("late_success", "late_failure", "failed")})
        self.counts["runs"] = sum(line.how == "in" for line in lines)
        assert self.counts["resurrected"] > 0
        assert self.counts["looks"] > 0

    def report(self, least: int) -> str:
        """The figures; a window with fewer than ``least`` hits is said to have failed."""
        counts = self.counts
        database = self.scene.url.partition(":")[0]
        lines = [
            f"kills on {database}: {len(self.deaths)} in {counts['seconds']} s, 2 workers at a time",
            f"  {len(self.accepted)} jobs accepted, none lost, none in two places; {counts['runs']} runs of handlers",
            f"  {counts['looks']} looks at all promises meanwhile; {counts['resurrected']} resurrections",
            f"  {counts['zombies']} zombies, rescued at most {counts['longest wait, ms']} ms after the last heartbeat"
            f" (lease {LEASE:g} s, heartbeat {BEAT:g} s)",
            f"  {counts['taken away']} jobs taken from live workers: {counts['late_success']} late successes and "
            f"{counts['late_failure']} late failures noted, none applied",
            f"  {'window':<28}{'hits':>6}   what was left: fetched, not entered, cut off, ended and not settled",
        ]
        for window in WINDOWS:
            of = [death for death in self.deaths if death.window == window]
            left = [sum(getattr(death, name) for death in of) for name in ("fetched", "unstarted", "cut", "ended")]
            few = f"   TOO FEW: at least {least}" if window in self.misses(least) else ""
            lines.append(f"  {window:<28}{sum(d.hit for d in of):>6}   {', '.join(map(str, left))}{few}")
        unread = sum(death.window == SETTLE and not death.ended for death in self.deaths)
        lines.append(
            f"  {SETTLE}: {unread} times all that had ended was settled, its answer unread;"
            f" {counts['settled after death']} jobs were still settled by the server after a worker's death"
        )
        return "\n".join(lines) + "\n"

    def misses(self, least: int) -> list[str]:
        """Windows without enough hits."""
        hits = Counter(death.window for death in self.deaths if death.hit)
        return [window for window in WINDOWS if hits[window] < least]


def _not_reached(alive: list[tuple[str, Child]]) -> Callable[[], str]:
    return lambda: "; ".join(f"not killed {window}:\n{child.text()}" for window, child in alive)
