"""Guards of what an application builds on: its own transactions, middleware, and its tests."""

from __future__ import annotations

from .removal import Guard, guards

_A = "tests/store/test_aenqueue_in.py"

DEVELOPER: list[Guard] = [
    *guards(
        "store/sql/callers.py",
        _A,
        (
            "asyncpg's transaction has begun",
            '            await connection.exec_driver_sql("SELECT 1")\n',
            "",
        ),
        (
            "an awaited connection is refused by name",
            "    if _is_async(connection):\n        raise InvalidField(",
            "    if False:\n        raise InvalidField(",
        ),
    ),
    *guards(
        "store/sql/postgres_async.py",
        _A,
        (
            "without a transaction of theirs it is one (psycopg)",
            "own = connection.autocommit and",
            "own = False and",
        ),
        (
            "without a transaction of theirs it is one (asyncpg)",
            "theirs = connection.is_in_transaction()",
            "theirs = True",
        ),
        ("their rows are not ours (psycopg)", "row_factory=tuple_row", "row_factory=connection.row_factory"),
    ),
    *guards(
        "store/sql/sqlite_async.py",
        _A,
        (
            "without a transaction of theirs it is one",
            "if connection.in_transaction or connection.isolation_level is not None:",
            "if True:",
        ),
        ("their rows are not ours", "        cursor.row_factory = None", "        pass"),
    ),
    *guards(
        "store/sql/postgres_hot.py",
        "tests/store/test_enqueue_in_django.py",
        (
            "their cursors are not ours",
            "cursor = psycopg.Cursor(theirs, row_factory=tuple_row)",
            "cursor = theirs.cursor(row_factory=tuple_row)",
        ),
    ),
    *guards(
        "worker/middleware.py",
        "tests/worker/test_middleware.py",
        ("a failed run has not succeeded", "    if failed is not None:\n", "    if False:\n"),
    ),
    *guards(
        "store/sql/copies.py",
        "tests/ops/test_copy.py",
        ("a copy takes no key from a live job", "        if added is None:\n", "        if False:\n"),
        (
            "only what has ended is copied",
            "        if connection.execute(db.locking(locked, of=jobs_archive)).first() is None:\n",
            "        if find_head(connection, job_id) is None:\n",
        ),
        (
            "the old job's ledger tells of its copy",
            '        _tell(connection, jobs_archive, job_id, f"as job {new_id}", now)\n',
            "",
        ),
    ),
    *guards(
        "testing/clock.py",
        "tests/testing",
        ("a clock does not go back", "if step < timedelta(0):", "if False:"),
    ),
    *guards(
        "testing/kit.py",
        "tests/testing",
        ("the application stands where it stood", "self.app.stand_on(self._before)", "pass"),
        ("a payload is compared", "carried[name] == payload[name]", "True"),
        ("how many is compared", "else len(found) == times", "else True"),
    ),
]
