"""The promises, checked on a finished demo: by the database's own statements, and by what was kept outside it."""

import hashlib
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from uuid import UUID

from examples.lab import accepted
from examples.lab.accepted import Accepted
from examples.lab.stage import DATABASE
from examples.lab.story import Teller
from redrive import Redrive
from redrive.store.port import PromiseResult

PLACED = """
SELECT id, 'hot' FROM jobs_hot UNION ALL SELECT id, 'archive' FROM jobs_archive
UNION ALL SELECT id, 'dead' FROM jobs_dlq"""
FIRST = """
SELECT j.id, coalesce(r.payload, j.payload)
FROM (SELECT id, payload FROM jobs_hot UNION ALL SELECT id, payload FROM jobs_archive
      UNION ALL SELECT id, payload FROM jobs_dlq) j
LEFT JOIN job_revisions r ON r.job_id = j.id AND r.revision = 1"""


WIDTH = 25  # of verdict, number and name


def check(folder: Path, teller: Teller) -> list[PromiseResult]:
    """Check and show every promise; the answer is the broken ones."""
    app = Redrive(f"sqlite:///{folder / DATABASE}", config=folder / "redrive.toml")
    try:
        inside = app.store.promises()
        app.store.seal_audit()
        verdict = app.store.verify_audit()
    finally:
        app.close()
    chain = PromiseResult(
        "audited",
        f"{verdict.entries} entries under {verdict.seals} seals hash to what was sealed",
        "redrive audit verify",
        len(verdict.problems),
        verdict.problems,
    )
    outside = [*_held_outside(folder / DATABASE, accepted.read(folder)), chain]
    teller.scene("The promises")
    teller.say("Each query counts offences. Asked of the database (redrive doctor --promises shows the whole queries):")
    for result in inside:
        _show(teller, result)
    teller.say()
    teller.say("Asked with what was kept outside it, and of the audit log's own hashes:")
    for result in outside:
        _show(teller, result)
    return [result for result in (*inside, *outside) if result.number]


def _held_outside(database: Path, jobs: list[Accepted]) -> list[PromiseResult]:
    with closing(sqlite3.connect(database)) as connection:
        placed = [(str(UUID(bytes=row[0])), row[1]) for row in connection.execute(PLACED)]
        first = {str(UUID(bytes=row[0])): hashlib.sha256(row[1]).hexdigest() for row in connection.execute(FIRST)}
    places = Counter(job for job, _ in placed)
    rows = ", ".join(f"{number} {place}" for place, number in Counter(place for _, place in placed).items())
    known = {job.id for job in jobs}
    astray = [f"job {job.id} is in {places[job.id]} places" for job in jobs if places[job.id] != 1]
    astray += [f"job {job} is in the database, nobody accepted it" for job in places if job not in known]
    changed = [
        f"payload of job {job.id} is not the one that was accepted"
        for job in jobs
        if first.get(job.id, job.sha256) != job.sha256
    ]
    return [
        PromiseResult(
            "conservation",
            f"each of the {len(jobs)} accepted ids is in one place, and no other id is ({rows})",
            PLACED,
            len(astray),
            tuple(astray[:5]),
        ),
        PromiseResult(
            "exactness",
            f"{len(first)} payloads have the SHA-256 that was accepted; of a repaired one its first revision has it",
            FIRST,
            len(changed),
            tuple(changed[:5]),
        ),
    ]


def _show(teller: Teller, result: PromiseResult) -> None:
    verdict, style = ("BROKEN", "bold red") if result.number else ("kept", "")
    teller.point(f"{verdict:<6}{result.number:>5}  {result.promise}", result.title, width=WIDTH, style=style)
    teller.point("", teller.cut(result.query, width=WIDTH), width=WIDTH, style="dim")
    for example in result.examples:
        teller.point("", f"found: {example}", width=WIDTH, style=style)
