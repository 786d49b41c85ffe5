"""Outages on named moments of a worker's line: the connection is cut, the database goes away, falls silent, is slow or
crashes exactly then; and what must be true all the while and afterwards.

Two workers in this process reach the database through a proxy, everybody else directly. Each round arms one outage for
one moment, at a random one of the next times it is reached, waits until it has struck and the workers have felt it,
and lets the weather clear.
"""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
from structlog.testing import capture_logs

from redrive import JobFilter, Redrive, Retryable, Unavailable
from redrive.domain.filters import PageRequest
from redrive.domain.job import ClaimedJob
from redrive.domain.moves import Answer
from redrive.store.port import ClaimRequest
from redrive.worker.process import Worker
from scripts.services import PrivatePostgres
from tests.faults.evidence import account, placed_once
from tests.faults.handlers import HOPELESS, make
from tests.faults.load import Load
from tests.faults.proxy import Proxy
from tests.faults.scene import Scene
from tests.faults.serving import serving
from tests.faults.waiting import Crew, until

MOMENTS = ("claiming", "claimed", "started", "handler-returned", "settle-sending", "settle-sent", "settled")
"""``claiming``: the server has carried a claim out, and its answer is on the way."""
OUTAGES = ("cut", "away", "silent", "slow", "crash")
WINDOWS = [(moment, outage) for moment in MOMENTS for outage in OUTAGES]
UP_TO = 4


