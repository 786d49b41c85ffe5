"""Which jobs a bulk command means: ids, or a filter; a filter is walked once, at the versions that were seen."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from redrive.domain.filters import JobFilter
from redrive.domain.plans import Action, Plan
from redrive.domain.states import Place
from redrive.ops.filter_text import parse_filter

from . import values
from .common import REFUSED, Session, confirm, usage
from .output import Counting, remark

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Jobs by id; or use the filters.")]
ReasonName = Annotated[str | None, typer.Option("--reason", help="Only jobs dead for this reason.")]
Incident = Annotated[str | None, typer.Option("--incident", help="Only jobs of this incident.")]
Tag = Annotated[str | None, typer.Option("--with-tag", help="Only jobs with this tag.")]
Label = Annotated[str | None, typer.Option("--with-label", metavar="NAME=VALUE", help="Only jobs with this label.")]
Words = Annotated[str | None, typer.Option("--q", help="Words in id, type, error type or message.")]
Cancelled = Annotated[bool, typer.Option("--cancelled", help="Cancelled jobs as well.")]
FailedAfter = Annotated[
    str | None, typer.Option("--failed-after", metavar="TIME", help="2026-04-30T14:32 (UTC), or 2h ago as 2h.")
]
FailedBefore = Annotated[str | None, typer.Option("--failed-before", metavar="TIME", help="The same, upper bound.")]
Include = Annotated[
    list[str] | None, typer.Option("--include", metavar="FINDING", help="Move jobs in spite of this: unreadable.")
]
Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="TEXT", help="Such as 'reason=zombie queue=mail failed_after=2h', or all."),
]


def dead(
    *,
    queue: str | None = None,
    type: str | None = None,
    reason: str | None = None,
    incident: str | None = None,
    tag: str | None = None,
    label: str | None = None,
    q: str | None = None,
    failed_after: str | None = None,
    failed_before: str | None = None,
    cancelled: bool = False,
) -> JobFilter:
    """A filter of the dead letter queue from options."""
    return JobFilter(
        place=Place.DLQ,
        queue=queue,
        type=type,
        reason=values.reason(reason),
        incident=incident,
        tag=tag,
        label=values.label(label),
        q=q,
        failed_after=values.moment("failed_after", failed_after),
        failed_before=values.moment("failed_before", failed_before),
        cancelled=cancelled,
    ).check()


def selected(session: Session, text: str | None, **options: Any) -> JobFilter:
    """The filter of a bulk action: --filter, or the options of dlq list; never none at all."""
    wanted = dead(**options)
    filtered = wanted != JobFilter(place=wanted.place)
    if text is not None:
        if filtered:
            usage("give --filter or the options for single conditions, not both")
        return parse_filter(text, now=session.store.now())
    if not filtered:
        usage("which jobs? give ids, --filter, or options such as --reason, --type, --queue, --incident, --q")
    return wanted


def not_both(*filters: object) -> None:
    """Refuse filters beside ids."""
    if any(one not in (None, False) for one in filters):
        usage("give ids or filters, not both")


def planned(
    session: Session,
    action: Action,
    wanted: JobFilter,
    options: Mapping[str, Any],
    *,
    yes: bool = False,
    count: int | None = None,
) -> Plan | None:
    """A plan that a person agreed to; None where nothing matches. A purge is agreed to by typing its number."""
    counting = Counting("planned")
    plan = session.desk.plans.make(action, filter=wanted, options=options, progress=counting)
    counting.end()
    counts = plan.counts
    if counts.matched == 0:
        remark("no job matches")
        return None
    for name, number in (*sorted(counts.skipped.items()), *sorted(counts.sampled.items())):
        remark(f"{number} will be skipped: {name}")
    if action is Action.PURGE:
        if count is None:
            count = ask_number(f"delete {jobs(counts.affected)} for good? type the number:")
        if count != counts.affected:
            remark(f"nothing was done: the plan deletes {counts.affected}, not {count}")
            raise typer.Exit(REFUSED)
    else:
        confirm(f"{action} {jobs(counts.affected)}?", yes=yes)
    return plan


def jobs(number: int) -> str:
    """``3 dead jobs``."""
    return f"{number} dead job{'s' if number != 1 else ''}"


def ask_number(question: str) -> int | None:
    """What a person types; without a terminal only an option can answer."""
    if not sys.stdin.isatty():
        usage("this asks for the number of jobs: add --count where nobody can answer")
    sys.stderr.write(question + " ")
    sys.stderr.flush()
    typed = sys.stdin.readline().strip()
    return int(typed) if typed.isdecimal() and typed.isascii() else None
