"""Guards of outages: what is said, what waits, what is taken up, what is left."""

from __future__ import annotations

from .removal import Guard, guards

_T = "tests/worker/test_outages.py"
_U = "tests/store/test_unavailable.py"

OUTAGES: list[Guard] = [
    *guards(
        "worker/outages.py",
        _T,
        ("an outage is said once", "            news = error.cause not in self._causes\n", "            news = True\n"),
        (
            "it is back when all that failed came through",
            "            if self._lines:\n                return\n",
            "",
        ),
        ("an outage is no calm", "return 0.0 if self._lines else", "return"),
    ),
    *guards(
        "worker/rescue.py",
        _T,
        ("after an outage leases are renewed first", "self._outage.calm() >= GRACE * self._interval and ", ""),
        ("who waited does not judge", "if stepped or time.monotonic() - began > self._interval:", "if stepped:"),
        ("a step of the clock is waited out", "if stepped or time", "if time"),
        (
            "a slow rescue lets the others renew",
            "            if (seconds := time.monotonic() - began) > self._interval:\n",
            "            if (seconds := time.monotonic() - began) > 1e9:\n",
        ),
    ),
    *guards(
        "store/sql/rescue.py",
        _T,
        (
            "a rescue that waited takes nothing",
            "        if abs(late.total_seconds()) > within:\n            return []\n",
            "",
        ),
        (
            "a lease from the future expires",
            "silent = func.abs(db.age(hot.heartbeat_at))",
            "silent = db.age(hot.heartbeat_at)",
        ),
    ),
    *guards(
        "worker/loop.py",
        _T,
        ("a lost claim is taken up", "        if self._doubtful:\n            await self._take_up()\n", ""),
        (
            "a late claim is not believed",
            "        self._doubtful = time.monotonic() - began > self._patience\n",
            "        self._doubtful = False\n",
        ),
        ("what was let go is not run again", " | self._runner.let_go", ""),
    ),
    *guards(
        "worker/chores.py",
        _T,
        (
            "heartbeats come soon after an outage",
            "                due = time.monotonic() + sooner\n",
            "                due += self._interval\n",
        ),
    ),
    *guards(
        "worker/announce.py",
        _T,
        ("the database is waited for at the start", "if not patient:", "if True:"),
    ),
    *guards(
        "store/sql/postgres.py",
        _U,
        ("a read-only server is left", "            self._leave()\n", "            pass\n"),
        ("listeners leave too", "            listener.leave()\n", "            pass\n"),
    ),
    *guards(
        "store/sql/postgres_connect.py",
        _U,
        (
            "of several hosts the one that can be written",
            '        known["target_session_attrs"] = "read-write"',
            "        pass",
        ),
    ),
    *guards(
        "store/sql/postgres_connect.py",
        "tests/faults/test_pooler.py",
        ("a pooler is seen", "    return bool(told != true)\n", "    return False\n"),
    ),
    *guards(
        "store/sql/wal.py",
        "tests/store/test_sqlite_limits.py",
        ("the write-ahead log is emptied", "wal_checkpoint(TRUNCATE)", "wal_checkpoint(PASSIVE)"),
    ),
    *guards(
        "store/sql/sqlite.py",
        "tests/store/test_sqlite_limits.py",
        ("a network file system is refused", "if kind := network_file_system(path):", "if kind := '':"),
    ),
    *guards(
        "store/sql/sqlite_errors.py",
        "tests/store/test_sqlite_limits.py",
        ("a full disk is named", "    if code & 0xFF == sqlite3.SQLITE_FULL or ", "    if False and "),
    ),
    *guards(
        "worker/rescue.py",
        "tests/faults/test_clocks.py::test_steps_of_the_databases_clock_take_nobodys_jobs",
        (
            "steps of a clock take nobody's jobs",
            "        if stepped or time.monotonic() - began > self._interval:\n            self._wait()\n",
            "        self._clock = None\n",
        ),
    ),
    *guards(
        "worker/leases.py",
        _T,
        (
            "a lease is given up when it ends",
            "                    first = min(first, left)\n",
            "                    pass\n",
        ),
    ),
]
