"""redrive dlq: the whole way of a dead job, and every way to be refused."""

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from redrive import Place, Spot
from redrive.domain.filters import JobFilter
from tests.cli.command import run
from tests.cli.conftest import SEED, die

NOBODY, NOWHERE = str(UUID(int=1)), str(UUID(int=2))
REPAIRED = SEED.replace(b'"Welcome!"', b'"Welcome!",')
REFUSED = b'{"to": "refused", "subject": "s", "body": "b"}'


def test_the_story_of_the_missing_comma(app):
    (job,) = die(app)
    listed = run("dlq", "list")
    assert listed.code == 0
    assert str(job) in listed.text
    assert "fatal" in listed.text

    shown = run("dlq", "show", str(job)).text
    assert shown.index("Why is it here?") < shown.index("Is it safe to run again?") < shown.index("payload (")
    assert "repair the payload or the code, then resurrect" in shown
    assert "line 4, column 3" in shown
    assert '-  "subject": "Welcome!"\n+  "subject": "Welcome!",\n' in shown

    ran = run("dlq", "resurrect", str(job), "--repair", "--tag", "fixed", "--priority", "30", "--note", "comma",
              "--actor", "ann")  # fmt: skip
    assert ran.code == 0, ran.said
    assert '+  "subject": "Welcome!",\n' in ran.text
    head = app.desk("t").get(job).head
    assert (head.spot, head.priority, head.tags, head.modified_by) == (Spot.PENDING, 30, ("fixed",), "ann")
    assert app.desk("t").get(job).payload == REPAIRED
    app.worker().run(burst=True)
    assert "sent to user@example.com" in run("jobs", "show", str(job)).text

    entries = json.loads(run("audit", "list", "--target", str(job), "--json").text)
    assert [(e["action"], e["actor"], e["channel"], e["note"]) for e in entries] == [
        ("resurrect", "ann", "cli", "comma")
    ]
    assert run("dlq", "resurrect", str(job), "--repair").code == 1


EVIL = "\x1b]0;pwned\x07[red]x[/red] \u202e\x9b31m\x7f"
"""Sets the window's title, speaks Rich's markup, turns the text around."""


@pytest.mark.slow
def test_stored_text_has_no_power_over_the_terminal(lite):
    """Every text that somebody else wrote: an import lets anything in but NUL, and a note may hold controls."""
    moment = "2026-04-30T14:32:07Z"
    entry = {
        "life": 1, "attempt": 1, "kind": "failed", "ended_at": moment, "worker_id": EVIL, "error_type": EVIL,
        "error_message": EVIL, "traceback": f"Traceback\n{EVIL}", "reason": "fatal",
    }  # fmt: skip
    job = {
        "id": NOBODY, "type": "t", "reason": "fatal", "failed_at": moment, "payload": f'{{"a": "{EVIL}" "b"}}',
        "tags": ["\u202e[red]tag[/red]"], "labels": {"[red]": "\u202e"}, "origin": EVIL, "error_type": EVIL,
        "error_message": EVIL, "build": EVIL, "worker_id": EVIL, "ledger": [entry],
    }  # fmt: skip
    assert run("dlq", "import", "-", "--note", EVIL, stdin=json.dumps(job).encode()).code == 0
    assert run("queues", "set", "q", "--owner", "\u202e[red]o[/red]").code == 0

    views = [["dlq", "list"], ["dlq", "show", NOBODY], ["audit", "list"], ["queues", "list"], ["workers"]]
    views += [[*view, "--json"] for view in views] + [["dlq", "show", NOBODY, "--json"], ["doctor"]]
    for view in views:
        for terminal in (False, True):
            ran = run(*view, terminal=terminal)
            assert ran.code == 0
            shown = ran.text + ran.said
            assert not [sign for sign in "\x07\x9b\x7f\u202e" if sign in shown], (view, terminal)
            assert "\x1b]" not in shown, (view, terminal)
            if not terminal:  # Rich colours tables and diffs with escapes of its own
                assert "\x1b" not in shown, view
    for view in (["dlq", "list"], ["dlq", "show", NOBODY], ["audit", "list"]):
        assert "\\x1b]0;pwned\\x07[red]x[/red] \\u202e" in run(*view).text  # nothing vanishes, markup included
    folded = run("audit", "list", terminal=True).text.replace("\n", "").replace(" ", "")
    assert folded.count("[") > 3

    whole = json.loads(run("jobs", "show", NOBODY, "--json").text)
    assert (whole["payload"], whole["error_message"]) == (job["payload"], EVIL)
    assert run("jobs", "show", NOBODY, "--payload").text == job["payload"]  # for a file, byte for byte


