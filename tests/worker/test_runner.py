"""What the worker holds: reasons to stop, answers of heartbeats, room."""

import asyncio

from redrive.domain.outcome import Cancelled
from redrive.store.port import Pulse
from redrive.worker.runner import Runner
from redrive.worker.running import Running, Stop

from .make import claimed, handler, until
from .shop import in_loop


class Bench:
    """A runner with handlers that wait."""

    def __init__(self, slots: int = 10):
        self.runner = Runner({"async": slots}, asyncio.get_running_loop())
        self.gate = asyncio.Event()
        self.told: list[int] = []
        self.handler = handler(self.wait)

    async def wait(self) -> None:
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.told.append(1)

    def hold(self, lease: int, *, begin: bool = True) -> Running:
        run = Running(claimed(lease=lease), self.handler)
        self.runner.held[run.pair] = run
        if begin:
            self.runner.begin([run])
        return run

    async def end(self) -> None:
        self.gate.set()
        await until(lambda: not self.runner.running)
        self.runner.close()


@in_loop
async def test_the_first_reason_to_stop_stands_and_each_is_told_to_the_handler():
    bench = Bench()
    run = bench.hold(1)
    await asyncio.sleep(0)
    bench.runner.stop(run, Stop.CANCEL)
    await until(lambda: len(bench.told) == 1)
    bench.runner.stop(run, Stop.TIMEOUT)
    await until(lambda: len(bench.told) == 2)
    assert run.stop is Stop.CANCEL
    await bench.end()
    bench.runner.stop(run, Stop.LOST)
    assert run.stop is Stop.CANCEL


@in_loop
async def test_a_pulse_tells_those_it_names_and_nobody_else():
    bench = Bench()
    lost, wanted, other, fetched = bench.hold(1), bench.hold(2), bench.hold(3), bench.hold(4, begin=False)
    unknown = (b"x" * 16, 5)
    bench.runner.pulse(
        Pulse(lost=frozenset({lost.pair, fetched.pair, unknown}), cancel=frozenset({wanted.pair, unknown}))
    )
    assert [run.stop for run in (lost, wanted, other, fetched)] == [Stop.LOST, Stop.CANCEL, None, Stop.LOST]
    await bench.end()


@in_loop
async def test_a_run_that_is_told_to_stop_before_its_first_line_ends_all_the_same():
    """A task that is cancelled before it ran would never run: no end, no slot, no settle."""
    bench = Bench(1)
    run = bench.hold(1)
    bench.runner.stop(run, Stop.CANCEL)
    await until(lambda: bench.runner.ends)
    (end,) = bench.runner.ends
    assert isinstance(end.outcome, Cancelled)
    assert bench.runner.free == {"async": 1}
    bench.runner.close()


@in_loop
async def test_a_run_that_has_ended_keeps_its_end_when_its_lease_is_lost():
    """Its settle is under way: the heartbeat may miss the row because that settle has moved it."""
    bench = Bench()
    run = bench.hold(1)
    await bench.end()
    bench.runner.pulse(Pulse(lost=frozenset({run.pair}), cancel=frozenset()))
    assert run.stop is None
    assert len(bench.runner.ends) == 1


@in_loop
async def test_room_is_announced_when_it_is_worth_a_claim():
    bench = Bench(10)
    announced: list[int] = []
    bench.runner.freed = lambda: announced.append(bench.runner.free["async"])
    gates = [asyncio.Event() for _ in range(10)]

    async def wait(n: int) -> None:
        await gates[n].wait()

    waits = handler(wait)
    bench.runner.begin(Running(claimed({"n": n}), waits) for n in range(10))
    bench.runner.hungry = True
    for gate in gates:
        gate.set()
        await until(lambda: bench.runner.free["async"] == gates.index(gate) + 1)  # noqa: B023
    assert announced == [1, 5, 6, 7, 8, 9, 10]
    assert bench.runner.idle.is_set()
    bench.runner.close()
