"""Rows of the result: what each says, how it comes from the figures of one pass, and its target."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Pass = Mapping[str, Mapping[str, float]]
"""The figures of one pass by measure."""


@dataclass(frozen=True)
class Row:
    """One line. `about` names the measures it needs, the first one is what `--only` calls it by."""

    title: str
    about: tuple[str, ...]
    value: Callable[[Pass], float]
    unit: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    other: str | None = None
    """The title of a row whose target, when met, does instead."""

    @property
    def target(self) -> str:
        words = {"at least": self.least, "at most": self.most, "more than": self.above}
        said = " and ".join(f"{word} {shown(bound, self.unit)}" for word, bound in words.items() if bound is not None)
        return f"{said}, or the other" if said and self.other else said

    def met(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
        )


def of(title: str, measure: str, figure: str = "rate", unit: str = "/s", **target: float) -> Row:
    """A figure as it is."""
    return Row(title, (measure,), lambda found: found[measure][figure], unit, **target)  # type: ignore[arg-type]


def of_bare(title: str, measure: str, **target: float) -> Row:
    """A rate against that of the bare loop just before it."""
    return Row(title, (measure,), lambda found: found[measure]["rate"] / found[measure]["bare"], **target)  # type: ignore[arg-type]


def ratio(title: str, measure: str, base: str, *, other: str | None = None, **target: float) -> Row:
    """A rate against another rate of the same pass."""

    def value(found: Pass) -> float:
        return found[measure]["rate"] / found[base]["rate"]

    return Row(title, (measure, base), value, other=other, **target)  # type: ignore[arg-type]


BULK = "enqueue_many, of pgqueuer's bulk enqueue"

ROWS: tuple[Row, ...] = (
    of("bare loop, batches of 500", "bare"),
    of("bare loop, CPU per job", "bare", "cpu", "us"),
    of("one worker at default settings, no-op async jobs", "worker"),
    of_bare("one worker, of bare loop", "worker", least=0.5),
    of("one worker, CPU per job", "worker", "cpu", "us", most=60),
    of("one worker, jobs per claim", "worker", "claim", ""),
    of("one worker, jobs per settle", "worker", "settle", ""),
    ratio("two workers, of one", "workers", "worker", above=1.0),
    of_bare("two workers, of bare loop", "workers"),
    Row(
        "started jobs beyond the slots, at worst, any drain",
        ("worker",),
        lambda found: max(figures["over"] for figures in found.values() if "over" in figures),
        most=0,
    ),
    of_bare("pgqueuer, batches of 1,000, of bare loop", "peer"),
    of("pgqueuer, CPU per job", "peer", "cpu", "us"),
    ratio("one worker, of pgqueuer", "worker", "peer"),
    Row("enqueue_many", ("enqueue",), lambda found: found["enqueue"]["rate"], "/s", least=30_000, other=BULK),
    ratio(BULK, "enqueue", "peer-enqueue", least=0.6, other="enqueue_many"),
    of("single enqueue", "single"),
    ratio("single enqueue, of pgqueuer's", "single", "peer-single"),
    of("idle worker, enqueue to handler start, p50", "latency", "p50", "ms", most=10),
    of("idle worker, p95", "latency", "p95", "ms"),
    of("idle worker, p99", "latency", "p99", "ms"),
    of_bare("sync handlers in 20 threads, of bare loop", "sync"),
    of("sync handlers, CPU per job", "sync", "cpu", "us"),
    of_bare("handlers that await 10 ms, of bare loop", "awaits"),
    Row(
        "handlers that await 10 ms, of what 100 slots allow",
        ("awaits",),
        lambda found: found["awaits"]["rate"] / (100 / 0.01),
    ),
    of_bare("failing handlers, all buried, of bare loop", "fails"),
    of("failing handlers, CPU per job", "fails", "cpu", "us"),
    of("SQLite, one worker", "sqlite"),
    of("SQLite, CPU per job", "sqlite", "cpu", "us"),
    of("SQLite, enqueue_many", "sqlite-enqueue"),
)


@dataclass(frozen=True)
class Line:
    """A row with its values, one of each pass."""

    row: Row
    values: tuple[float, ...]
    met: bool | None

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def lines(rows: Sequence[Row], passes: Sequence[Pass]) -> list[Line]:
    """The rows with their values, and whether their targets are met; one that another row stands in for has no word."""
    medians = {row.title: statistics.median(map(row.value, passes)) for row in rows}
    known = {row.title: row for row in rows}

    def met(row: Row) -> bool | None:
        if not row.target:
            return None
        if row.met(medians[row.title]):
            return True
        stand_in = known.get(row.other or "")
        return None if stand_in is not None and stand_in.met(medians[stand_in.title]) else False

    return [Line(row, tuple(map(row.value, passes)), met(row)) for row in rows]


def shown(value: float, unit: str) -> str:
    match unit:
        case "/s":
            return f"{value:,.0f}/s"
        case "":
            return f"{value:.2f}" if value < 10 else f"{value:.0f}"
        case _:
            return f"{value:.1f} {unit}"


def text(found: Sequence[Line]) -> str:
    """The table for a terminal: median, smallest to largest, target."""
    said = [("measure", "median", "min - max", "target", "")]
    for line in found:
        unit = line.row.unit
        verdict = {None: "", True: "met", False: "MISSED"}[line.met]
        span = f"{shown(min(line.values), unit)} - {shown(max(line.values), unit)}"
        said.append((line.row.title, shown(line.median, unit), span, line.row.target, verdict))
    widths = [max(len(row[column]) for row in said) for column in range(5)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:<{widths[3]}}  {row[4]}".rstrip()
        for row in said
    )
