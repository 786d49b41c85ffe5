"""The bare loop, the denominator: claim, start, settle in batches of 500, no handlers, no engine.

psycopg on Redrive's own migrated schema, with the guards that keep a job from running twice and with the counters, but
without a line of Redrive's store. What costs nothing in safety is taken: prepared statements, binary results, arrays
as one text, no column twice.
"""

import secrets
import sys
from typing import Any

import psycopg

from bench.child import answer, timed, wait

BATCH = 500
STEADY = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit")

CLAIM = """
UPDATE jobs_hot SET state = 'taken', lease = %(lease)s, worker_id = 'bare', heartbeat_at = now(), updated_at = now(),
  version = version + 1
WHERE id = ANY(ARRAY(SELECT id FROM jobs_hot WHERE state = 'pending' AND queue = 'default'
                     ORDER BY priority DESC, due_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
RETURNING id::text, type, payload, content_type, attempt, max_attempts"""

START = """
UPDATE jobs_hot h SET started_at = now(), attempt = attempt + 1, version = version + 1
FROM unnest(%(ids)s::uuid[], %(leases)s::int8[]) i(id, lease) WHERE h.id = i.id AND h.lease = i.lease"""

SETTLE = """
WITH d AS (
  DELETE FROM jobs_hot h USING unnest(%(ids)s::uuid[], %(leases)s::int8[]) i(id, lease)
  WHERE h.id = i.id AND h.lease = i.lease RETURNING h.*),
a AS (INSERT INTO jobs_archive ({columns}, finished_at, duration_ms, outcome)
      SELECT {columns}, now(), 0, 'succeeded' FROM d),
t AS (INSERT INTO queue_totals (queue, shard, succeeded) SELECT queue, 0, count(*) FROM d GROUP BY queue
      ON CONFLICT (queue, shard) DO UPDATE SET succeeded = queue_totals.succeeded + excluded.succeeded),
b AS (INSERT INTO metric_buckets (at, queue, type, outcome, reason, shard, n, ms)
      SELECT date_trunc('second', now()), queue, type, 'succeeded', '', 0, count(*), 0 FROM d GROUP BY queue, type
      ON CONFLICT (at, queue, type, outcome, reason, shard)
      DO UPDATE SET n = metric_buckets.n + excluded.n, ms = metric_buckets.ms + excluded.ms)
SELECT count(*) FROM d"""

COMMON = """
SELECT string_agg(a.column_name, ', ') FROM information_schema.columns a
JOIN information_schema.columns h USING (table_schema, column_name)
WHERE a.table_schema = 'redrive' AND a.table_name = 'jobs_archive' AND h.table_name = 'jobs_hot'"""


def drain(connection: psycopg.Connection[Any], settle: str, batch: int = BATCH) -> int:
    """Takes every pending job through its life; the answer is how many there were."""
    cursor = connection.cursor(binary=True)
    done = 0
    while True:
        lease = secrets.randbits(62)
        rows = cursor.execute(CLAIM, {"lease": lease, "limit": batch}, prepare=True).fetchall()
        if not rows:
            return done
        rows.sort()
        pairs = {
            "ids": "{" + ",".join([row[0] for row in rows]) + "}",
            "leases": "{" + ",".join([str(lease)] * len(rows)) + "}",
        }
        if cursor.execute(START, pairs, prepare=True).rowcount != len(rows):
            raise RuntimeError("a start met a job that was not its own")
        settled = cursor.execute(settle, pairs, prepare=True).fetchone()
        if settled != (len(rows),):
            raise RuntimeError("a settle met a job that was not its own")
        done += len(rows)


def main(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path = redrive; " + "; ".join(f"SET {name} = off" for name in STEADY))
        columns = connection.execute(COMMON).fetchone()
        settle = SETTLE.format(columns=columns[0] if columns else "")
        wait()
        answer(timed(lambda: drain(connection, settle)))


if __name__ == "__main__":
    main(sys.argv[1])
