"""``--break``: damage a finished demo on purpose, by plain SQL on the file, past everything that guards it.

The promises must notice, or they are worth nothing.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from examples.lab.stage import DATABASE
from examples.lab.story import StoryError


@dataclass(frozen=True)
class Damage:
    """What is done, in words and in SQL; it must touch exactly one row."""

    what: str
    sql: str


DAMAGES = {
    "conservation": Damage(
        "a dead job is put back into the hot table by hand, and stays in the dead letter queue",
        """
INSERT INTO jobs_hot (id, due_at, created_at, updated_at, life_started_at, queue, type, content_type, payload, state)
SELECT id, due_at, created_at, updated_at, life_started_at, queue, type, content_type, payload, 'pending'
FROM jobs_dlq WHERE reason = 'fatal' ORDER BY id LIMIT 1""",
    ),
    "owner": Damage(
        "a job that waits is given a lease that no worker holds",
        "UPDATE jobs_hot SET lease = 42 WHERE id = (SELECT min(id) FROM jobs_hot WHERE state = 'scheduled')",
    ),
    "exclusive": Damage(
        "a lock key is held for a job that does not run",
        "INSERT INTO held_keys (lock_key, job_id, lease) SELECT 'mailbox:ada', min(id), 42 FROM jobs_archive",
    ),
    "evidence": Damage(
        "the ledger line of a death is deleted",
        """
DELETE FROM job_ledger WHERE id = (
  SELECT max(l.id) FROM job_ledger l JOIN jobs_dlq d ON d.id = l.job_id WHERE d.reason = 'fatal')""",
    ),
    "exactness": Damage(
        "one byte of a payload is changed: a capital letter made small",
        """
UPDATE jobs_archive SET payload = CAST(replace(payload, 'Welcome, Ada', 'welcome, Ada') AS BLOB)
WHERE id = (SELECT min(id) FROM jobs_archive WHERE instr(payload, CAST('Welcome, Ada' AS BLOB)))""",
    ),
    "audited": Damage(
        "the audit entry of the repaired e-mail is deleted",
        """
DELETE FROM audit_log WHERE id = (SELECT max(id) FROM audit_log WHERE action = 'resurrect' AND revision = 2)""",
    ),
}


def damage(folder: Path, name: str) -> Damage:
    """Do the damage ``name`` to the demo in ``folder``."""
    chosen = DAMAGES[name]
    with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")  # the schema itself refuses some of it
        touched = connection.execute(chosen.sql).rowcount
    if touched != 1:
        raise StoryError(
            f"--break {name} touched {touched} rows, not one: the demo has changed, and it has not followed"
        )
    return chosen
