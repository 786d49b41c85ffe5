"""redrive archive copy."""

import json
from uuid import uuid4

from .command import run


def test_jobs_are_copied_and_what_cannot_be_is_named(app):
    done = app.enqueue("email.send.v1", {"to": "a", "subject": "b", "body": "c"}, idempotency_key="k")
    app.worker().run(burst=True)
    nobody = uuid4()
    ran = run("archive", "copy", str(done.id), str(nobody), "--note", "again")
    assert (ran.code, str(nobody) in ran.said) == (1, True)
    (line,) = ran.text.splitlines()
    assert line.startswith(f"{done.id} copied as ")
    assert "pending" in run("jobs", "show", line.rpartition(" ")[2]).text

    held = run("archive", "copy", str(done.id))
    assert (held.code, "drop the key" in held.said) == (1, True)
    ran = run("archive", "copy", str(done.id), "--drop-key", "--json")
    assert ran.code == 0
    assert json.loads(ran.text)[0]["id"] == str(done.id)
    assert "copied as job" in " ".join(run("jobs", "show", str(done.id)).text.split())
