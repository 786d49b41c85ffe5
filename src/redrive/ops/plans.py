"""Making plans and starting them: what was previewed is what runs.

A plan is built batch by batch, in constant memory, up to the moment it was begun; what dies later is not in it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, BinaryIO

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.edits import check_edit
from redrive.domain.errors import Conflict, InvalidField, NotFound
from redrive.domain.filter_json import dump
from redrive.domain.filters import Count, JobFilter
from redrive.domain.job import JobHead
from redrive.domain.operations import Operation, RunOptions
from redrive.domain.plans import SAMPLE, Action, Counts, Digest, Plan, PlanOptions, PlanState
from redrive.domain.states import Place
from redrive.store.bulk import Filled
from redrive.store.port import BATCH, Store

from .filter_text import parse_filter, write_filter
from .inputs import targets
from .lines import line_of

Told = Callable[[int], None]
"""Told how many jobs have been gone through."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan with what a person looks at before saying yes."""

    plan: Plan
    sample: tuple[JobHead, ...]
    arrived: Count
    arrived_ids: tuple[str, ...]
    command: str


class NotExported(Conflict):
    """A purge was to begin before anybody said what becomes of the evidence."""

    code = "not-exported"


class Plans:
    """Plans of one operator."""

    def __init__(self, store: Store, actor: Actor, *, payload_limit: int) -> None:
        self._store = store
        self._actor = actor
        self._payload_limit = payload_limit

    def make(
        self,
        action: Action | str,
        *,
        filter: JobFilter | str | None = None,
        ids: object = None,
        options: PlanOptions | Mapping[str, Any] | None = None,
        progress: Told | None = None,
    ) -> Plan:
        """Write down what ``action`` would touch: all that match ``filter`` now, or ``ids`` (with versions or not).

        A filter that does not parse, or that goes to another place than the action, is refused.
        """
        wanted = _action(action)
        if (filter is None) == (ids is None):
            raise InvalidField("filter", "is given together with ids, or neither is", expected="one of the two")
        given = self._options(wanted, options)
        found = None if filter is None else self._filter(wanted, filter)
        self.collect()
        plan = self._store.begin_plan(wanted, found, given, self._actor.name)
        digest = Digest(wanted, given, None if found is None else dump(found))
        skipped: Counter[str] = Counter()
        sampled: Counter[str] = Counter()
        matched = number = 0
        for number, filled in enumerate(self._matching(plan) if ids is None else self._named(plan, ids), 1):
            digest.add(filled.items)
            matched += len(filled.items)
            found_here = Counter(filled.found)
            if number == 1:
                sampled["unreadable"] = found_here.pop("unreadable", 0)
            skipped += found_here
            if progress is not None and number > 1:  # else it is over before anybody reads it
                progress(matched)
        if number <= 1:  # all payloads were looked at, not only those of the first batch
            skipped, sampled = skipped + sampled, Counter()
        missing = skipped.pop("not-found", 0)
        affected = matched - sum(skipped.values())
        if missing:
            skipped["not-found"] = missing
        return self._store.seal_plan(plan, digest.value(), Counts(matched, affected, dict(skipped), dict(+sampled)))

    def get(self, number: int) -> Plan:
        """A plan by its number."""
        plan = self._store.plan(number)
        if plan is None:
            raise NotFound("plan", number)
        return plan

    def preview(self, number: int) -> Preview:
        """A plan, some of its jobs as they are now, what has arrived since, and the command that would make it."""
        plan = self.get(number)
        sample = self._store.plan_heads(plan.id, limit=SAMPLE)
        arrived, ids = self._store.arrived_since(plan)
        return Preview(plan, tuple(sample), arrived, tuple(map(str, ids)), command(plan))

    def run(
        self,
        plan: Plan | int,
        *,
        digest: str | None = None,
        options: RunOptions | None = None,
        count: int | None = None,
        export: BinaryIO | None = None,
        exported: bool = False,
        note: str | None = None,
        progress: Told | None = None,
    ) -> tuple[Operation, bool]:
        """Start a plan's operation, or find the one it has (False); nothing has moved yet when this returns.

        ``digest`` is the plan's, at least its first 12 digits; a ``Plan`` brings its own. A purge needs ``count``, the
        number of jobs it says it deletes, and a file to ``export`` them to first, unless ``exported`` says that this
        was seen to, or is not wanted.
        """
        seen = plan if isinstance(plan, Plan) else self.get(plan)
        now = self.get(seen.number)
        given = seen.digest if digest is None and isinstance(plan, Plan) else digest
        if given is None:
            raise InvalidField("digest", "is missing", expected="the digest of the plan that was looked at")
        now.check_digest(given)
        chosen = (RunOptions() if options is None else options).check()
        if now.action is not Action.RESURRECT and replace(chosen, rate=None) != RunOptions():
            raise InvalidField("options", f"does not go with {now.action}", expected="rate")
        if now.action is Action.PURGE and now.state is not PlanState.RUN:
            self._before_purge(now, count, export, exported, progress)
        return self._store.start_operation(now, chosen, AuditDraft(self._actor, "run-plan", note))

    def collect(self) -> None:
        """Delete what is left of plans that nobody ran, a little at a time."""
        self._store.prune_plans()

    # -- inner ---------------------------------------------------------------------------------------------------------

    def _options(self, action: Action, options: PlanOptions | Mapping[str, Any] | None) -> PlanOptions:
        if isinstance(options, Mapping):
            known = {item.name for item in fields(PlanOptions)}
            if unknown := sorted(options.keys() - known):
                raise InvalidField(unknown[0], "is no option of a plan", expected=", ".join(sorted(known)))
            options = PlanOptions(**options)
        given = (options or PlanOptions()).check(action)
        edit = check_edit(given.edit, payload_limit=self._payload_limit)
        return replace(
            given, tags=edit.tags, labels=edit.labels, priority=edit.priority, queue=edit.queue, type=edit.type
        )  # fmt: skip

    def _filter(self, action: Action, wanted: JobFilter | str) -> JobFilter:
        first = action.places[0]
        if isinstance(wanted, str):
            wanted = parse_filter(wanted, now=self._store.now(), place=first)
        if wanted.check().place not in action.places:
            expected = " or ".join(f"place={place}" for place in action.places)
            raise InvalidField("place", f"{action} takes nothing from {wanted.place}", expected=expected)
        return wanted

    def _matching(self, plan: Plan) -> Iterator[Filled]:
        start, after, first = 1, None, True
        while first or after is not None:
            filled = self._store.fill_plan(plan, start, after, payloads=first)
            start, after, first = start + len(filled.items), filled.after, False
            yield filled

    def _named(self, plan: Plan, ids: object) -> Iterator[Filled]:
        start = 1
        rest = iter(targets(ids))
        while batch := list(islice(rest, BATCH)):
            filled = self._store.add_to_plan(plan, start, batch, payloads=start == 1)
            start += len(filled.items)
            yield filled

    def _before_purge(
        self, plan: Plan, count: int | None, export: BinaryIO | None, exported: bool, progress: Told | None
    ) -> None:
        if count != plan.counts.affected:
            problem = "is missing" if count is None else f"{count} is not how many jobs this plan deletes"
            raise InvalidField("count", problem, expected=f"{plan.counts.affected}, to say that it is meant")
        if export is not None:
            for number, line in enumerate(self._lines(plan), 1):
                export.write(line)
                if progress is not None and number % BATCH == 0:
                    progress(number)
            export.flush()
        elif not exported:
            raise NotExported(
                "a purge deletes the evidence: name a file to export it to first, or say it is not wanted"
            )

    def _lines(self, plan: Plan) -> Iterator[bytes]:
        after = 0
        while batch := self._store.plan_items(plan.id, after=after, limit=BATCH):
            for item in batch:
                record = self._store.find(item.job_id)
                # Another version will be skipped by the purge as well.
                if record is not None and record.head.place is Place.DLQ and record.head.version == item.version:
                    yield line_of(record)
            after = batch[-1].ordinal


def _action(action: Action | str) -> Action:
    try:
        return Action(action)
    except ValueError:
        raise InvalidField("action", f"{action!r} is none", expected=", ".join(Action)) from None


def command(plan: Plan) -> str:
    """The command that makes the same plan; times are pinned."""
    parts = ["redrive", "plan", plan.action.value]
    if plan.filter is not None:
        parts += ["--filter", write_filter(plan.filter)]
    else:
        parts.append("ID...")
    for name, value in plan.options.given().items():
        option = {"queue": "--to-queue", "type": "--to-type", "tags": "--tag", "labels": "--label"}.get(name)
        option = option or "--" + name.replace("_", "-")
        values = [f"{k}={v}" for k, v in value.items()] if isinstance(value, dict) else value
        for one in values if isinstance(values, list) else [values]:
            parts += [option] if one is True else [option, str(one)]
    return " ".join(part if part == "ID..." else shlex.quote(part) for part in parts)