def test_a_list_that_is_piped_is_cut_nowhere(lite):
    lite.enqueue("a.type.with.a.name.that.is.longer.than.any.terminal.is.wide." + "x" * 100, {}, queue="q" * 100)
    text = run("jobs", "list").text
    assert "x" * 100 in text
    assert "q" * 100 in text
    narrow = run("jobs", "list", terminal=True).text.replace("\n", "").replace(" ", "")
    assert sum(narrow.count(letter) for letter in "qx") >= 200


def test_lists_filter_and_go_page_by_page(app):
    ids = die(app, SEED, REFUSED, b"[]")
    handle = app.enqueue("email.send.v1", {"to": "gone"})
    app.desk("t").cancel(handle.id)

    def listed(*options: str) -> set[UUID]:
        return {UUID(job["id"]) for job in json.loads(run("dlq", "list", "--json", *options).text)["jobs"]}

    assert listed() == set(ids)
    assert listed("--cancelled") == {*ids, handle.id}
    assert listed("--reason", "Cancelled") == {handle.id}
    assert listed("--type", "other") == set()
    assert listed("--queue", "notifications", "--failed-after", "1h") == set(ids)
    assert listed("--failed-before", "1h") == set()
    assert listed("--q", "Fatal") == {ids[1]}
    summary = json.loads(run("dlq", "list", "--summary", "--json").text)
    assert summary == {"fatal": 3, "cancelled": 1}

    seen: list[str] = []
    cursor: list[str] = []
    page: dict[str, Any] = {}
    for _ in range(3):
        page = json.loads(run("dlq", "list", "--limit", "1", "--json", *cursor).text)
        seen += [job["id"] for job in page["jobs"]]
        cursor = ["--cursor", page["next_cursor"] or ""]
    assert page["next_cursor"] is None
    assert set(seen) == {str(job) for job in ids}


REFUSALS: list[tuple[list[str], int, str]] = [
    (["dlq", "list", "--reason", "tired"], 1, "reason: 'tired' is no reason; expected fatal, "),
    (["dlq", "list", "--failed-after", "later"], 1, "failed_after: 'later' is not a time"),
    (["dlq", "list", "--with-label", "x"], 2, "write it as name=value"),
    (["dlq", "list", "--limit", "0"], 2, "limit"),
    (["dlq", "list", "--cursor", "x"], 1, "cursor"),
    (["dlq", "show", "x"], 1, "id: 'x' is not an id"),
    (["dlq", "show", NOBODY], 1, "no job"),
    (["dlq", "resurrect"], 2, "which jobs?"),
    (["dlq", "resurrect", NOBODY, "--reason", "fatal"], 2, "ids or filters, not both"),
    (["dlq", "resurrect", NOBODY, NOWHERE, "--repair"], 2, "exactly one id"),
    (["dlq", "resurrect", NOBODY, "--repair", "--payload", "{}"], 2, "one of"),
    (["dlq", "resurrect", NOBODY], 1, "skipped (not-found)"),
    (["dlq", "resurrect", NOBODY, "--priority", "101"], 1, "priority: 101"),
    (["dlq", "resurrect", NOBODY, "--delay", "-5"], 1, "delay"),
    (["dlq", "resurrect", NOBODY, "--delay", "nan"], 1, "delay: 'nan' is not a duration"),
    (["dlq", "purge"], 2, "which jobs?"),
    (["dlq", "import", "gone.ndjson"], 2, "No such file"),
    (["dlq", "edit", NOBODY], 1, "no job"),
    (["dlq", "nonsense"], 2, "No such command"),
    (["dlq"], 2, ""),
]


