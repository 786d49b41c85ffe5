"""The guards of keys, completion markers, cancellation and leases."""

from __future__ import annotations

from .removal import Guard, guards

_T = "tests/store/test_"
_W = "tests/worker/test_"

KEYS: list[Guard] = [
    *guards(
        "store/sql/once.py",
        f"{_T}once.py",
        (
            "a marker needs the lease",
            "            if row is not None and row.lease == one.lease and row.started_at is not None:\n"
            "                firsts",
            "            if row is not None:\n                firsts",
        ),
        ("a completion that is over counts no more", "_mark.expires_at <= db.now(), (_mark", "(_mark"),
        (
            "a lost answer is given again",
            "where=or_(_mark.expires_at <= db.now(), (_mark.job_id == new.job_id) & (_mark.lease == new.lease)),",
            "where=_mark.expires_at <= db.now(),",
        ),
        ("one claim has one winner", "MarkAnswer(True) if first is one else", "MarkAnswer(True) if True else"),
        (
            "an end lets go of no completion",
            'running = (_mark.job_id.in_(jobs), _mark.state == "running")',
            'running = (_mark.state == "running",)',
        ),
        ("pruning is bounded", ".order_by(_mark.expires_at).limit(BATCH)", ".order_by(_mark.expires_at)"),
    ),
    *guards(
        "store/sql/archive.py",
        f"{_T}once.py",
        (
            "a skip needs the lease",
            "row.lease == move.lease and row.started_at is not None",
            "row.started_at is not None",
        ),
        ("a skip needs a start", "row.lease == move.lease and row.started_at is not None", "row.lease == move.lease"),
        ("a completion commits with its job", "        complete(db, connection, marks)\n", ""),
        (
            "the ledger says why",
            "            write_ledger(db, connection, lines, worker_id=worker_id, build=build)\n",
            "            pass\n",
        ),
    ),
    *guards(
        "store/sql/settle.py",
        f"{_T}once.py",
        ("a failing end lets go", "        release(db, connection, [UUID(bytes=job) for job, _ in applied])\n", ""),
    ),
    *guards(
        "store/sql/rescue.py",
        f"{_T}once.py",
        (
            "a rescue lets go",
            "            release(db, connection, [one.id for one in rescued])\n",
            "            pass\n",
        ),
    ),
    *guards(
        "store/sql/purge.py",
        f"{_T}once.py",
        ("a purge lets go", "    forget(act.db, act.connection, group_ids)\n", ""),
    ),
    *guards(
        "worker/once.py",
        f"{_W}once.py",
        (
            "who gets no marker does not begin",
            "        self._runner.begin(run for run in wanted if not run.over)\n",
            "        self._runner.begin(run for run in wanted)\n",
        ),
        ("a lost lease begins no run", "            self._runner.lose(run.pair)\n", "            pass\n"),
        (
            "a run waits for its marker",
            "            except (Unavailable, Retryable) as error:\n",
            "            except ZeroDivisionError as error:\n",
        ),
    ),
    *guards(
        "worker/helpers.py",
        f"{_W}once.py",
        ("markers are pruned", "if any(handler.once is not None for handler in registry):", "if False:"),
    ),
    *guards(
        "store/sql/rescue.py",
        f"{_T}liveness.py",
        (
            "a run is judged by who knows its type",
            "            ours = expired.where(or_(for_anybody, hot.type.in_(types), lost))\n",
            "            ours = expired\n",
        ),
        ("what is only reserved is anybody's", "or_(hot.started_at.is_(None), hot", "or_(hot"),
        ("what is not wanted is anybody's", "is_(None), hot.cancel_requested.is_not(None))", "is_(None))"),
        ("what nobody serves is buried in the end", "hot.type.in_(types), lost)", "hot.type.in_(types))"),
        ("not while somebody serves it", "found - served(db, connection, zombie_timeout) if found else found", "found"),
        (
            "not before somebody may come back",
            "lost = and_(hot.type.in_(orphans(connection, types)), silent > limit + orphaned)",
            "lost = hot.type.in_(orphans(connection, types))",
        ),
        ("one rescuer at a time", '        if not db.alone(connection, "rescue"):\n            return []\n', ""),
    ),
    *guards(
        "worker/helpers.py",
        f"{_W}leases.py::test_a_run_waits_for_a_rescuer_that_knows_its_type",
        ("a worker judges what it serves", "types=registry.types", "types=None"),
    ),
    *guards(
        "store/sql/effects.py",
        f"{_T}cancel.py::test_a_request_is_told_to_the_worker_that_holds_the_job_and_to_nobody_else",
        (
            "a request is told at once",
            "{mailbox(job.worker_id) for job, _ in group if job.worker_id is not None}",
            "()",
        ),
    ),
    *guards(
        "worker/wakeup.py",
        f"{_W}leases.py::test_a_cancel_request_arrives_at_once_where_the_database_can_tell",
        ("what is told is looked at", "                self._beat()\n", "                pass\n"),
    ),
    *guards(
        "worker/chores.py",
        f"{_W}chores.py",
        ("a call that hurried is followed by the next", "due = min(due, time.monotonic())", "pass"),
    ),
    *guards(
        "store/sql/fleet.py",
        f"{_T}fleet.py::test_what_others_wait_for",
        ("only who waits is reckoned with", "live = (workers.c.waiting, db.age", "live = (db.age"),
        ("only who lives is reckoned with", "db.age(workers.c.seen_at) <= ABSENT, workers.c.id", "workers.c.id"),
        ("a worker is no other", "<= ABSENT, workers.c.id != worker_id)", "<= ABSENT)"),
    ),
    *guards(
        "worker/buffer.py",
        f"{_W}line.py::test_what_a_busy_worker_holds_goes_to_one_that_waits"
        f" {_W}line.py::test_what_was_given_away_is_not_taken_back_before_a_slot_is_free",
        ("what others wait for is given to them", " or await self._elsewhere.wanted(runs)\n", "\n"),
    ),
    *guards(
        "worker/loop.py",
        f"{_W}line.py::test_what_a_busy_worker_holds_goes_to_one_that_waits"
        f" {_W}line.py::test_what_was_given_away_is_not_taken_back_before_a_slot_is_free",
        (
            "what was given away is not taken back at once",
            "        if (left := self._elsewhere.rest_until - time.monotonic()) > 0 and self._choked():\n"
            "            return self._until_promote(left)\n",
            "",
        ),
    ),
]
