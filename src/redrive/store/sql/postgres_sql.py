"""The texts of the hot statements on PostgreSQL.

Rules they keep, so that no plan can flip and no two of them can deadlock:

- By-id statements join ``unnest(ids, leases)`` on id and lease and name neither state, worker nor ``started_at``
  against a constant; a needed extra test is written across both sides, so that no statistics make one row of the table.
- Statements that want a partial index repeat its predicate and its order; a LIMIT stays inside a subselect whose result
  goes through ``= ANY(ARRAY(...))``.
- Claims and starts lock their queue's row FOR SHARE: a pause, an ordinary UPDATE, waits for them and they for it.
- Inside one statement data-modifying parts have no order, so buckets read from totals.
- Queues with a limit are left to ``limited``; a job with a lock key is claimed without being started.
- An INSERT that follows a DELETE of the same job carries no ON CONFLICT: a conflict must abort, not lose the job.
"""

from __future__ import annotations

from dataclasses import dataclass

from .tables import CLAIMABLE, JOB_COLUMNS

_COLUMNS = ", ".join(JOB_COLUMNS)
_MOVED = ", ".join({"version": "d.version + 1", "updated_at": "now()"}.get(name, f"d.{name}") for name in JOB_COLUMNS)
_GOT = """uuid_send(h.id), h.lease, h.type, h.queue, h.payload, h.content_type, h.attempt, h.spent, h.max_attempts,
 h.life, h.revision, h.priority, h.marks, h.trace_context, h.started_at IS NOT NULL,
 h.life_started_at, h.unserved_since, h.due_at, now()"""

