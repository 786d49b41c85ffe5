"""The guards of limits, rates and lock keys, and of what operators are told of them."""

from __future__ import annotations

from .removal import Guard, guards

_T = "tests/store/test_"

LIMITS: list[Guard] = [
    *guards(
        "domain/limits.py",
        "tests/domain/test_limits.py",
        ("a slow rate still lets one start", "max(1, self.count // self.per)", "self.count // self.per"),
        (
            "a clock that was set back stops nobody for long",
            "min(max(0.0, ahead), self.burst * self.interval)",
            "max(0.0, ahead)",
        ),
        ("idle time is not saved up", "min(max(0.0, ahead), self", "min(ahead, self"),
        ("a microsecond keeps no start off", " + _CLOSE) / self.interval", ") / self.interval"),
        ("a wait ends with the burst", " - (self.burst - 1 - held) * self.interval\n", "\n"),
        ("nought is no rate", "not 1 <= int(found[1]) <= MOST", "int(found[1]) > MOST"),
        (
            "True is no number of jobs",
            "isinstance(value, bool) or not isinstance(value, int) or",
            "not isinstance(value, int) or",
        ),
    ),
    *guards(
        "store/sql/limited.py",
        f"{_T}limit_races.py::test_claims_at_one_moment_keep_to_the_limit"
        f" {_T}limit_races.py::test_starts_at_one_moment_keep_to_the_limit",
        (
            "one claim of a limited queue at a time",
            "db.locking(_rows(db, [queue]), of=queues, skip=True)",
            "_rows(db, [queue])",
        ),
        (
            "one start of a limited queue at a time",
            "db.locking(_rows(db, named).where(LIMITED), of=queues)",
            "_rows(db, named).where(LIMITED)",
        ),
    ),
    *guards(
        "store/sql/limited.py",
        f"{_T}limited.py",
        ("fetched jobs are counted", "limit.room(processing + fetched, fetched)", "limit.room(processing, fetched)"),
        ("a fetched job has its part of the rate", "self.rate.allowed(self.ahead) - fetched", "self.rate.allowed(0)"),
        ("a paused queue is left alone under a limit too", ".in_(named), ~queues.c.paused)", ".in_(named))"),
        ("a claim that starts uses the rate up", "    _use(db, connection, limit, sum(started))\n", ""),
        (
            "a start uses the rate up",
            "        _use(db, connection, limit, sum(row.queue == name for row in chosen))\n",
            "        pass\n",
        ),
        ("a start keeps to the limit", "        if left[row.queue] >= 1:\n", "        if True:\n"),
        (
            "the first in order has the room",
            "first.order_by(hot.priority.desc(), hot.due_at, hot.id).limit(int",
            "first.order_by(hot.due_at, hot.id).limit(int",
        ),
        ("claims have one room together", "                room -= len(jobs)\n", ""),
        (
            "a circuit keeps off under a limit too",
            "    elif off := _kept_off(connection, request.guarded):\n",
            "    elif off := set[str]():\n",
        ),
        (
            "what a circuit keeps off is not held back by a limit",
            ", jobs_hot.c.type.not_in(off)).limit(1)",
            ").limit(1)",
        ),
        ("nobody looks again at once", "max(SOON, limit.wait(*", "max(0.0, limit.wait(*"),
        (
            "a full queue is asked again after an end",
            "            return math.inf\n        return 0.0",
            "            return 0.0\n        return 0.0",
        ),
        (
            "a probe that may not start goes back",
            "    if fetched := {(job.id, job.lease) for job in jobs if not job.started}:\n",
            "    if fetched := set[Pair]():\n",
        ),
    ),
    *guards(
        "store/sql/limited.py",
        f"{_T}lock_keys.py {_T}limited.py",
        (
            "a claim starts no job with a lock key",
            ".in_(request.start_types), hot.lock_key.is_(None))",
            ".in_(request.start_types))",
        ),
        ("a start under a limit needs the lease", "if row.lease == leases[row.id] and row", "if row"),
        (
            "a start under a limit counts once",
            "row.lease == leases[row.id] and row.started_at is None and",
            "row.lease == leases[row.id] and",
        ),
        ("a pause waits for a start with a key", "db.locking(others, of=queues, share=True)", "others"),
    ),
    *guards(
        "store/sql/lock_keys.py",
        f"{_T}lock_keys.py",
        ("one of a key runs", "    return got\n", "    return {job.id for job in jobs}\n"),
        ("who waits for a key is out of the way", 'state="pending", blocked=True, ', 'state="pending", '),
        ("who blocks holds the key's row", "db.locking(holding, of=held_keys, skip=True, share=True)", "holding"),
        ("a key that is being freed blocks nobody", "for job in losers if job.lock_key in sure]", "for job in losers]"),
        (
            "a freed key lets the next go on",
            "        wake(db, connection, {row.lock_key for row in holders if row.lock_key is not None})\n",
            "",
        ),
        (
            "the first in line goes on",
            "order_by(hot.priority.desc(), hot.due_at, hot.id).limit(1)",
            "order_by(hot.id.desc()).limit(1)",
        ),
        ("workers that wait hear of a freed key", "        db.wake(connection, {row.queue for row in chosen})\n", ""),
        ("a held key wakes nobody", "where(BLOCKED, ~held).distinct()", "where(BLOCKED).distinct()"),
    ),
    *guards(
        "ops/insight.py",
        "tests/ops/test_insight.py",
        ("a full queue is no alarm at once", "if queue.held_back and oldest >= LONG:", "if queue.held_back:"),
        ("what nobody gets to is told", "    if oldest >= VERY_LONG:\n", "    if False:\n"),
        ("who has the lock key is told", "self._keeps_off(head), holder)", "self._keeps_off(head))"),
    ),
    *guards(
        "store/sql/locate.py",
        "tests/field/test_rows_starts.py::test_row_25_what_was_cancelled_is_not_started",
        (
            "an operator's move locks before it judges",
            "                statement = db.locking(statement, of=table, skip=look > 0)\n",
            "                pass\n",
        ),
    ),
]
