"""The guards of the store: both sets of hot statements, settling, operators' moves, evidence, lists, connections."""

from __future__ import annotations

from .removal import Guard, guards

_T = "tests/store/test_"

STORE: list[Guard] = [
    *guards(
        "store/sql/postgres_sql.py",
        f"{_T}claim.py",
        ("a paused queue is not claimed", "WHERE NOT q.paused AND q.max_running", "WHERE q.max_running"),
        ("a paused queue starts nothing", "AND NOT paused\n  AND max_running", "\n  AND max_running"),
        ("priority goes first", "ORDER BY priority DESC, due_at, id LIMIT", "ORDER BY due_at, id LIMIT"),
        ("queues go in the order given", "(SELECT name FROM g ORDER BY o) g", "(SELECT name FROM g ORDER BY name) g"),
        ("a claim is bounded over its queues", "SKIP LOCKED) j LIMIT %(limit)s))", "SKIP LOCKED) j))"),
        (
            "a start needs the lease",
            "WHERE h.id = i.id AND h.lease = i.lease AND (h.started_at IS NULL)",
            "WHERE h.id = i.id AND (h.started_at IS NULL)",
        ),
        ("a start counts once", " AND (h.started_at IS NULL) = (i.lease IS NOT NULL)\n", "\n"),
        (
            "only what is due is promoted",
            "state = 'scheduled' AND due_at <= now()\n",
            "state = 'scheduled'\n",
        ),
        (
            "a claim is a version",
            "updated_at = now(), version = h.version + 1,\n  started_at",
            "updated_at = now(),\n  started_at",
        ),
    ),
    *guards(
        "store/sql/postgres_sql.py",
        f"{_T}fleet.py",
        ("a claim waits for a pause", "q.rate IS NULL FOR SHARE OF q)", "q.rate IS NULL)"),
        ("a start waits for a pause", "AND rate IS NULL FOR SHARE)", "AND rate IS NULL)"),
        (
            "only those who wait are woken",
            "unnest(%(queues)s::text[]) q\nWHERE EXISTS (SELECT 1 FROM {s}.workers WHERE waiting)",
            "unnest(%(queues)s::text[]) q",
        ),
    ),
    *guards(
        "store/sql/postgres_sql.py",
        f"{_T}enqueue.py",
        ("a time that has passed is now", "greatest(now(), i.at, ", "greatest(i.at, "),
        ("the first of one key in a call gets it", "ORDER BY type, idempotency_key, place", "ORDER BY type"),
    ),
    *guards(
        "store/sql/postgres_sql.py",
        f"{_T}settle.py",
        (
            "a success needs the lease",
            "WHERE h.id = i.id AND h.lease = i.lease AND (h.started_at IS NOT NULL)",
            "WHERE h.id = i.id AND (h.started_at IS NOT NULL)",
        ),
        ("a success needs a start", " AND (h.started_at IS NOT NULL) = (i.lease IS NOT NULL)\n", "\n"),
        (
            "totals add up",
            "SET succeeded = queue_totals.succeeded + excluded.succeeded",
            "SET succeeded = excluded.succeeded",
        ),
    ),
    *guards(
        "store/sql/postgres_sql.py",
        f"{_T}liveness.py",
        ("a heartbeat waits for nobody", "FOR UPDATE OF j SKIP LOCKED", "FOR UPDATE OF j"),
        (
            "a heartbeat needs the lease",
            "JOIN {s}.jobs_hot j ON j.id = i.id AND j.lease = i.lease FOR",
            "JOIN {s}.jobs_hot j ON j.id = i.id FOR",
        ),
    ),
    *guards(
        "store/sql/postgres_hot.py",
        f"{_T}races.py::test_a_holder_that_keeps_changing_loses_no_job",
        (
            "an enqueue without an answer is done anew",
            "                if any(job.id not in answers for job in jobs):\n"
            "                    raise psycopg.Rollback(transaction)\n",
            "                answers = {job.id: answers.get(job.id, Enqueued(job.id)) for job in jobs}\n",
        ),
    ),
    *guards(
        "store/sql/postgres_pool.py",
        f"{_T}plans.py",
        ("hot plans cannot flip", 'connection.execute("; ".join(f"SET {name} = off" for name in STEADY))', "pass"),
    ),
    *guards(
        "store/sql/postgres.py",
        f"{_T}errors.py",
        ("secrets in a query string are not shown", "plain.difference_update_query(_SECRETS)", "plain"),
        (
            "a child forgets its parent's connections",
            "            inherited.dispose(close=False)\n",
            "            pass\n",
        ),
    ),
    *guards(
        "store/sql/postgres.py",
        f"{_T}enqueue.py {_T}enqueue_in.py",
        (
            "a key that stays taken is a conflict",
            "            raise Conflict(str(clash)) from clash\n\n",
            "            raise\n\n",
        ),
        (
            "autocommit is made one transaction",
            "connection.transaction() if own else",
            "contextlib.nullcontext() if own else",
        ),
    ),
    *guards(
        "store/sql/sqlite_hot.py",
        f"{_T}claim.py",
        ("a paused queue is not claimed", "name = ? AND NOT paused AND max_running", "name = ? AND max_running"),
        ("a paused queue starts nothing", "WHERE paused OR max_running IS NOT NULL", "WHERE max_running IS NOT NULL"),
        (
            "priority goes first",
            "ORDER BY priority DESC, due_at, id LIMIT ?)\n AND",
            "ORDER BY due_at, id LIMIT ?)\n AND",
        ),
        (
            "a start needs the lease",
            "WHERE id = ? AND lease = ? AND started_at IS NULL",
            "WHERE id = ? AND ? AND started_at IS NULL",
        ),
        ("a lost start is recognised", "or driver.execute(_STARTED, pair).fetchall()  #", "or []  #"),
        (
            "only what is due is promoted",
            "state = 'scheduled' AND due_at <= ? ORDER",
            "state = 'scheduled' AND ? ORDER",
        ),
    ),
    *guards(
        "store/sql/sqlite_hot.py",
        f"{_T}settle.py",
        (
            "a success needs the lease",
            "WHERE h.lease = i.lease AND h.started_at IS NOT NULL",
            "WHERE h.started_at IS NOT NULL",
        ),
        ("a success needs a start", "WHERE h.lease = i.lease AND h.started_at IS NOT NULL", "WHERE h.lease = i.lease"),
        ("totals add up", "SET succeeded = succeeded + excluded.succeeded", "SET succeeded = excluded.succeeded"),
    ),
    *guards(
        "store/sql/sqlite_hot.py",
        f"{_T}liveness.py {_T}enqueue.py",
        (
            "a heartbeat needs the lease",
            "SET heartbeat_at = ? WHERE id = ? AND lease = ?",
            "SET heartbeat_at = ? WHERE id = ? AND ?",
        ),
        ("a time that has passed is now", "    due = max(due, now)\n", ""),
    ),
    *guards(
        "store/sql/sqlite.py",
        f"{_T}enqueue_in.py {_T}lists.py",
        ("autocommit is made one transaction", "if not begins_nothing(connection):", "if True:"),
        (
            "a search knows letters beyond A to Z",
            'connection.create_function("lower", 1, _lower, deterministic=True)',
            "pass",
        ),
    ),
    *guards(
        "store/sql/settle.py",
        f"{_T}settle.py",
        (
            "a failing end needs the lease",
            "row.lease != move.lease or row.started_at is None",
            "row.started_at is None",
        ),
        ("a failing end needs a start", "row.lease != move.lease or row.started_at is None", "row.lease != move.lease"),
        ("one end counts once", " or (move.id, move.lease) in applied:\n", ":\n"),
        ("a burial with a request is a cancel", "Reason.CANCELLED if cancel else move.reason", "move.reason"),
        (
            "a retry with a request is buried",
            "                case Retry() if cancel:\n",
            "                case Retry() if False:\n",
        ),
        (
            "a snooze with a request is buried",
            "                case SnoozeFor() if cancel:\n",
            "                case SnoozeFor() if False:\n",
        ),
        ("a retry is charged", "            spent=jobs_hot.c.spent + 1,\n", ""),
    ),
    *guards(
        "store/sql/held.py",
        f"{_T}settle.py",
        (
            "a lease is given up with the job",
            '{"lease": None, "worker_id": None, "heartbeat_at": None, "started_at": None}',
            '{"lease": None, "heartbeat_at": None, "started_at": None}',
        ),
    ),
    *guards(
        "store/sql/ledger.py",
        f"{_T}settle.py",
        ("a zombie's lease was not settled", 'NOT_OWN = ("zombie", ', "NOT_OWN = ("),
        (
            "a note is no settle",
            '"late_success", "late_failure", "refused")\n"""Ledger kinds whose',
            ')\n"""Ledger kinds whose',
        ),
    ),
    *guards(
        "store/sql/late.py",
        f"{_T}settle.py",
        ("a late end is noted once", "or job is None or pair in noted:", "or job is None:"),
        ("a note is under its own life and attempt", "rescued.get(pair, job)", "job"),
        ("a late end is counted", "        tally.late(run.queue, run.type, kind, move.duration_ms)\n", ""),
    ),
    *guards(
        "store/sql/locate.py",
        f"{_T}late.py::test_a_purge_waits_for_the_note_and_removes_it",
        (
            "a job is held while its late end is noted",
            "                statement = db.locking(statement, of=table, skip=look > 0)\n",
            "                pass\n",
        ),
    ),
    *guards(
        "store/sql/lives.py",
        f"{_T}resurrect.py::test_a_key_that_is_always_taken_just_then",
        ("a job that was overtaken is skipped", "    if holder is None:", "    if True:"),
    ),
    *guards(
        "store/sql/burial.py",
        f"{_T}settle.py",
        ("a note changes nothing for the dead", "item.reason in FAILURES else None", "True else None"),
        (
            "the dead are found by their marks",
            "    mark_dead(connection, [(item.row.id, item.row.marks) for item in burials])\n",
            "",
        ),
    ),
    *guards(
        "store/sql/counters.py",
        f"{_T}settle.py",
        ("incidents fold", "incidents.c.deaths + insert.excluded.deaths", "insert.excluded.deaths"),
        ("buckets add up", "metric_buckets.c.n + insert.excluded.n", "insert.excluded.n"),
        ("work taken out is no failure", "        if reason in FAILURES:\n", "        if True:\n"),
    ),
    *guards(
        "store/sql/moves.py",
        f"{_T}claim.py",
        (
            "what is given back was ours",
            "row.lease != move.lease or row.started_at is not None:",
            "row.started_at is not None:",
        ),
        (
            "what runs is not given back",
            "row.lease != move.lease or row.started_at is not None:",
            "row.lease != move.lease:",
        ),
        ("what is given back twice is returned once", "            del rows[row.id]  #", "            rows[row.id]  #"),
        ("waiting counts from the first time", "func.coalesce(jobs_hot.c.unserved_since, db.now())", "db.now()"),
        (
            "what nobody serves was ours",
            "and row.lease == lease and row.started_at is None",
            "and row.started_at is None",
        ),
        ("what runs is served", "and row.lease == lease and row.started_at is None", "and row.lease == lease"),
    ),
    *guards(
        "store/sql/rescue.py",
        f"{_T}liveness.py",
        ("a queue's zombie timeout counts", "func.coalesce(queues.c.zombie_timeout, zombie_timeout)", "zombie_timeout"),
        (
            "a queue's fetched timeout counts",
            "func.coalesce(queues.c.fetched_timeout, fetched_timeout)",
            "fetched_timeout",
        ),
        ("a rescue is bounded", "        .limit(BATCH)\n", ""),
        (
            "a rescue waits for nobody",
            "db.locking(ours, of=jobs_hot, skip=True)",
            "db.locking(ours, of=jobs_hot)",
        ),
        ("a cancel is known to the rescuer", "row.cancel_requested is not None)", "False)"),
    ),
    *guards(
        "store/sql/operate.py",
        f"{_T}operate.py {_T}resurrect.py",
        ("a call is bounded", "    if len(targets) > BATCH:\n", "    if False:\n"),
        ("one payload is for one job", "wish.edit.payload is not UNSET and len(targets) > 1:", "False:"),
        (
            "the first of a call gets the key",
            "            holders.setdefault(key, job_id)  #",
            "            pass  #",
        ),
        (
            "a key counts under the type it goes to",
            "type_ = job.type if wish.edit.type is UNSET else wish.edit.type",
            "type_ = job.type",
        ),
    ),
    *guards(
        "store/sql/effects.py",
        f"{_T}operate.py",
        (
            "the first request to stop stays",
            "func.coalesce(jobs_hot.c.cancel_requested, act.db.now())",
            "act.db.now()",
        ),
        ("a begun life grows no younger", "case((hot.life_started_at > now, now), else_=hot.life_started_at)", "now"),
    ),
    *guards(
        "store/sql/content.py",
        f"{_T}operate.py",
        ("an edit without a change writes nothing", "        if not fields:\n", "        if False:\n"),
        ("only another payload is a change", "        if before != edit.payload:\n", "        if True:\n"),
        ("what is replaced is kept", "        keep_revision(act, [job.id], table, by)\n", ""),
        ("marks of the dead follow an edit", 'if job.place is Place.DLQ and "marks" in fields:', "if False:"),
    ),
    *guards(
        "store/sql/lives.py",
        f"{_T}resurrect.py",
        ("a new life is not charged", '        "spent": literal(0, Integer),\n', ""),
        ("a new life counts its attempts", '        "attempt": literal(0, Integer),\n', ""),
        (
            "the failed total tells of the dead",
            "            act.tally.totals[job.queue].failed -= 1\n",
            "            pass\n",
        ),
        (
            "the living have no marks of the dead",
            "    act.connection.execute(delete(dead_marks).where(dead_marks.c.job_id.in_(inserted)))\n",
            "",
        ),
        ("a time that has passed is now", "max(0.0, due.total_seconds())", "due.total_seconds()"),
        (
            "what was edited since is not taken back",
            "if died is None or act.connection.execute(edited.limit(1)).first() is not None:",
            "if died is None:",
        ),
        (
            "only this resurrection is undone",
            'replaced.replaced_by == "resurrect" and replaced.life == job.life - 1',
            'replaced.replaced_by == "resurrect"',
        ),
        ("an edit by hand is not undone", 'replaced.replaced_by == "resurrect" and replaced.life', "replaced.life"),
        ("the queue comes back", "queue = died.queue or job.queue", "queue = job.queue"),
        ("snoozes come back uncharged", "died.attempt if died.spent is None else died.spent", "died.attempt"),
        ("the cancelled have no incident", "died.fingerprint if failed else None", "died.fingerprint"),
    ),
    *guards(
        "store/sql/purge.py",
        f"{_T}purge.py",
        (
            "a trail goes with its job",
            "for table in (job_ledger, job_revisions, dead_marks):",
            "for table in (job_revisions, dead_marks):",
        ),
        (
            "the hash covers what revisions held",
            "    for statement in (lines, revisions):\n",
            "    for statement in (lines,):\n",
        ),
        (
            "a purge is counted",
            "        elif job.reason in FAILURES:\n            act.tally.totals[job.queue].purged_failed += 1\n",
            "",
        ),
    ),
    *guards(
        "store/sql/exchange.py",
        f"{_T}purge.py",
        ("an id that is anywhere is skipped", "            if job_id in taken:\n", "            if False:\n"),
        (
            "a trail with a gap is refused",
            "(missing := _missing(job.record)) is not None:",
            "(missing := None) is not None:",
        ),
        ("a death without a line gets one", "    if not died:\n", "    if False:\n"),
        ("only what is old enough goes", "        .where(jobs_archive.c.finished_at < older_than)\n", ""),
    ),
    *guards(
        "store/sql/audit.py",
        f"{_T}audit.py",
        ("a seal counts its entries", "            if len(members) != row.entries:\n", "            if False:\n"),
        (
            "a seal covers its entries",
            "seal_hash(row.number, row.previous, [(m.id, m.content_hash) for m in members]) != row.root",
            "False",
        ),
        ("seals are a chain", "            if row.previous != previous:\n", "            if False:\n"),
        ("no seal is missing", "            if row.number != number + 1:\n", "            if False:\n"),
        ("an entry's seal is there", "    if total != entries + unsealed:\n", "    if False:\n"),
        (
            "unsealed entries are checked",
            "(problem := _tampered(member))]\n        unsealed",
            "False]\n        unsealed",
        ),
        ("the job of an entry is hashed", "honest = job_id is None or str(job_id) == found.target", "honest = True"),
        (
            "the revision of an entry is hashed",
            'honest = honest and revision == found.details.get("revision", {}).get("after")',
            "honest = honest",
        ),
    ),
    *guards(
        "store/sql/lists.py",
        f"{_T}lists.py",
        ("the cancelled are not in the default view", "    elif not f.cancelled:\n", "    elif False:\n"),
        ("a search is never widened", "    if not 1 <= len(words) <= WORDS_MAX:\n", "    if not words:\n"),
        ("percent signs are themselves", "autoescape=True", "autoescape=False"),
        ("every word must be found", "    return and_(\n", "    return or_(\n"),
        ("a cursor goes with its sort", "    if kind != sort.value:\n        raise", "    if False:\n        raise"),
        (
            "a cursor's time has a zone",
            'require_aware("cursor", datetime.fromisoformat(moment))',
            "datetime.fromisoformat(moment)",
        ),
        ("a sort needs an index", "    if sort not in SORTS[place]:\n", "    if False:\n"),
        ("what cannot be stored cannot be asked for", "isinstance(text, str) and _UNSTORABLE.search(text)", "False"),
        ("counting stops", "Count(min(number, COUNT_CAP), number > COUNT_CAP)", "Count(number, False)"),
        ("before is before", "column < before", "column <= before"),
    ),
    *guards(
        "store/sql/fleet.py",
        f"{_T}fleet.py",
        (
            "a queue changes at the version that was read",
            "if version is not None and version != row.version:",
            "if False:",
        ),
        ("a change that changes nothing is no version", "        if changed:\n", "        if True:\n"),
        ("a worker that registers again keeps its slot", "if again is None else again", "if True else again"),
        ("slots are shared evenly", "key=lambda number: (used[number], number)", "key=lambda number: number"),
    ),
    *guards(
        "store/sql/fleet.py",
        f"{_T}claim.py::test_announced_types_are_those_of_workers_that_live",
        ("the dead announce nothing", "where(db.age(workers.c.seen_at) <= alive_within)", "where(True)"),
    ),
    *(
        guard
        for name, text in (
            ("the failed total is compared", " OR r.dead <> coalesce(c.dead, 0)\n"),
            ("the succeeded total is compared", "r.done <> coalesce(c.done, 0) OR "),
        )
        for guard in guards(
            "store/sql/promises.py", f"{_T}promises.py", (name, text, "\n" if text.endswith("\n") else "")
        )
    ),
]
