"""redrive plan and redrive ops, on both databases."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from redrive import Spot
from tests.cli.command import run
from tests.ops.crowd import die
from tests.ops.test_plans import spots


def facts(text: str) -> dict[str, str]:
    return dict(line.split("  ", 1) for line in text.splitlines() if "  " in line)


@pytest.mark.slow
def test_a_plan_is_looked_at_and_run_by_its_digest(app):
    ids = die(app, 30)
    made = run("plan", "resurrect", "--filter", "queue=q reason=fatal", "--priority", "40")
    assert made.code == 0
    shown = {name: value.strip() for name, value in facts(made.text).items()}
    assert (shown["matched"], shown["will be resurrected"], shown["state"]) == ("30", "30", "ready")
    assert shown["the same again"] == "redrive plan resurrect --filter 'queue=q reason=fatal' --priority 40"
    assert str(ids[0]) in made.text
    command = made.said.partition("next: redrive ")[2].split()
    assert run(*command[:3], "--digest", "0" * 12).code == 1
    assert run(*command[:3]).code == 2
    done = run(*command)
    assert (done.code, done.text) == (0, "30 resurrected\n")
    again = run(*command)
    assert (again.code, again.text) == (0, "30 resurrected\n")
    assert "it is operation" in again.said
    assert {app.store.head(job).life for job in ids} == {2}
    number = again.said.split()[-1]
    shown = {name: value.strip() for name, value in facts(run("ops", "show", number).text).items()}
    assert (shown["resurrected"], shown["since: waiting"]) == ("30 of 30", "30")
    listed = json.loads(run("ops", "list", "--json").text)
    assert [(one["state"], one["moved"]) for one in listed] == [("done", 30)]
    assert json.loads(run("plan", "show", command[2], "--json").text)["state"] == "run"
    back = run("ops", "take-back", number)
    assert (back.code, back.text) == (0, "30 taken back\n")
    assert run("ops", "resume", number).code == 1
    assert "done" in run("ops", "list").text
    assert "run" in run("plan", "list").text


def test_partly_failed_is_told_by_the_exit_code(lite):
    die(lite, 3)
    die(lite, 2, payload=b"{")
    app_said = run("dlq", "resurrect", "--filter", "all", "--yes", "--json")
    assert app_said.code == 1
    told = json.loads(app_said.text)
    assert (told["moved"], told["skipped"], told["state"]) == (3, {"unreadable": 2}, "done")
    shown = json.loads(run("ops", "show", str(told["number"]), "--json").text)
    assert [one["reason"] for one in shown["left_out"]] == ["unreadable"] * 2
    assert shown["outcomes"]["waiting"] == 3


def test_purge_by_a_plan(lite, here):
    ids = die(lite, 4)
    made = json.loads(run("plan", "purge", "--filter", "queue=q", "--json").text)
    words = ["plan", "run", str(made["number"]), "--digest", made["digest"]]
    assert "count: is missing" in run(*words).said
    assert "export it to first" in run(*words, "--count", "4").said
    Path("there.ndjson").write_text("mine")
    assert "not overwritten" in run(*words, "--count", "4", "--export", "there.ndjson").said
    assert "count" in run(*words, "--count", "5", "--export", "not.ndjson").said
    assert not Path("not.ndjson").exists()
    done = run(*words, "--count", "4", "--export", "gone.ndjson")
    assert (done.code, done.text) == (0, "4 purged\n")
    assert len(Path("gone.ndjson").read_bytes().splitlines()) == 4
    assert spots(lite, ids)[Spot.NOWHERE] == 4
    back = run("dlq", "import", "gone.ndjson")
    assert back.code == 0
    assert spots(lite, ids)[Spot.DLQ] == 4


def test_words_for_what_cannot_be(lite):
    die(lite, 1)
    for arguments, code, said in (
        (["plan", "resurrect"], 2, "--filter all"),
        (["plan", "resurrect", "--filter", "reson=zombie"], 1, "'reson' is no condition"),
        (["plan", "resurrect", "--filter", "all", "--include", "key-held"], 1, "cannot be included"),
        (["plan", "cancel", "--filter", "reason=fatal"], 1, "reason"),
        (["plan", "show", "99"], 1, "no plan 99"),
        (["ops", "show", "99"], 1, "no operation 99"),
        (["ops", "pause", "99"], 1, "no operation 99"),
        (["dlq", "resurrect", "--filter", "all", "--queue", "q"], 2, "not both"),
        (["dlq", "resurrect", "a", "--filter", "all"], 2, "ids or filters, not both"),
        (["dlq", "resurrect", "a", "--rate", "5"], 2, "go with filters"),
        (["dlq", "resurrect", "--filter", "all", "--rate", "0", "--yes"], 1, "rate"),
    ):
        ran = run(*arguments)
        assert (ran.code, said in ran.said) == (code, True), (arguments, ran)
        assert "Traceback" not in ran.said
    assert lite.store.operations() == []


@pytest.mark.slow
def test_an_interrupt_pauses_and_run_goes_on(lite, here):
    ids = die(lite, 400)
    main = "from redrive.faces.cli.main import main; main()"
    words = [sys.executable, "-c", main, "dlq", "resurrect", "--filter", "queue=q", "--yes", "--rate", "100"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as command:
        assert command.stderr is not None
        for line in command.stderr:  # it says how far it is
            if line.startswith("resurrected: "):
                break
        command.send_signal(signal.SIGINT)
        said = command.stderr.read()
    assert command.returncode == 1
    assert "is paused: redrive ops run 1" in said
    operation = lite.store.operation(1)
    assert operation.state == "paused"
    assert 0 < operation.progress.moved < 400
    assert operation.owner is None
    # Its rate would take a while: the rest goes on in one batch at once after a cancel and a new plan.
    assert run("ops", "cancel", "1").code == 0
    left = run("dlq", "resurrect", "--filter", "queue=q", "--yes")
    assert left.code == 0
    assert spots(lite, ids)[Spot.PENDING] == 400
    assert {lite.store.head(job).life for job in ids} == {2}