@pytest.mark.parametrize(("arguments", "code", "said"), REFUSALS, ids=[" ".join(case[0]) for case in REFUSALS])
def test_refusals_have_a_code_and_words(lite, arguments, code, said):
    ran = run(*arguments)
    assert ran.code == code, ran.said
    assert said in ran.said
    assert "Traceback" not in ran.said
    assert ran.out == b"" or code == 2 or "resurrected" in ran.text


def test_a_filter_is_confirmed_with_its_number(lite):
    ids = die(lite, SEED, REFUSED, b"[]")
    assert run("dlq", "resurrect", "--reason", "fatal").code == 2  # nobody can answer
    no = run("dlq", "resurrect", "--reason", "fatal", stdin=b"n\n", terminal=True)
    assert no.code == 1
    assert "1 will be skipped: unreadable" in no.said
    assert "resurrect 2 dead jobs?" in no.said
    assert "nothing was done" in no.said
    assert lite.insight().count(JobFilter(place=Place.HOT)).number == 0
    words = ["dlq", "resurrect", "--type", "email.send.v1", "--include", "unreadable"]
    yes = run(*words, stdin=b"y\n", terminal=True)
    assert yes.code == 0
    assert "3 resurrected" in yes.text
    assert {lite.desk("t").get(job).head.spot for job in ids} == {Spot.PENDING}

    back = run("dlq", "take-back", *map(str, ids))
    assert (back.code, back.text) == (0, "3 taken back\n")
    assert run("dlq", "resurrect", "--queue", "other", "--yes").said == "no job matches\n"


@pytest.mark.slow
def test_several_ids_and_an_answer_for_each(app):
    good, held = die(app, SEED, REFUSED)
    app.desk("t").edit(held, idempotency_key="k")
    live = app.enqueue("email.send.v1", {}, idempotency_key="k")
    gone = uuid4()
    ran = run("dlq", "resurrect", str(good), str(held), str(gone), "--to-queue", "slow", "--delay", "10m")
    assert ran.code == 1
    assert ran.text == "1 resurrected, 2 skipped\n"
    assert f"{held} skipped (key-held)" in ran.said
    assert str(live.id) in ran.said
    assert f"{gone} skipped (not-found)" in ran.said
    head = app.desk("t").get(good).head
    assert (head.queue, head.type, head.spot) == ("slow", "email.send.v1", Spot.SCHEDULED)
    dropped = run("dlq", "resurrect", str(held), "--drop-key", "--to-type", "email.v2", "--json")
    assert dropped.code == 0
    assert json.loads(dropped.text)[0]["did"] == "done"
    assert app.desk("t").get(held).head.type == "email.v2"


def test_purge_deletes_for_good(lite):
    one, two = die(lite, SEED, REFUSED)
    ran = run("dlq", "purge", str(one), "--note", "not wanted")
    assert (ran.code, ran.text) == (0, "1 purged\n")
    assert run("jobs", "show", str(one)).code == 1
    words = ["dlq", "purge", "--reason", "fatal"]
    for more, said in (([], "--export"), (["--no-export"], "--count"), (["--count", "2", "--no-export"], "deletes 1")):
        refused = run(*words, *more)
        assert refused.code
        assert said in refused.said
    wrong = run(*words, "--no-export", stdin=b"yes\n", terminal=True)
    assert (wrong.code, lite.desk("t").get(two).head.spot) == (1, Spot.DLQ)
    exported = run("dlq", "export").out
    right = run(*words, "--export", "gone.ndjson", stdin=b"1\n", terminal=True)
    assert (right.code, right.text) == (0, "1 purged\n")
    assert Path("gone.ndjson").read_bytes() == exported
    assert run("dlq", "purge", str(two)).code == 1


