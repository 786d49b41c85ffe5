"""The promises, written as SQL an operator can read and run, each over one snapshot.

Every statement answers with one row of text for each offence; no row means the promise is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql

from redrive.domain.failures import FAILURES
from redrive.store.port import PromiseResult


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise and the statement that finds offences against it. ``{s}`` stands for the schema, with its dot."""

    name: str
    title: str
    sql: str


_FAILURES = ", ".join(f"'{reason.value}'" for reason in sorted(FAILURES))

_SAVED = "UNION ALL\n".join(
    f"""SELECT 'payload of job ' || {{j.id}} || ' is not the one that was saved as revision ' || s.revision
 FROM saved s JOIN {{s}}{table} j ON j.id = s.job_id WHERE s.sha <> {{sha:j.payload}}
"""
    for table in ("jobs_hot", "jobs_archive", "jobs_dlq")
).strip()

PROMISES = (
    Promise(
        "conservation",
        "every job is in exactly one place, no trail is without a job, totals equal rows",
        f"""
WITH placed AS (SELECT id FROM {{s}}jobs_hot UNION ALL SELECT id FROM {{s}}jobs_archive
                UNION ALL SELECT id FROM {{s}}jobs_dlq),
     trails AS (SELECT job_id FROM {{s}}job_ledger UNION SELECT job_id FROM {{s}}job_revisions),
     rows_of AS (
       SELECT queue, count(*) AS done, 0 AS dead FROM {{s}}jobs_archive GROUP BY queue UNION ALL
       SELECT queue, 0, count(*) FROM {{s}}jobs_dlq WHERE reason IN ({_FAILURES}) GROUP BY queue),
     counted AS (
       SELECT queue, sum(succeeded - purged_succeeded) AS done, sum(failed - purged_failed) AS dead
       FROM {{s}}queue_totals GROUP BY queue),
     queues_of AS (SELECT queue FROM rows_of UNION SELECT queue FROM counted)
SELECT 'job ' || {{id}} || ' is in two places' FROM placed GROUP BY id HAVING count(*) > 1
UNION ALL
SELECT 'a trail is left of job ' || {{job_id}} || ', the job is nowhere' FROM trails
 WHERE NOT EXISTS (SELECT 1 FROM placed WHERE id = job_id)
UNION ALL
SELECT 'mark of job ' || {{job_id}} || ', which is not dead' FROM {{s}}dead_marks
 WHERE NOT EXISTS (SELECT 1 FROM {{s}}jobs_dlq WHERE id = job_id)
UNION ALL
SELECT 'queue ' || q.queue || ': ' || r.done || ' archived and ' || r.dead || ' failed jobs, totals say '
  || coalesce(c.done, 0) || ' and ' || coalesce(c.dead, 0)
FROM queues_of q
JOIN (SELECT u.queue, coalesce(sum(done), 0) AS done, coalesce(sum(dead), 0) AS dead
      FROM queues_of u LEFT JOIN rows_of r ON r.queue = u.queue GROUP BY u.queue) r ON r.queue = q.queue
LEFT JOIN counted c ON c.queue = q.queue
WHERE r.done <> coalesce(c.done, 0) OR r.dead <> coalesce(c.dead, 0)
""",
    ),
    Promise(
        "owner",
        "a lease exists exactly while a job is taken, and no attempt ended twice",
        """
SELECT 'job ' || {id} || ' is ' || state || ' and its lease does not fit that' FROM {s}jobs_hot
 WHERE (state = 'taken') <> (lease IS NOT NULL) OR (state <> 'taken' AND started_at IS NOT NULL)
    OR (state = 'taken' AND (worker_id IS NULL OR heartbeat_at IS NULL))
UNION ALL
SELECT 'completion marker ' || scope || ' ' || key || ' is in progress without a run of job ' || {job_id}
 FROM {s}once_marks m WHERE m.state = 'running'
  AND NOT EXISTS (SELECT 1 FROM {s}jobs_hot h
                  WHERE h.id = m.job_id AND h.lease = m.lease AND h.started_at IS NOT NULL)
UNION ALL
SELECT 'job ' || {job_id} || ': attempt ' || attempt || ' of life ' || life || ' ended ' || count(*) || ' times'
 FROM {s}job_ledger WHERE kind IN ('failed', 'zombie', 'cancelled') AND started_at IS NOT NULL
 GROUP BY job_id, life, attempt HAVING count(*) > 1
UNION ALL
SELECT 'job ' || {a.id} || ': attempt ' || a.attempt || ' of life ' || a.life || ' both failed and succeeded'
 FROM {s}jobs_archive a JOIN {s}job_ledger l ON l.job_id = a.id AND l.life = a.life AND l.attempt = a.attempt
 WHERE l.kind IN ('failed', 'zombie', 'cancelled') AND l.started_at IS NOT NULL
""",
    ),
    Promise(
        "exclusive",
        "of the jobs with one lock key at most one is running, and a key is held exactly while its job is",
        """
SELECT 'lock key ' || k.lock_key || ' is held by job ' || {k.job_id} || ', which is not running under that lease'
 FROM {s}held_keys k
 WHERE NOT EXISTS (SELECT 1 FROM {s}jobs_hot j
                   WHERE j.id = k.job_id AND j.lease = k.lease AND j.lock_key = k.lock_key AND j.started_at IS NOT NULL)
UNION ALL
SELECT 'job ' || {j.id} || ' is running and does not hold its lock key ' || j.lock_key
 FROM {s}jobs_hot j
 WHERE j.state = 'taken' AND j.started_at IS NOT NULL AND j.lock_key IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM {s}held_keys k WHERE k.job_id = j.id AND k.lock_key = j.lock_key)
UNION ALL
SELECT 'job ' || {j.id} || ' is ' || j.state || ' and waits for a lock key' FROM {s}jobs_hot j
 WHERE j.blocked AND (j.state <> 'pending' OR j.lock_key IS NULL)
""",
    ),
    Promise(
        "evidence",
        "every death, retry and replaced revision is on record",
        """
SELECT 'dead job ' || {d.id} || ' has no ledger line for its death' FROM {s}jobs_dlq d
 WHERE NOT EXISTS (SELECT 1 FROM {s}job_ledger l
                   WHERE l.job_id = d.id AND l.life = d.life AND l.reason = d.reason
                     AND l.kind IN ('failed', 'zombie', 'cancelled'))
UNION ALL
SELECT 'job ' || {j.id} || ' was charged ' || j.spent || ' attempts in this life, the ledger tells of fewer'
 FROM (SELECT id, life, spent FROM {s}jobs_hot UNION ALL SELECT id, life, spent FROM {s}jobs_archive
       UNION ALL SELECT id, life, spent FROM {s}jobs_dlq) j
 WHERE j.spent > (SELECT count(*) FROM {s}job_ledger l
                  WHERE l.job_id = j.id AND l.life = j.life AND l.kind IN ('failed', 'zombie', 'cancelled'))
UNION ALL
SELECT 'job ' || {j.id} || ' is in life ' || j.life || ', the ledger tells of fewer deaths'
 FROM (SELECT id, life FROM {s}jobs_hot UNION ALL SELECT id, life FROM {s}jobs_archive
       UNION ALL SELECT id, life FROM {s}jobs_dlq) j
 WHERE j.life > 1 AND j.life - 1 > (SELECT count(DISTINCT l.life) FROM {s}job_ledger l
       WHERE l.job_id = j.id AND l.life < j.life AND l.reason IS NOT NULL
         AND l.kind IN ('failed', 'zombie', 'cancelled'))
UNION ALL
SELECT 'job ' || {j.id} || ' is at revision ' || j.revision || ', an earlier one is missing'
 FROM (SELECT id, revision FROM {s}jobs_hot UNION ALL SELECT id, revision FROM {s}jobs_archive
       UNION ALL SELECT id, revision FROM {s}jobs_dlq) j
 WHERE j.revision > 1 AND j.revision - 1 <> (SELECT count(*) FROM {s}job_revisions r WHERE r.job_id = j.id)
""",
    ),
    Promise(
        "exactness",
        "a repaired payload is, byte for byte, what the operator saved",
        f"""
WITH last AS (
  SELECT job_id, max(id) AS id FROM {{s}}audit_log
  WHERE action IN ('edit', 'resurrect', 'take-back', 'import') AND {{saved}} IS NOT NULL GROUP BY job_id),
     saved AS (
  SELECT e.job_id, e.revision, {{saved:e}} AS sha FROM last JOIN {{s}}audit_log e ON e.id = last.id)
{_SAVED}
""",
    ),
    Promise(
        "audited",
        "every revision and every resurrection has its audit entry",
        """
SELECT 'revision ' || r.revision || ' of job ' || {r.job_id} || ' was replaced without an audit entry'
 FROM {s}job_revisions r
 WHERE NOT EXISTS (SELECT 1 FROM {s}audit_log a WHERE a.job_id = r.job_id
                   AND (a.revision = r.revision + 1 OR a.action = 'import' AND a.revision > r.revision))
UNION ALL
SELECT 'job ' || {j.id} || ' is in life ' || j.life || ', the audit log tells of another number of resurrections'
 FROM (SELECT id, life FROM {s}jobs_hot UNION ALL SELECT id, life FROM {s}jobs_archive
       UNION ALL SELECT id, life FROM {s}jobs_dlq) j
 LEFT JOIN (SELECT job_id, sum(CASE action WHEN 'resurrect' THEN 1 ELSE -1 END) AS n FROM {s}audit_log
            WHERE action IN ('resurrect', 'take-back') GROUP BY job_id) b ON b.job_id = j.id
 WHERE j.life - 1 <> coalesce(b.n, 0)
   AND NOT EXISTS (SELECT 1 FROM {s}audit_log a WHERE a.job_id = j.id AND a.action = 'import')
UNION ALL
SELECT 'job ' || {l.job_id} || ' was taken out ' || l.n || ' times by operators, the audit log tells of fewer'
 FROM (SELECT job_id, count(*) AS n FROM {s}job_ledger
       WHERE kind = 'cancelled' AND started_at IS NULL GROUP BY job_id) l
 WHERE l.n > (SELECT count(*) FROM {s}audit_log a WHERE a.job_id = l.job_id AND a.action IN ('cancel', 'isolate'))
   AND NOT EXISTS (SELECT 1 FROM {s}audit_log a WHERE a.job_id = l.job_id AND a.action = 'import')
""",
    ),
)


