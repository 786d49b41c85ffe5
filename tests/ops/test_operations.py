"""Operations on both databases: owners, reins, pace, canaries, taking back. Time is the tests' own."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from redrive import InvalidField, NotAllowed, Redrive, Spot
from redrive.domain.operations import LEASE, Operation, OperationState
from redrive.ops.operations import Runner
from redrive.ops.service import Desk
from redrive.store.sql.tables import jobs_dlq
from redrive.store.sql.tables_later import operations
from tests.ops.crowd import die
from tests.ops.test_plans import kept, spots
from tests.store.rows import Rows


class Clock:
    """A clock that goes on when somebody waits, and tells who moved what in which second."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waiting: Callable[[], object] | None = None

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += max(seconds, 0.001)
        if self.waiting is not None:
            self.waiting()


def begin(desk: Desk, text: str = "queue=q", **options: Any) -> Operation:
    return desk.run(desk.plan("resurrect", filter=text), wait=False, **options)


def serving(app: Redrive, clock: Clock, *, broken: Callable[[], bool]) -> list[int]:
    """A worker that runs everything there is whenever the operation waits."""
    runs: list[int] = []

    @app.job("t", queue="q")
    def handler() -> None:
        runs.append(1)
        if broken():
            raise ValueError("still broken")

    clock.waiting = lambda: app.worker().run(burst=True)
    return runs


# -- owners ------------------------------------------------------------------------------------------------------------


def test_one_owner_by_lease(app, desk):
    ids = die(app, 30)
    operation = begin(desk)
    store = app.store
    lease = store.take_operation(operation.id, "one", lease=LEASE)
    assert lease is not None
    assert store.take_operation(operation.id, "two", lease=LEASE) is None
    assert store.advance(operation.id, lease, 10).rows == 10
    # It was silent for too long: another takes over, and its own next batch does nothing.
    later = store.take_operation(operation.id, "two", lease=-1.0)
    assert later is not None
    lost = store.advance(operation.id, lease, 10)
    assert (lost.ours, lost.rows) == (False, 0)
    assert store.leave_out(operation.id, lease, "x").ours is False
    store.halt(operation.id, lease, "not mine")
    assert store.advance(operation.id, later, 10).rows == 10
    store.let_go(operation.id, lease)  # not its to give
    assert store.take_operation(operation.id, "three", lease=LEASE) is None
    store.let_go(operation.id, later)
    assert store.advance(operation.id, later, 10).rows == 0
    done = desk.run(desk.plans.get(operation.plan))
    assert (done.progress.moved, done.state) == (30, OperationState.DONE)
    assert spots(app, ids)[Spot.PENDING] == 30
    kept(app)


def test_a_command_follows_what_somebody_else_runs(app, desk):
    die(app, 30)
    operation = begin(desk)
    lease = app.store.take_operation(operation.id, "worker", lease=LEASE)
    assert lease is not None
    told: list[int] = []
    clock = Clock()
    clock.waiting = lambda: app.store.advance(operation.id, lease, 10)
    done = Runner(app.store, wait=clock.wait, clock=clock).run(operation.number, told=lambda one: told.append(one.done))
    assert done.state is OperationState.DONE
    assert told == [0, 10, 20, 30, 30]


@pytest.mark.slow
def test_a_worker_runs_what_nobody_runs(app, desk):
    ids = die(app, 50)
    operation = begin(desk)
    done = threading.Event()

    @app.job("t", queue="q")
    def handler() -> None:
        if len(ended) == 49:
            done.set()
        ended.append(1)

    ended: list[int] = []
    worker = app.worker()
    import asyncio

    async def serve() -> None:
        stop = asyncio.Event()
        serving = asyncio.create_task(worker.serve(stop))
        await asyncio.to_thread(done.wait, 30)
        stop.set()
        await serving

    asyncio.run(serve())
    assert spots(app, ids)[Spot.ARCHIVE] == 50
    found = desk.operations.get(operation.number)
    assert found.progress.moved == 50
    assert desk.operations.outcomes(found).succeeded == 50
    kept(app)


