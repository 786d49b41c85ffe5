"""The audit log: entries in the transaction of their action, seals a moment later, and the check of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, func, insert, select, update

from redrive.domain.audit import GENESIS, AuditDraft, AuditEntry, content_hash, seal_hash
from redrive.store.port import BATCH, AuditVerdict

from .dialect import Dialect
from .tables import audit_log, audit_seals


@dataclass(frozen=True, slots=True)
class Target:
    """What one entry is about. ``details`` holds counts, hashes and names; payloads never."""

    target: str
    result: str
    job_id: UUID | None = None
    revision: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


def write_audit(db: Dialect, connection: Connection, draft: AuditDraft, targets: Sequence[Target]) -> None:
    """Add one entry for each target; the last statement of the action's transaction."""
    if not targets:
        return
    details = [_with_revision(target) for target in targets]
    at: datetime = connection.execute(select(db.now())).scalar_one()
    actor = draft.actor
    connection.execute(
        insert(audit_log),
        [
            {
                "at": at,
                "actor": actor.name,
                "role": actor.role,
                "channel": actor.channel.value,
                "action": draft.action,
                "target": target.target,
                "job_id": target.job_id,
                "revision": target.revision,
                "operation_id": draft.operation_id,
                "note": draft.note,
                "result": target.result,
                "request_id": actor.request_id,
                "details": said,
                "content_hash": content_hash(
                    at=at,
                    actor=actor.name,
                    role=actor.role,
                    channel=actor.channel.value,
                    action=draft.action,
                    target=target.target,
                    operation_id=draft.operation_id,
                    note=draft.note,
                    result=target.result,
                    request_id=actor.request_id,
                    details=said,
                ),
            }
            for target, said in zip(targets, details, strict=True)
        ],
    )


def _with_revision(target: Target) -> dict[str, Any]:
    """Details that name the revision the action left: what is in no hashed field could be changed unseen."""
    if target.revision is None:
        return target.details
    return target.details | {"revision": target.details.get("revision", {}) | {"after": target.revision}}


_ENTRY = [column for column in audit_log.c if column.name not in ("job_id", "revision")]


def entry(row: Row[Any]) -> AuditEntry:
    """An entry from a row of the log."""
    return AuditEntry(**dict(row._mapping))


def read_audit(
    connection: Connection, *, limit: int, before: int | None, target: str | None, actor: str | None
) -> list[AuditEntry]:
    """Entries, newest first."""
    statement = select(*_ENTRY).order_by(audit_log.c.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(audit_log.c.id < before)
    if target is not None:
        try:
            statement = statement.where(audit_log.c.job_id == UUID(target))
        except ValueError:
            statement = statement.where(audit_log.c.target == target)
    if actor is not None:
        statement = statement.where(audit_log.c.actor == actor)
    return [entry(row) for row in connection.execute(statement)]


def seal(db: Dialect, limit: int) -> int:
    """Chain entries that no seal covers. The first seal's row is the lock that lets one sealer work at a time."""

    def work(connection: Connection) -> int:
        # Not the last seal's: whoever waited for that lock holds it while another has become the last.
        first = select(audit_seals.c.number).where(audit_seals.c.number == 1)
        connection.execute(db.locking(first, of=audit_seals)).first()
        last = select(audit_seals.c.number, audit_seals.c.root).order_by(audit_seals.c.number.desc()).limit(1)
        previous = connection.execute(last).first()
        unsealed = (
            select(audit_log.c.id, audit_log.c.content_hash)
            .where(audit_log.c.seal.is_(None))
            .order_by(audit_log.c.id)
            .limit(limit)
        )
        entries = [(row.id, row.content_hash) for row in connection.execute(db.locking(unsealed, of=audit_log))]
        if not entries:
            return 0
        number, root = (previous.number + 1, previous.root) if previous else (1, GENESIS)
        ids = [entry_id for entry_id, _ in entries]
        # Two first sealers both try number 1: the primary key lets one through, the other runs again.
        connection.execute(
            insert(audit_seals).values(
                number=number,
                first_id=ids[0],
                last_id=ids[-1],
                entries=len(ids),
                previous=root,
                root=seal_hash(number, root, entries),
                at=db.now(),
            )
        )
        connection.execute(update(audit_log).where(audit_log.c.id.in_(ids)).values(seal=number))
        return len(ids)

    def look(connection: Connection) -> bool:
        return connection.execute(select(audit_log.c.id).where(audit_log.c.seal.is_(None)).limit(1)).first() is not None

    return db.write(work) if db.look(look) else 0


def verify(connection: Connection) -> AuditVerdict:
    """Recompute content hashes and the chain, seal by seal, in bounded memory."""
    problems: list[str] = []
    entries, unsealed, number, previous = 0, 0, 0, GENESIS
    while seals := connection.execute(
        select(audit_seals).where(audit_seals.c.number > number).order_by(audit_seals.c.number).limit(BATCH)
    ).all():
        for row in seals:
            if row.number != number + 1:
                problems.append(f"seal {number + 1} is missing")
            if row.previous != previous:
                problems.append(f"seal {row.number} does not follow the seal before it")
            members = connection.execute(_ENTRIES.where(audit_log.c.seal == row.number)).all()
            entries += len(members)
            problems += [problem for member in members if (problem := _tampered(member))]
            if len(members) != row.entries:
                problems.append(f"seal {row.number} covers {row.entries} entries, {len(members)} are there")
            if seal_hash(row.number, row.previous, [(m.id, m.content_hash) for m in members]) != row.root:
                problems.append(f"seal {row.number} does not match its entries")
            previous, number = row.root, row.number
    last = 0
    fresh = _ENTRIES.where(audit_log.c.seal.is_(None)).limit(BATCH)
    while members := connection.execute(fresh.where(audit_log.c.id > last)).all():
        problems += [problem for member in members if (problem := _tampered(member))]
        unsealed, last = unsealed + len(members), members[-1].id
    total = connection.execute(select(func.count()).select_from(audit_log)).scalar_one()
    if total != entries + unsealed:
        problems.append(f"{total - entries - unsealed} entries name a seal that is missing")
    count = connection.execute(select(func.count()).select_from(audit_seals)).scalar_one()
    return AuditVerdict(total, count, unsealed, tuple(problems))


_ENTRIES = select(*audit_log.c).order_by(audit_log.c.id)


def _tampered(row: Row[Any]) -> str | None:
    values = dict(row._mapping)
    job_id, revision = values.pop("job_id"), values.pop("revision")
    found = AuditEntry(**values)
    computed = content_hash(
        at=found.at,
        actor=found.actor,
        role=found.role,
        channel=found.channel,
        action=found.action,
        target=found.target,
        operation_id=found.operation_id,
        note=found.note,
        result=found.result,
        request_id=found.request_id,
        details=found.details,
    )
    # Two columns repeat what hashed fields say, for searching.
    honest = job_id is None or str(job_id) == found.target
    honest = honest and revision == found.details.get("revision", {}).get("after")
    return None if honest and computed == found.content_hash else f"entry {found.id} was changed after it was written"
