"""The desk: what an operator does to jobs, once for every face. Each action and its audit entry commit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, BinaryIO
from uuid import UUID

from uuid_utils.compat import uuid7

from redrive.domain.audit import Actor, AuditDraft
from redrive.domain.edits import UNSET, JobEdit, Unset, check_edit, check_name, check_word
from redrive.domain.errors import Conflict, InvalidField, KeyHeld, NotAllowed, NotFound, VersionChanged
from redrive.domain.filters import JobFilter
from redrive.domain.job import JobRecord, Revision
from redrive.domain.lifecycle import Wish
from redrive.domain.moves import Answered, Skipped
from redrive.domain.operations import Operation, RunOptions
from redrive.domain.plans import Action, Plan
from redrive.domain.states import Verb
from redrive.store.port import BATCH, CircuitView, QueueChange, QueueInfo, ScheduleView, Store, WorkerView

from .inputs import JobId, RunAfter, Target, check_slots, check_version, due, job_id, payload_or_unset, targets
from .operations import Operations, Runner
from .plans import Plans

LONGEST_TIMEOUT = 31_536_000
Progress = Callable[[int], None]
"""Told after each batch how many jobs have been gone through so far."""


class Desk:
    """One operator at work. ``actor`` is a name, or an ``Actor`` where the face knows role and channel."""

    def __init__(
        self,
        store: Store,
        actor: Actor | str,
        *,
        payload_limit: int = 1_000_000,
        shortest_timeout: float = 30.0,
        batch: int = BATCH,
    ) -> None:
        self.store = store
        self.actor = actor if isinstance(actor, Actor) else Actor(actor)
        self.payload_limit = payload_limit
        self.shortest_timeout = shortest_timeout
        self.batch = min(batch, BATCH)

    # -- one job -------------------------------------------------------------------------------------------------------

    def get(self, job: JobId) -> JobRecord:
        """One job wherever it is, whole: payload, ledger, revisions."""
        identity = job_id(job)
        record = self.store.find(identity)
        if record is None:
            raise NotFound("job", identity)
        return record

    def edit(
        self,
        job: JobId,
        *,
        payload: object = UNSET,
        content_type: str | Unset = UNSET,
        tags: Sequence[str] | Unset = UNSET,
        labels: Mapping[str, str] | Unset = UNSET,
        priority: int | Unset = UNSET,
        idempotency_key: str | Unset | None = UNSET,
        version: int | None = None,
        note: str | None = None,
    ) -> Answered:
        """Change what a waiting or dead job carries, where it is; the old content becomes a revision.

        ``payload`` is bytes, text, or anything that is JSON. An edit that changes nothing writes nothing, and answers
        ``unchanged``.
        """
        edit = self._edit(
            payload=payload,
            content_type=content_type,
            tags=tags,
            labels=labels,
            priority=priority,
            idempotency_key=idempotency_key,
        )
        return self._one(Wish(Verb.EDIT, edit), job, version, note)

    def resurrect(
        self,
        job: JobId,
        *,
        payload: object = UNSET,
        content_type: str | Unset = UNSET,
        tags: Sequence[str] | Unset = UNSET,
        labels: Mapping[str, str] | Unset = UNSET,
        priority: int | Unset = UNSET,
        idempotency_key: str | Unset | None = UNSET,
        queue: str | Unset = UNSET,
        type: str | Unset = UNSET,
        run_after: RunAfter = None,
        drop_key: bool = False,
        revision: int | None = None,
        version: int | None = None,
        note: str | None = None,
    ) -> Answered:
        """Send a dead job back into the normal path with a fresh life, changed on the way or not.

        ``revision`` takes the payload of an earlier revision; ``drop_key`` gives the idempotency key up where a live
        job of the type holds it.
        """
        if revision is not None:
            if not isinstance(payload, Unset):
                raise InvalidField("revision", "is given together with a payload", expected="one of the two")
            record = self.get(job)
            old = _revision(record, revision)
            payload, content_type = old.payload, old.content_type
            version = record.head.version if version is None else version
        edit = self._edit(
            payload=payload,
            content_type=content_type,
            tags=tags,
            labels=labels,
            priority=priority,
            idempotency_key=idempotency_key,
            queue=queue,
            type=type,
        )
        return self._one(Wish(Verb.RESURRECT, edit, due(run_after), drop_key), job, version, note)

    def copy(self, job: JobId, *, drop_key: bool = False, note: str | None = None) -> UUID:
        """Enqueue what an archived job carried once more, as a new job; its id is the answer.

        Payload, tags, labels, priority and keys are those of the old one; ``KeyHeld`` where a live job holds its
        idempotency key, which ``drop_key`` leaves out. The ledger of each tells of the other.
        """
        identity, new = job_id(job), uuid7()
        answer = self.store.copy(identity, new, AuditDraft(self.actor, "copy", note), drop_key=drop_key)
        if answer.ok:
            return new
        head = self.store.head(identity)
        if answer.skipped is Skipped.NOT_FOUND or head is None:
            raise NotFound("job", identity)
        if answer.holder is not None:
            raise KeyHeld(head.idempotency_key or "", answer.holder)
        raise NotAllowed("copy", head.spot.value, answer.why)

    # -- many jobs -----------------------------------------------------------------------------------------------------

    def resurrect_many(
        self,
        ids: Iterable[Target],
        *,
        tags: Sequence[str] | Unset = UNSET,
        priority: int | Unset = UNSET,
        queue: str | Unset = UNSET,
        type: str | Unset = UNSET,
        run_after: RunAfter = None,
        drop_key: bool = False,
        note: str | None = None,
        progress: Progress | None = None,
    ) -> list[Answered]:
        """Send dead jobs back, in batches; each answer says what became of that id."""
        edit = self._edit(tags=tags, priority=priority, queue=queue, type=type)
        return self._all(Wish(Verb.RESURRECT, edit, due(run_after), drop_key), ids, note, progress)

    def take_back(
        self, ids: Iterable[Target] | JobId, *, note: str | None = None, progress: Progress | None = None
    ) -> list[Answered]:
        """Put jobs that were resurrected and have not started since back where they were."""
        return self._all(Wish(Verb.TAKE_BACK), ids, note, progress)

    def cancel(
        self, ids: Iterable[Target] | JobId, *, note: str | None = None, progress: Progress | None = None
    ) -> list[Answered]:
        """Take unwanted work out; a running handler is asked to stop (the answer is then ``requested``)."""
        return self._all(Wish(Verb.CANCEL), ids, note, progress)

    def isolate(
        self, ids: Iterable[Target] | JobId, *, note: str | None = None, progress: Progress | None = None
    ) -> list[Answered]:
        """Take suspect work out of the way, to be judged."""
        return self._all(Wish(Verb.ISOLATE), ids, note, progress)

    def run_now(
        self, ids: Iterable[Target] | JobId, *, note: str | None = None, progress: Progress | None = None
    ) -> list[Answered]:
        """Let scheduled jobs start at once."""
        return self._all(Wish(Verb.RUN_NOW), ids, note, progress)

    def purge(
        self, ids: Iterable[Target] | JobId, *, note: str | None = None, progress: Progress | None = None
    ) -> list[Answered]:
        """Delete dead or archived jobs with their trail, for good; the audit keeps hashes of what was removed."""
        return self._all(Wish(Verb.PURGE), ids, note, progress)

    def purge_archive(
        self, older_than: timedelta | datetime, *, note: str | None = None, progress: Progress | None = None
    ) -> int:
        """Delete archived jobs that finished before that time (or that long ago), in batches; returns how many."""
        moment = self._moment(older_than)
        draft = AuditDraft(self.actor, "purge-archive", note)
        total = 0
        while removed := self.store.purge_archive(moment, draft, limit=self.batch):
            total += removed
            if progress is not None:
                progress(total)
        return total

    def act(
        self, wish: Wish, jobs: Iterable[tuple[UUID, int | None]], *, note: str | None = None
    ) -> Iterator[list[Answered]]:
        """One wish for any number of jobs, a batch at a time: each batch has committed when its answers come out.

        A crash between two batches leaves whole batches. ``jobs`` may be a generator: memory does not grow with it.
        """
        draft = AuditDraft(self.actor, wish.verb.value, note)
        rest = iter(jobs)
        while batch := list(islice(rest, self.batch)):
            yield self.store.operate(wish, batch, draft)

    # -- plans -------------------------------------------------------------------------------------------------------

    @property
    def plans(self) -> Plans:
        """Making and looking at plans."""
        return Plans(self.store, self.actor, payload_limit=self.payload_limit)

    @property
    def operations(self) -> Operations:
        """Looking at operations and steering them."""
        return Operations(self.store, self.actor)

    def plan(
        self,
        action: Action | str,
        *,
        filter: JobFilter | str | None = None,
        ids: Iterable[Target] | None = None,
        **options: Any,
    ) -> Plan:
        """Write down what ``action`` would touch: exact ids and versions, counts and a digest. Nothing moves.

        ``options`` are those of ``PlanOptions``: ``tags``, ``labels``, ``priority``, ``queue``, ``type``, ``delay``
        (seconds), ``drop_key``, ``include``.
        """
        return self.plans.make(action, filter=filter, ids=ids, options=options)

    def run(
        self,
        plan: Plan | int,
        *,
        digest: str | None = None,
        count: int | None = None,
        export: BinaryIO | None = None,
        exported: bool = False,
        note: str | None = None,
        wait: bool = True,
        **options: Any,
    ) -> Operation:
        """Carry a plan out, in this thread to its end, or with ``wait`` False in whichever worker takes it up.

        ``options`` are those of ``RunOptions``: ``rate``, ``canary``, ``stop_at``, ``hold``. Running a plan again
        changes nothing: it goes on with the operation it has. See ``Plans.run`` for the rest.
        """
        operation, _ = self.plans.run(
            plan, digest=digest, options=RunOptions(**options), count=count, export=export, exported=exported, note=note
        )
        return Runner(self.store, batch=self.batch).run(operation.number) if wait else operation

    # -- queues --------------------------------------------------------------------------------------------------------

    def pause(self, queue: str, *, version: int | None = None, note: str | None = None) -> QueueInfo:
        """Stop starts from a queue; when this returns, none commits any more."""
        return self._queue(queue, QueueChange(paused=True), "pause", version, note)

    def resume(self, queue: str, *, version: int | None = None, note: str | None = None) -> QueueInfo:
        """Let a paused queue go on."""
        return self._queue(queue, QueueChange(paused=False), "resume", version, note)

    def set_queue(
        self, queue: str, change: QueueChange, *, version: int | None = None, note: str | None = None
    ) -> QueueInfo:
        """Change settings of a queue."""
        for field in ("zombie_timeout", "fetched_timeout"):
            value = getattr(change, field)
            if value is not None and not self.shortest_timeout <= value <= LONGEST_TIMEOUT:
                expected = f"seconds from {self.shortest_timeout:g} (three heartbeats) to {LONGEST_TIMEOUT}"
                raise InvalidField(field, f"{value!r}", expected=expected)
        if change.owner is not None:
            check_word("owner", change.owner)
        return self._queue(queue, change, "set-queue", version, note)

    # -- workers -------------------------------------------------------------------------------------------------------

    def set_worker(self, worker: str, concurrency: int | None, *, note: str | None = None) -> WorkerView:
        """Have a worker run so many jobs at a time, from its next heartbeat; None: what it was started with."""
        return self.store.set_worker(worker, check_slots(concurrency), AuditDraft(self.actor, "set-worker", note))

    # -- schedules -----------------------------------------------------------------------------------------------------

    def pause_schedule(self, name: str, *, version: int | None = None, note: str | None = None) -> ScheduleView:
        """Let no slot of a schedule be enqueued; jobs of earlier ones are not touched."""
        return self._schedule(name, True, AuditDraft(self.actor, "pause-schedule", note), version)

    def resume_schedule(self, name: str, *, version: int | None = None, note: str | None = None) -> ScheduleView:
        """Let a schedule go on. What becomes of the slots since it was paused is what its ``catch_up`` says."""
        return self._schedule(name, False, AuditDraft(self.actor, "resume-schedule", note), version)

    # -- circuits ------------------------------------------------------------------------------------------------------

    def reset_circuit(self, name: str, *, note: str | None = None) -> CircuitView:
        """Close a circuit breaker: what it kept off starts again. One that is closed anyhow is left as it is."""
        return self.store.reset_circuit(check_name("circuit", name), AuditDraft(self.actor, "reset-circuit", note))

    # -- inner ---------------------------------------------------------------------------------------------------------

    def _edit(self, *, payload: object = UNSET, **changes: Any) -> JobEdit:
        return check_edit(JobEdit(payload=payload_or_unset(payload), **changes), payload_limit=self.payload_limit)

    def _one(self, wish: Wish, job: JobId, version: int | None, note: str | None) -> Answered:
        identity = job_id(job)
        draft = AuditDraft(self.actor, wish.verb.value, note)
        (answer,) = self.store.operate(wish, [(identity, check_version(version))], draft)
        if answer.skipped not in (None, Skipped.UNCHANGED):
            raise self._refusal(wish, answer, version)
        return answer

    def _all(self, wish: Wish, ids: object, note: str | None, progress: Progress | None) -> list[Answered]:
        answers: list[Answered] = []
        for batch in self.act(wish, targets(ids), note=note):
            answers += batch
            if progress is not None:
                progress(len(answers))
        return answers

    def _refusal(self, wish: Wish, answer: Answered, version: int | None) -> NotFound | Conflict:
        head = self.store.head(answer.id)
        if answer.skipped is Skipped.NOT_FOUND or head is None:
            return NotFound("job", answer.id)
        if answer.skipped is Skipped.CHANGED and version is not None:
            return VersionChanged(answer.id, version, head.version if answer.version is None else answer.version)
        if answer.skipped is Skipped.KEY_HELD and answer.holder is not None:
            key = head.idempotency_key if isinstance(wish.edit.idempotency_key, Unset) else wish.edit.idempotency_key
            return KeyHeld(key or "", answer.holder)
        return NotAllowed(wish.verb.value, head.spot.value, answer.why)

    def _queue(self, name: str, change: QueueChange, action: str, version: int | None, note: str | None) -> QueueInfo:
        draft = AuditDraft(self.actor, action, note)
        return self.store.set_queue(check_name("queue", name), change, draft, version=check_version(version))

    def _schedule(self, name: str, paused: bool, draft: AuditDraft, version: int | None) -> ScheduleView:
        return self.store.pause_schedule(check_name("name", name), paused, draft, version=check_version(version))

    def _moment(self, older_than: object) -> datetime:
        if isinstance(older_than, datetime):
            moment = due(older_than, "older_than")
            assert isinstance(moment, datetime)
            return moment
        if not isinstance(older_than, timedelta) or older_than < timedelta(0):
            raise InvalidField("older_than", f"{older_than!r}", expected="a timedelta, or a datetime with a time zone")
        return self.store.now() - older_than


def _revision(record: JobRecord, number: int) -> Revision:
    for revision in record.revisions:
        if revision.revision == number:
            return revision
    known = ", ".join(str(revision.revision) for revision in record.revisions) or "none"
    raise InvalidField("revision", f"{number!r} is not kept", expected=f"an earlier revision of this job: {known}")