def test_a_round_looks_after_several_and_lets_go(app, desk):
    die(app, 30), die(app, 30, queue="r")
    first, second = begin(desk, rate=20), begin(desk, "queue=r")
    clock = Clock()
    runner = Runner(app.store, wait=clock.wait, clock=clock)
    assert runner.round() >= 30
    assert desk.operations.get(second.number).state is OperationState.DONE
    stopped = runner.round(lambda: True)
    assert stopped == 0
    assert desk.operations.get(first.number).owner is None
    while desk.operations.get(first.number).state is OperationState.RUNNING:
        runner.round()
    assert runner.round() == 0


# -- reins -------------------------------------------------------------------------------------------------------------


def test_pause_resume_cancel_between_batches(app, desk):
    ids = die(app, 40)
    operation = begin(desk)
    lease = app.store.take_operation(operation.id, "me", lease=LEASE)
    assert lease is not None
    app.store.advance(operation.id, lease, 10)
    assert desk.operations.pause(operation.number, note="lunch").state is OperationState.PAUSED
    assert desk.operations.pause(operation.number).state is OperationState.PAUSED
    held = app.store.advance(operation.id, lease, 10)
    assert (held.state, held.rows) == (OperationState.PAUSED, 0)
    assert app.store.take_operation(operation.id, "me", lease=-1.0) is None
    assert Runner(app.store).run(operation.number).state is OperationState.PAUSED

    assert desk.operations.resume(operation.number).state is OperationState.RUNNING
    again = app.store.take_operation(operation.id, "me", lease=LEASE)
    assert again is not None
    app.store.advance(operation.id, again, 10)
    ended = desk.operations.cancel(operation.number)
    assert (ended.state, ended.cursor, ended.left) == (OperationState.CANCELLED, 20, 20)
    assert ended.finished_at is not None
    assert app.store.advance(operation.id, again, 10).rows == 0
    assert (spots(app, ids)[Spot.PENDING], spots(app, ids)[Spot.DLQ]) == (20, 20)
    with pytest.raises(NotAllowed, match="what it did is done"):
        desk.operations.resume(operation.number)
    actions = [one.action for one in app.store.audit_entries(target=f"operation {operation.number}")]
    assert actions == ["cancel-operation", "resume-operation", "pause-operation", "run-plan"]
    kept(app)


def test_take_back_what_nobody_started(app, desk):
    ids = die(app, 20)
    before = {job: app.store.head(job) for job in ids}
    operation = begin(desk, hold=600)
    lease = app.store.take_operation(operation.id, "me", lease=LEASE)
    assert lease is not None
    app.store.advance(operation.id, lease, 15)
    assert spots(app, ids)[Spot.SCHEDULED] == 15  # until the hold is over none starts
    desk.run_now(ids[:3])

    @app.job("t", queue="q")
    def handler() -> None: ...

    app.worker().run(burst=True)
    assert desk.operations.take_back(operation.number) == (12, 0)
    assert desk.operations.get(operation.number).state is OperationState.CANCELLED
    assert (spots(app, ids)[Spot.ARCHIVE], spots(app, ids)[Spot.DLQ]) == (3, 17)
    for job in ids[3:15]:
        was, head = before[job], app.store.head(job)
        for name in ("reason", "error_type", "error_message", "failed_at", "life", "attempt", "operation_id"):
            assert getattr(head, name) == getattr(was, name), name
    outcomes = desk.operations.outcomes(desk.operations.get(operation.number))
    assert (outcomes.succeeded, outcomes.died_again, outcomes.moved_on) == (3, 0, 12)
    assert desk.operations.take_back(operation.number) == (0, 0)
    kept(app)


# -- pace --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_rate_holds_in_every_second(lite):
    die(lite, 200)
    clock = Clock()
    moves: list[tuple[float, int]] = []
    advance = lite.store.advance

    def watched(*arguments: Any, **options: Any) -> Any:
        done = advance(*arguments, **options)
        moves.append((clock.now, done.rows))
        return done

    lite.store.advance = watched
    desk = lite.desk("ann")
    operation = begin(desk, rate=50)
    # Another owner takes over in the middle: the rate holds over both.
    first = Runner(lite.store, wait=clock.wait, clock=clock)
    first.run(operation.number, stopping=lambda: sum(rows for _, rows in moves) >= 90)
    assert Runner(lite.store, wait=clock.wait, clock=clock).run(operation.number).progress.moved == 200
    for begun, _ in moves:
        assert sum(rows for at, rows in moves if begun <= at < begun + 1.0) <= 55
    assert 3.5 < moves[-1][0] - moves[0][0] < 5.0


