"""redrive circuits, and where else a person reads why nothing is running."""

import json
from typing import Any

from redrive import Breaker, Fatal, Redrive
from redrive.domain.circuit import Said, Seen
from redrive.store.port import ClaimRequest
from tests.cli.command import run

PAYMENTS = Breaker("payments", failures=2, open_for=600, probes=2)


def declare(app: Any) -> None:
    @app.job("pay.v1", queue="pay", breaker=PAYMENTS)
    def pay() -> None:
        raise Fatal("never asked")

    app.job("refund.v1", queue="pay", breaker=PAYMENTS)(refund)
    app.worker().run(burst=True)


def refund() -> None: ...


def fail(app: Any) -> None:
    failed = Seen((b"x" * 16, 1), Said.FAILED, 0.0, "ConnectionError: \x1b[31mrefused")
    app.store.observe("payments", PAYMENTS, [failed] * 2)


WHY = r"2 failures in a row, the last: ConnectionError: \x1b[31mrefused"


def test_list_and_reset(app):
    assert run("circuits", "list").said.startswith("no circuits yet")
    assert json.loads(run("circuits", "list", "--json").text) == []
    declare(app)
    head, row = run("circuits", "list").text.splitlines()
    assert head.split() == ["circuit", "state", "for", "next", "failures", "types", "why"]
    assert row.split() == ["payments", "closed", "-", "-", "0", "pay.v1,", "refund.v1", "-"]
    fail(app)
    listed = run("circuits", "list").text
    assert "payments  open" in listed
    assert "probes in 1" in listed or "probes in 9 min" in listed
    assert WHY in listed, "stored text has no power over a terminal"
    (shown,) = json.loads(run("circuits", "list", "--json").text)
    assert (shown["state"], shown["failures"], shown["breaker"]["open_for"]) == ("open", 2, 600.0)

    assert run("circuits", "reset", "payments").code == 2, "why is part of it"
    ran = run("circuits", "reset", "payments", "--reason", "they are back", "--actor", "ann")
    assert (ran.code, ran.text) == (0, "circuit payments is closed\n")
    assert "reset by ann: they are back" in run("circuits", "list").text
    audit = run("audit", "list", "--target", "circuit payments", "--by", "ann").text
    assert "reset-circuit" in audit
    assert "they are back" in audit
    for wrong, said in (("other", "no circuit other"), ("no spaces", "circuit")):
        ran = run("circuits", "reset", wrong, "--reason", "x")
        assert (ran.code, said in ran.said) == (1, True)


def test_why_is_nothing_running(app):
    declare(app)
    job = app.enqueue("pay.v1", {})
    assert "circuit" not in run("doctor").text.partition("problems")[2]
    assert "Why does it wait?" not in run("jobs", "show", str(job.id)).text
    fail(app)
    (problem,) = [one for one in json.loads(run("doctor", "--json").text)["problems"] if "circuit" in one]
    assert problem.startswith("circuit payments: open for ")
    assert "jobs of pay.v1, refund.v1 wait; probes in " in problem
    assert problem.endswith(", or redrive circuits reset payments --reason TEXT")
    assert "payments (open)" in run("types").text
    shown = run("jobs", "show", str(job.id)).text
    assert f"Why does it wait?         circuit payments is open: {WHY}" in shown
    assert json.loads(run("jobs", "show", str(job.id), "--json").text)["kept_off"]["name"] == "payments"

    app.desk("ann").isolate([job.id])
    assert f"Would it start at once?   circuit payments is open: {WHY}" in run("dlq", "show", str(job.id)).text
    app.desk("ann").resurrect(job.id)

    moved = app.store.observe("payments", Breaker("payments", failures=1, open_for=0.1), [])
    assert moved[1].blocks
    over(app)
    assert "probes with the next job" in run("circuits", "list").text
    (probe,) = app.store.probe("payments", PAYMENTS, ClaimRequest("w", ("pay", "default"), 9, ("pay.v1",))).jobs
    assert probe.uuid == job.id
    assert "1 of 2 probes under way" in run("circuits", "list").text


def test_a_circuit_that_nobody_declares_any_more(app):
    declare(app)
    fail(app)
    newer = Redrive(app.settings.database.url.reveal(), worker={"build": "2"})
    for job_type in ("pay.v1", "refund.v1"):
        newer.job(job_type, queue="pay")(refund)
    newer.worker().run(burst=True)
    newer.close()
    (problem,) = [one for one in json.loads(run("doctor", "--json").text)["problems"] if "circuit" in one]
    said = "but no type declares it any more: redrive circuits reset payments --reason TEXT"
    assert problem.endswith(said)


def over(app: Any) -> None:
    from sqlalchemy import update

    from redrive.store.sql.tables_later import circuits

    moved = update(circuits).values(probe_at=circuits.c.changed_at)
    app.store._db.write(lambda connection: connection.execute(moved))