INSERT_COLUMNS = (
    "id",
    "type",
    "queue",
    "payload",
    "content_type",
    "priority",
    "marks",
    "idempotency_key",
    "lock_key",
    "max_attempts",
    "created_by",
    "trace_context",
    "origin",
)
"""What an enqueue says about a job; times and states come from the database's clock."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Every hot statement, for one schema (given quoted)."""

    schema: str

    @property
    def blocked(self) -> str:
        """The guarded types whose circuit is not closed, as an array: looked up once for the whole statement."""
        return f"""
ARRAY(SELECT u.type FROM unnest(%(guarded)s::text[], %(circuits)s::text[]) u(type, circuit)
 JOIN {self.schema}.circuits k ON k.name = u.circuit WHERE k.state <> 'closed')"""

    @property
    def claim(self) -> str:
        """Take pending jobs of the queues in the order given; those of the started types start at once."""
        return self.claim_of("")

    @property
    def claim_guarded(self) -> str:
        """The same, passing by what an open circuit blocks. No lock: a circuit stays open longer than a statement."""
        return self.claim_of(f" AND type <> ALL({self.blocked})")

    @property
    def claim_only(self) -> str:
        """The same, for the started types alone."""
        return self.claim_of(" AND type = ANY(%(types)s::text[])")

    def claim_of(self, which: str) -> str:
        """A claim of those pending jobs that meet the condition ``which``."""
        s = self.schema
        return f"""
WITH g AS MATERIALIZED (
  SELECT q.name, u.o FROM {s}.queues q JOIN unnest(%(queues)s::text[]) WITH ORDINALITY u(name, o) ON u.name = q.name
  WHERE NOT q.paused AND q.max_running IS NULL AND q.rate IS NULL FOR SHARE OF q)
UPDATE {s}.jobs_hot h SET state = 'taken', lease = %(lease)s, worker_id = %(worker)s, heartbeat_at = now(),
  updated_at = now(), version = h.version + 1,
  started_at = CASE WHEN h.lock_key IS NULL AND h.type = ANY(%(types)s::text[]) THEN now() END,
  attempt = h.attempt + CASE WHEN h.lock_key IS NULL AND h.type = ANY(%(types)s::text[]) THEN 1 ELSE 0 END
WHERE h.id = ANY(ARRAY(
  SELECT j.id FROM (SELECT name FROM g ORDER BY o) g CROSS JOIN LATERAL (
    SELECT id FROM {s}.jobs_hot WHERE {CLAIMABLE.text} AND queue = g.name{which}
    ORDER BY priority DESC, due_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED) j LIMIT %(limit)s))
RETURNING {_GOT}"""

    @property
    def limits(self) -> str:
        """Queues with a limit."""
        return f"SELECT name FROM {self.schema}.queues WHERE max_running IS NOT NULL OR rate IS NOT NULL"

    @property
    def start(self) -> str:
        """Start fetched jobs whose queue is not paused, as far as no limit and no lock key has a say."""
        return self.start_of("")

    @property
    def start_guarded(self) -> str:
        """The same, without what an open circuit blocks."""
        return self.start_of(f" AND h.type <> ALL({self.blocked})")

    def start_of(self, which: str) -> str:
        """A start of those fetched jobs that meet the condition ``which``."""
        s = self.schema
        return f"""
WITH g AS MATERIALIZED (SELECT name FROM {s}.queues WHERE name = ANY(%(queues)s::text[]) AND NOT paused
  AND max_running IS NULL AND rate IS NULL FOR SHARE)
UPDATE {s}.jobs_hot h SET started_at = now(), heartbeat_at = now(), updated_at = now(), attempt = h.attempt + 1,
  version = h.version + 1
FROM unnest(%(ids)s::uuid[], %(leases)s::int8[]) i(id, lease)
WHERE h.id = i.id AND h.lease = i.lease AND (h.started_at IS NULL) = (i.lease IS NOT NULL)
  AND h.lock_key IS NULL AND h.queue IN (SELECT name FROM g){which}
RETURNING uuid_send(h.id), h.lease"""

    @property
    def heartbeat(self) -> str:
        """Renew leases without waiting for a locked row."""
        s = self.schema
        return f"""
UPDATE {s}.jobs_hot h SET heartbeat_at = now() WHERE h.id = ANY(ARRAY(
  SELECT j.id FROM unnest(%(ids)s::uuid[], %(leases)s::int8[]) i(id, lease)
  JOIN {s}.jobs_hot j ON j.id = i.id AND j.lease = i.lease FOR UPDATE OF j SKIP LOCKED))
RETURNING uuid_send(h.id), h.lease, h.cancel_requested IS NOT NULL"""

    @property
    def progress(self) -> str:
        """Keep what a handler says of its progress; a locked row is told at the next beat."""
        s = self.schema
        return f"""
UPDATE {s}.jobs_hot SET progress = %(text)s WHERE id = ANY(ARRAY(
  SELECT id FROM {s}.jobs_hot WHERE id = %(id)s AND lease = %(lease)s FOR UPDATE SKIP LOCKED))"""

    @property
    def holding(self) -> str:
        """Which of the pairs still hold their lease; a plain read, for those a heartbeat did not bring back."""
        s = self.schema
        return f"""
SELECT uuid_send(h.id), h.lease, h.started_at IS NOT NULL FROM unnest(%(ids)s::uuid[], %(leases)s::int8[]) i(id, lease)
JOIN {s}.jobs_hot h ON h.id = i.id AND h.lease = i.lease"""

    @property
    def succeed(self) -> str:
        """Archive and count what still holds its lease."""
        s = self.schema
        return f"""
WITH d AS (
  DELETE FROM {s}.jobs_hot h
  USING unnest(%(ids)s::uuid[], %(leases)s::int8[], %(ms)s::int8[], %(results)s::bytea[]) i(id, lease, ms, result)
  WHERE h.id = i.id AND h.lease = i.lease AND (h.started_at IS NOT NULL) = (i.lease IS NOT NULL)
  RETURNING h.*, i.ms, i.result),
k AS (DELETE FROM {s}.held_keys USING d WHERE d.lock_key IS NOT NULL AND held_keys.job_id = d.id),
a AS (
  INSERT INTO {s}.jobs_archive ({_COLUMNS}, finished_at, duration_ms, outcome, result)
  SELECT {_MOVED}, now(), d.ms, 'succeeded', d.result FROM d),
t AS (
  INSERT INTO {s}.queue_totals (queue, shard, succeeded)
  SELECT queue, %(slot)s, count(*) FROM d GROUP BY queue ORDER BY queue
  ON CONFLICT (queue, shard) DO UPDATE SET succeeded = queue_totals.succeeded + excluded.succeeded RETURNING 1),
b AS (
  INSERT INTO {s}.metric_buckets (at, queue, type, outcome, reason, shard, n, ms)
  SELECT date_trunc('second', now()), x.queue, x.type, 'succeeded', '', %(slot)s, x.n, x.ms
  FROM (SELECT queue, type, count(*) n, sum(ms) ms FROM d GROUP BY queue, type) x CROSS JOIN (SELECT count(*) FROM t) z
  ORDER BY x.queue, x.type
  ON CONFLICT (at, queue, type, outcome, reason, shard)
  DO UPDATE SET n = metric_buckets.n + excluded.n, ms = metric_buckets.ms + excluded.ms)
SELECT uuid_send(id), lease, lock_key FROM d"""

    @property
    def promote(self) -> str:
        """Make due jobs pending."""
        s = self.schema
        return f"""
UPDATE {s}.jobs_hot h SET state = 'pending', updated_at = now(), version = h.version + 1
WHERE h.id = ANY(ARRAY(
  SELECT id FROM {s}.jobs_hot WHERE state = 'scheduled' AND due_at <= now()
  ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))"""

    @property
    def next_due(self) -> str:
        """Seconds until the next scheduled job is due."""
        s = self.schema
        return f"""
SELECT extract(epoch FROM due_at - now())::float8 FROM {s}.jobs_hot WHERE state = 'scheduled'
ORDER BY due_at LIMIT 1"""

    @property
    def copy_now(self) -> str:
        """Bulk insert of jobs that are due at once."""
        columns = ", ".join((*INSERT_COLUMNS, "due_at", "life_started_at", "created_at", "updated_at"))
        return f"COPY {self.schema}.jobs_hot ({columns}) FROM STDIN (FORMAT BINARY)"

    def insert(self, rows: str) -> str:
        """Insert jobs from ``rows`` (VALUES or a SELECT of the columns of ``stage``); a held key skips its row.

        ``wait`` is a delay and ``at`` a moment, either may be NULL. A time that has passed is now: it neither overtakes
        what waits nor uses up the life of the job. A delay counts in seconds: days would be added by the calendar of
        the session's time zone. Keys are taken in one order by everybody, and of several jobs with one key the first
        of the call gets it.
        """
        columns = ", ".join(INSERT_COLUMNS)
        s = self.schema
        return f"""
INSERT INTO {s}.jobs_hot ({columns}, due_at, life_started_at, created_at, updated_at, state)
SELECT {columns}, due, due, now(), now(), CASE WHEN due > now() THEN 'scheduled' ELSE 'pending' END
FROM (SELECT i.*, greatest(now(), i.at, now() + make_interval(secs => extract(epoch FROM i.wait)::float8)) AS due
      FROM ({rows}) i) i
ORDER BY type, idempotency_key, place
ON CONFLICT (type, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING uuid_send(id)"""

    @property
    def values(self) -> str:
        """One job as ``rows`` of ``insert``."""
        types = {"id": "uuid", "payload": "bytea", "priority": "smallint", "max_attempts": "int"}
        columns = ", ".join(f"%({name})s::{types.get(name, 'text')} AS {name}" for name in INSERT_COLUMNS)
        return f"SELECT {columns}, %(wait)s::interval AS wait, %(at)s::timestamptz AS at, 0 AS place"

    @property
    def enqueue_one(self) -> str:
        """Accept one job without a key and wake the workers that wait, in one statement, so in one round trip."""
        s = self.schema
        return f"""
WITH i AS ({self.insert(self.values)})
SELECT pg_notify(%(channel)s, %(queue)s) FROM i WHERE EXISTS (SELECT 1 FROM {s}.workers WHERE waiting)"""

    @property
    def stage(self) -> str:
        """A temporary table that takes keyed or scheduled jobs of a bulk enqueue, emptied at commit."""
        return """
CREATE TEMPORARY TABLE IF NOT EXISTS redrive_incoming (id uuid, type text, queue text, payload bytea, content_type text,
 priority smallint, marks text, idempotency_key text, lock_key text, max_attempts int, created_by text,
 trace_context text, origin text, wait interval, at timestamptz, place int) ON COMMIT DELETE ROWS"""

    @property
    def holder(self) -> str:
        """Who holds a key."""
        return f"SELECT uuid_send(id) FROM {self.schema}.jobs_hot WHERE type = %s AND idempotency_key = %s"

    @property
    def holders(self) -> str:
        """Who holds the keys of staged jobs."""
        return f"""
SELECT uuid_send(i.id), uuid_send(h.id) FROM redrive_incoming i
JOIN {self.schema}.jobs_hot h ON h.type = i.type AND h.idempotency_key = i.idempotency_key"""

    @property
    def notify(self) -> str:
        """Wake the workers that wait, each queue once."""
        s = self.schema
        return f"""
SELECT pg_notify(%(channel)s, q) FROM unnest(%(queues)s::text[]) q
WHERE EXISTS (SELECT 1 FROM {s}.workers WHERE waiting)"""