def statement(promise: Promise, *, postgres: bool, schema: str | None) -> str:
    """The promise's statement for one database, as an operator can paste it."""
    prefix = f"{quoted_name(schema)}." if schema else ""
    sql = promise.sql.replace("{s}", prefix)
    for name in ("id", "job_id", "a.id", "d.id", "j.id", "k.job_id", "l.job_id", "r.job_id"):
        shown = f"CAST({name} AS text)" if postgres else f"lower(hex({name}))"
        sql = sql.replace("{" + name + "}", shown)
    for mark, column in (("{saved}", "details"), ("{saved:e}", "e.details")):
        path = "$.payload_sha256.after"
        saved = f"{column}::json #>> '{{payload_sha256,after}}'" if postgres else f"json_extract({column}, '{path}')"
        sql = sql.replace(mark, saved)
    return sql.replace(
        "{sha:j.payload}", "encode(sha256(j.payload), 'hex')" if postgres else "sha256(j.payload)"
    ).strip()


def quoted_name(name: str) -> str:
    """An identifier of PostgreSQL, quoted where it has to be."""
    quoted: str = postgresql.dialect().identifier_preparer.quote(name)  # type: ignore[no-untyped-call]
    return quoted


def check(connection: Connection, *, postgres: bool, schema: str | None, examples: int) -> list[PromiseResult]:
    """Run every promise's statement."""
    results = []
    for promise in PROMISES:
        sql = statement(promise, postgres=postgres, schema=schema)
        number = connection.exec_driver_sql(f"SELECT count(*) FROM ({sql}) offences").scalar_one()
        some = f"SELECT * FROM ({sql}) offences LIMIT {int(examples)}"
        found = tuple(_dashed(str(row[0])) for row in connection.exec_driver_sql(some)) if number else ()
        results.append(PromiseResult(promise.name, promise.title, sql, number, found))
    return results


def _dashed(text: str) -> str:
    """SQLite writes an id as plain hex; people, and every command, write it with dashes."""
    return re.sub(r"\b[0-9a-f]{32}\b", lambda found: str(UUID(found[0])), text)