@dataclass
class Weather:
    """The outages of one scene, and the books of the test."""

    scene: Scene
    server: PrivatePostgres
    proxy: Proxy
    lease: float
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    felt: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: tuple[str, int, Callable[[], None]] | None = None
        self._struck = threading.Event()
        self.load = Load(self.scene)
        self.lines: list[Any] = []
        self.workers: list[Worker] = []

    def claiming(self, worker: Worker, claim: Callable[[ClaimRequest], list[ClaimedJob]]) -> None:
        """Make the worker's claims a moment of their own."""

        def call(request: ClaimRequest) -> list[ClaimedJob]:
            with self._lock:
                wanted = self._armed is not None and self._armed[0] == "claiming"
            if wanted:
                known = {lease for _, lease in worker.runner.held}
                self.proxy.hold()
                threading.Thread(target=self._carried_out, args=(request.worker_id, known), daemon=True).start()
            return claim(request)

        worker.line._store = _Claims(worker.line._store, call)

    def _carried_out(self, worker_id: str, known: set[int]) -> None:
        taken = "SELECT lease FROM {s}jobs_hot WHERE worker_id = ? AND state = 'taken'"
        try:
            for _ in range(50):
                if {lease for (lease,) in self.scene.evidence.query(taken, worker_id)} - known:
                    with self._lock:
                        if self._armed is not None:
                            self._armed = (self._armed[0], 1, self._armed[2])
                    self.reached("claiming")
                    return
        except psycopg.Error:
            pass  # the server has just crashed: not this claim
        finally:
            self.proxy.let_go()

    # -- outages -------------------------------------------------------------------------------------------------------

    def reached(self, name: str) -> None:
        """The hook of the workers."""
        with self._lock:
            if self._armed is None or self._armed[0] != name:
                return
            moment, left, strike = self._armed
            if left > 1:
                self._armed = (moment, left - 1, strike)
                return
            self._armed = None
        strike()
        self._struck.set()

    def round(self, moment: str, outage: str) -> None:
        """One outage, from its first moment to its end."""
        before = self._said("database-away")
        self._struck.clear()
        strike = {
            "cut": self.proxy.cut_all,
            "away": self.proxy.away,
            "silent": self.proxy.block,
            "slow": lambda: self.proxy.slow(0.02),
            "crash": self._crash,
        }[outage]
        with self._lock:
            self._armed = (moment, random.randint(1, UP_TO), strike)
        assert self._struck.wait(60), f"{moment} was not reached"
        self.hits[moment, outage] += 1
        began = time.monotonic()
        if outage in ("away", "cut", "crash"):
            until(lambda: self._said("database-away") > before, 30, why=lambda: self.lines[-20:])
        else:  # felt as waiting: from shorter than a lease to longer
            pause = random.uniform(0.2, 1.3) * self.lease
            until(lambda: time.monotonic() - began > pause)
        if outage == "crash":
            self.server.start()
        self.proxy.clear()
        self.felt[moment, outage] += self._said("database-away") > before
        until(self._calm, 60, why=lambda: self.lines[-20:])

    def _crash(self) -> None:
        self.server.stop("immediate")

    def _said(self, event: str) -> int:
        return sum(line["event"] == event for line in list(self.lines))

    def _calm(self) -> bool:
        """Every worker has come through again, with all that failed."""
        return all(not worker.outage.away for worker in self.workers)

    # -- everybody -----------------------------------------------------------------------------------------------------

    def rage(self, rounds: list[tuple[str, str]]) -> None:
        """All of it, with work going on."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            self.lines = stack.enter_context(capture_logs())
            crew = stack.enter_context(Crew())
            for _ in range(2):
                app: Redrive = stack.enter_context(contextlib.closing(make(self.proxy.url)))
                worker = stack.enter_context(serving(app))
                self.claiming(worker, app.store.claim)
                self.workers.append(worker)
            crew.keep(self._enqueue, 0.01)
            crew.keep(self._operate, 0.1)
            for moment, outage in rounds:
                self.round(moment, outage)
                crew.check()
            crew.end()
            crew.check()
            with Crew() as last:
                last.keep(self._operate, 0.1)
                until(self._drained, 90, why=lambda: (self.scene.evidence.hot(), self.lines[-20:]))
        self.counts["seconds"] = round(time.monotonic() - began)

    def _enqueue(self) -> None:
        with self._away_is_no_error():
            self.load.enqueue()

    def _operate(self) -> None:
        with self._away_is_no_error():
            page = self.scene.app.insight().jobs(JobFilter(), PageRequest(limit=200))
            dead = [(job.id, job.version) for job in page.jobs if job.type != HOPELESS]
            if dead:
                answers = self.scene.app.desk("operator").resurrect_many(dead, note="its worker was cut off")
                self.counts["resurrected"] += sum(answer.ok for answer in answers)

    @staticmethod
    @contextlib.contextmanager
    def _away_is_no_error() -> Iterator[None]:
        with contextlib.suppress(Unavailable, Retryable):
            yield

    def _drained(self) -> bool:
        return self.scene.evidence.hot() == 0 and not [
            kind for kind, _ in self.scene.evidence.dead().values() if kind != HOPELESS
        ]

    # -- the verdict ---------------------------------------------------------------------------------------------------

    def verdict(self) -> None:
        """Everything, when nothing moves any more."""
        evidence = self.scene.evidence
        assert placed_once(evidence, self.load.accepted) == []
        self.scene.promises()
        assert account(evidence, self.scene.lines(), set()) == []
        wrong = [line for line in self.lines if line.get("log_level") == "error"]
        assert wrong == []
        flood = Counter(line["event"] for line in self.lines)
        assert flood["database-away"] <= 6 * len(self.workers) * self.hits.total(), "a few lines for each outage"

    def report(self) -> str:
        """The figures."""
        answers: Counter[Answer] = sum((worker.settler.answers for worker in self.workers), Counter())
        kinds = Counter(note.kind for note in self.scene.evidence.notes())
        said = Counter(line["event"] for line in self.lines)
        lines = [
            f"outages on named moments: {self.hits.total()} in {self.counts['seconds']} s, 2 workers through a proxy,"
            f" lease {self.lease:g} s",
            f"  {len(self.load.accepted)} jobs accepted, none lost, none in two places;"
            f" {len(self.load.unknown)} enqueues unanswered",
            f"  {sum(line.how == 'in' for line in self.scene.lines())} runs of handlers;"
            f" settles: {answers[Answer.APPLIED]} applied, {answers[Answer.ALREADY]} already applied,"
            f" {answers[Answer.STALE]} refused",
            f"  {said['claims-taken-up']} lost claims taken up; {kinds['zombie']} zombies, {kinds['late_success']} late"
            f" successes, {kinds['late_failure']} late failures; {self.counts['resurrected']} resurrections",
            f"  {said['database-away']} lines of database-away, {said['database-back']} of database-back",
            f"  {'moment':<18}" + "".join(f"{outage:>12}" for outage in OUTAGES) + "   hits (said as outages)",
        ]
        for moment in MOMENTS:
            cells = [f"{self.hits[moment, outage]} ({self.felt[moment, outage]})" for outage in OUTAGES]
            lines.append(f"  {moment:<18}" + "".join(f"{cell:>12}" for cell in cells))
        return "\n".join(lines) + "\n"


class _Claims:
    """A store whose claims go another way."""

    def __init__(self, store: object, claim: Callable[[ClaimRequest], list[ClaimedJob]]) -> None:
        self._store = store
        self.claim = claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