def test_resurrect_with_another_payload(lite):
    first, second, third = die(lite, SEED, REFUSED, b"[]")
    refused = run("dlq", "resurrect", str(first), "--payload", '{"to": "a" "b"}')
    assert refused.code == 1
    assert "line 1, column 12 (byte 11)" in refused.said
    assert "--raw" in refused.said
    assert lite.desk("t").get(first).head.spot is Spot.DLQ

    Path("fixed.json").write_bytes(REPAIRED)
    ran = run("dlq", "resurrect", str(first), "--file", "fixed.json")
    assert ran.code == 0
    assert '+  "subject": "Welcome!",' in ran.text
    assert lite.desk("t").get(first).payload == REPAIRED
    assert run("dlq", "resurrect", str(second), "--payload", "-", "--raw", stdin=b"\xff{").code == 0
    assert lite.desk("t").get(second).payload == b"\xff{"
    lite.desk("t").edit(third, payload=b"[1]")
    assert run("dlq", "resurrect", str(third), "--revision", "1").code == 0
    assert lite.desk("t").get(third).payload == b"[]"


def test_an_old_version_is_refused(lite):
    (job,) = die(lite)
    version = lite.desk("t").get(job).head.version
    lite.desk("t").edit(job, tags=["changed"])
    for verb in ("resurrect", "edit"):
        ran = run("dlq", verb, str(job), "--payload", "{}", "--version", str(version))
        assert ran.code == 1
        assert f"is at version {version + 1}, not {version}" in ran.said


# -- edit --------------------------------------------------------------------------------------------------------------