def test_a_canary_halts_while_the_handler_is_broken(app, desk):
    ids = die(app, 60)
    clock = Clock()
    runs = serving(app, clock, broken=lambda: True)
    operation = begin(desk, canary=5)
    runner = Runner(app.store, wait=clock.wait, clock=clock)
    halted = runner.run(operation.number)
    assert halted.state is OperationState.HALTED
    assert "5 of 5 jobs failed, and the limit is 10%" in halted.progress.why
    assert len(runs) == 5
    assert {app.store.head(job).version for job in ids[5:]} == {3}  # the rest was not touched
    outcomes = desk.operations.outcomes(halted)
    assert (outcomes.died_again, outcomes.waiting) == (5, 0)
    (entry,) = [one for one in app.store.audit_entries() if one.action == "halt-operation"]
    assert entry.details["why"] == halted.progress.why
    with pytest.raises(NotAllowed):
        desk.operations.pause(operation.number)


def test_a_canary_grows_and_its_operation_halts_when_it_breaks_later(lite):
    ids = die(lite, 160)
    clock = Clock()
    broken: list[int] = []
    runs = serving(lite, clock, broken=lambda: bool(broken))
    desk = lite.desk("ann")
    operation = begin(desk, canary=5)
    gates: list[int] = []

    def told(progress: Any) -> None:
        if progress.gate not in gates:
            gates.append(progress.gate)
        if progress.moved >= 40:
            broken.append(1)

    halted = Runner(lite.store, batch=10, wait=clock.wait, clock=clock).run(operation.number, told=told)
    assert gates == [0, 5, 15, 115]
    assert halted.state is OperationState.HALTED
    assert len(runs) <= 115
    # Resumed after a repair it begins with a canary again, and goes through.
    broken.clear()
    desk.operations.resume(operation.number)
    done = Runner(lite.store, batch=50, wait=clock.wait, clock=clock).run(operation.number)
    assert (done.state, done.progress.moved) == (OperationState.DONE, 160)
    lite.worker().run(burst=True)
    assert len(runs) == len(ids)


def test_it_stops_itself_without_a_canary(lite):
    die(lite, 300)
    clock = Clock()
    runs = serving(lite, clock, broken=lambda: True)
    desk = lite.desk("ann")
    operation = begin(desk, rate=100, stop_at=0.2)
    halted = Runner(lite.store, wait=clock.wait, clock=clock).run(operation.number)
    assert halted.state is OperationState.HALTED
    assert 20 <= len(runs) <= 60


def test_options_out_of_range(lite):
    desk = lite.desk("ann")
    die(lite, 1)
    plan = desk.plan("resurrect", filter="all")
    for options in ({"rate": 0}, {"rate": float("nan")}, {"canary": 0}, {"canary": 1.5}, {"stop_at": 2}, {"hold": -1}):
        with pytest.raises(InvalidField):
            desk.run(plan, **options)
    assert lite.store.operations() == []


# -- what the database refuses -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_row_that_cannot_be_moved_is_left_out_and_the_rest_goes_on(lite):
    ids = die(lite, 30)
    rows = Rows(lite.store)
    rows.sql(f"CREATE TRIGGER no BEFORE DELETE ON jobs_dlq WHEN OLD.id = x'{ids[13].hex}' "
             "BEGIN SELECT RAISE(ABORT, 'this one stays'); END")  # fmt: skip
    done = lite.desk("ann").run(lite.desk("ann").plan("resurrect", filter="all"))
    assert (done.progress.moved, done.progress.failed, done.state) == (29, 1, OperationState.DONE)
    (left,) = lite.desk("ann").operations.left_out(done)
    assert (left.job_id, left.result) == (ids[13], "failed")
    assert "this one stays" in left.why
    assert rows.count(jobs_dlq) == 1
    assert rows.count(operations) == 1