def editor(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An $EDITOR that is a shell script: $1 is the file."""
    path = folder / "editor.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EDITOR", str(path))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_edit_in_the_editor(lite, here, monkeypatch):
    (job,) = die(lite)
    editor(here, monkeypatch, """sed -i 's/"Welcome!"/"Welcome!",/' "$1"; echo >> "$1" """)
    ran = run("dlq", "edit", str(job), "--note", "comma")
    assert ran.code == 0, ran.said
    assert '+  "subject": "Welcome!",' in ran.text
    assert lite.desk("t").get(job).payload == REPAIRED  # without the newline that the editor put at the end
    assert list(here.glob("redrive-*")) == []

    before = lite.desk("t").get(job)
    editor(here, monkeypatch, 'cat "$1" > /dev/null')
    ran = run("dlq", "edit", str(job))
    assert (ran.code, ran.text) == (0, "nothing changed, nothing written\n")
    assert lite.desk("t").get(job) == before
    assert len(json.loads(run("audit", "list", "--json").text)) == 1
    assert list(here.glob("redrive-*")) == []


@pytest.mark.slow
def test_whoever_changed_the_job_meanwhile_wins_and_the_text_is_kept(lite, here, monkeypatch, sqlite_url):
    (job,) = die(lite)
    (here / "bob.py").write_text(
        f"from redrive import Redrive\nRedrive('{sqlite_url}').desk('bob').edit('{job}', tags=['bob'])\n"
    )
    editor(here, monkeypatch, f"""echo '[1]' > "$1"; {sys.executable} {here / "bob.py"}""")
    ran = run("dlq", "edit", str(job))
    assert ran.code == 1
    assert "somebody changed it" in ran.said
    record = lite.desk("t").get(job)
    assert (record.payload, record.head.tags) == (SEED, ("bob",))
    (kept,) = here.glob("redrive-*.json")
    assert kept.read_bytes() == b"[1]\n"
    assert str(kept) in ran.said


def test_a_text_that_is_no_json_is_kept_too(lite, here, monkeypatch):
    (job,) = die(lite)
    editor(here, monkeypatch, """echo '[1,' > "$1" """)
    ran = run("dlq", "edit", str(job))
    assert ran.code == 1
    (kept,) = here.glob("redrive-*.json")
    assert f"--file {kept}" in ran.said
    assert lite.desk("t").get(job).payload == SEED
    assert run("dlq", "edit", str(job), "--file", str(kept), "--raw").code == 0
    assert lite.desk("t").get(job).payload == b"[1,\n"

    editor(here, monkeypatch, "exit 3")
    assert run("dlq", "edit", str(job)).code == 1
    monkeypatch.setenv("EDITOR", "no-such-editor-anywhere")
    assert run("dlq", "edit", str(job)).code == 2
    monkeypatch.delenv("EDITOR")
    assert "set $EDITOR" in run("dlq", "edit", str(job)).said


def test_edit_of_what_surrounds_the_payload(lite):
    (job,) = die(lite)
    ran = run("jobs", "edit", str(job), "--tag", "a", "--tag", "b", "--label", "c=d=e", "--priority", "0", "--key", "k")
    assert ran.code == 0, ran.said
    head = lite.desk("t").get(job).head
    assert (head.tags, head.labels, head.priority, head.idempotency_key) == (("a", "b"), {"c": "d=e"}, 0, "k")
    assert lite.desk("t").get(job).payload == SEED
    assert run("dlq", "edit", str(job), "--drop-key").code == 0
    assert lite.desk("t").get(job).head.idempotency_key is None
    assert run("dlq", "edit", str(job), "--payload", "{}", "--file", "x").code == 2
    job = lite.enqueue_raw("t", b"\x00\xff").id
    assert "not text" in run("jobs", "edit", str(job)).said


# -- export and import -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_export_and_import(lite, here):
    ids = die(lite, SEED, bytes(range(256)))
    exported = run("dlq", "export", "--reason", "fatal")
    assert exported.code == 0
    assert "2 dead jobs exported" in exported.said
    assert run("dlq", "export", "--out", "dead.ndjson").code == 0
    assert (here / "dead.ndjson").read_bytes() == exported.out
    assert "not overwritten" in run("dlq", "export", "--out", "dead.ndjson").said

    again = run("dlq", "import", "dead.ndjson")
    assert (again.code, again.text) == (1, "0 imported, 2 skipped\n")
    other = ["--database", f"sqlite:///{here / 'other.db'}"]
    ran = run("dlq", "import", "-", *other, stdin=exported.out)
    assert (ran.code, ran.text) == (0, "2 imported\n")
    for job, payload in zip(ids, (SEED, bytes(range(256))), strict=True):
        assert run("jobs", "show", str(job), "--payload", *other).out == payload
    bad = run("dlq", "import", "-", *other, stdin=exported.out + b'{"id": 3}\n')
    assert bad.code == 1
    assert "at line 3, column 1" in bad.said


def test_purge_leaves_what_succeeded_alone(lite):
    good = lite.enqueue_raw("email.send.v1", b'{"to": "a", "subject": "s", "body": "b"}')
    lite.worker().run(burst=True)
    ran = run("dlq", "purge", str(good.id))
    assert ran.code == 1
    assert "it has succeeded" in ran.said
    assert good.status() is Spot.ARCHIVE


def test_what_is_listed_can_be_acted_on_with_the_same_words(lite):
    job = lite.enqueue_raw("email.send.v1", SEED, tags=["night"], labels={"customer": "42"})
    lite.worker().run(burst=True)
    words = ["--with-tag", "night", "--with-label", "customer=42", "--q", "comma"]
    assert str(job.id) in run("dlq", "list", *words).text
    assert str(job.id) in run("dlq", "export", *words).text
    assert run("dlq", "resurrect", *words, "--yes").code == 1  # the payload cannot be read
    assert run("dlq", "resurrect", str(job.id)).code == 0
    lite.worker().run(burst=True)
    assert run("dlq", "purge", *words, "--count", "1", "--no-export").code == 0
    assert job.status() is Spot.NOWHERE


def test_an_editor_that_gives_up_leaves_no_copy_behind(lite, here, monkeypatch):
    (job,) = die(lite)
    monkeypatch.setenv("TMPDIR", str(here))
    monkeypatch.setattr("tempfile.tempdir", None)
    for editor, said in (("false", "ended with code 1"), ("rm", "left no file")):
        monkeypatch.setenv("EDITOR", editor)
        ran = run("dlq", "edit", str(job))
        assert ran.code == 1
        assert said in ran.said
    assert not list(here.glob("redrive-*"))


@pytest.mark.slow
def test_a_reader_that_has_enough_is_no_error_of_the_export(lite, here):
    for _ in range(3):
        die(lite, *[SEED] * 200)
    redrive = Path(sys.executable).parent / "redrive"
    done = subprocess.run(["bash", "-c", f"{redrive} dlq export | head -c 100"], capture_output=True, text=True)
    assert "Usage" not in done.stderr
    assert "Invalid value" not in done.stderr
