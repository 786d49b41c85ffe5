"""Every other command once, and the ways to be wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from redrive import Spot
from redrive.store.port import ClaimRequest, Condition, SchemaState, WorkerInfo
from tests.cli.command import run
from tests.cli.conftest import die

BINARY = Path(sys.executable).with_name("redrive")


def test_enqueue_with_everything(lite):
    ran = run("enqueue", "t", '{"b":1,"a":2}', "--queue", "q", "--priority", "30", "--key", "k", "--delay", "10m",
              "--tag", "x", "--label", "a=b", "--max-attempts", "7", "--actor", "ann")  # fmt: skip
    assert ran.code == 0, ran.said
    record = lite.desk("t").get(UUID(ran.text.strip()))
    head = record.head
    assert record.payload == b'{"b":1,"a":2}'
    assert (head.queue, head.priority, head.idempotency_key, head.spot) == ("q", 30, "k", Spot.SCHEDULED)
    assert (head.tags, head.labels, head.max_attempts, head.created_by) == (("x",), {"a": "b"}, 7, "ann")
    again = run("enqueue", "t", "{}", "--key", "k", "--json")
    assert json.loads(again.text) == {"id": str(head.id), "duplicate": True}
    assert "nothing was added" in run("enqueue", "t", "{}", "--key", "k").said


def test_enqueue_finds_the_queue_of_the_type_and_reads_stdin(lite):
    die(lite)  # a worker has announced the type
    ran = run("enqueue", "email.send.v1", "-", stdin=b" {} \n")
    record = lite.desk("t").get(UUID(ran.text.strip()))
    assert (record.head.queue, record.payload) == ("notifications", b" {} \n")
    raw = run("enqueue", "t", "@picture", "--content-type", "image/png")
    assert raw.code == 2
    Path("picture").write_bytes(b"\x89PNG\x00")
    raw = run("enqueue", "t", "@picture", "--content-type", "image/png")
    assert lite.desk("t").get(UUID(raw.text.strip())).head.content_type == "image/png"


REFUSALS: list[tuple[list[str], int, str]] = [
    (["enqueue", "t", '{"a": 1 "b"}'], 1, "line 1, column 9 (byte 8)"),
    (["enqueue", "t", "{}", "--priority", "high"], 2, "priority"),
    (["enqueue", "t", "{}", "--priority", "200"], 1, "priority: 200"),
    (["enqueue", "t", "{}", "--delay", "nan"], 1, "delay"),
    (["enqueue", "t", "{}", "--delay", "-5"], 1, "delay"),
    (["enqueue", "no spaces", "{}"], 1, "type"),
    (["enqueue", "t"], 2, "JSON"),
    (["jobs", "list", "--state", "tired"], 2, "state"),
    (["jobs", "list", "--place", "dlq", "--state", "pending"], 1, "state: does not go with place dlq"),
    (["jobs", "cancel", "x"], 1, "ids[0]: 'x' is not an id"),
    (["queues", "set", "q"], 2, "nothing to change"),
    (["queues", "set", "q", "--zombie-timeout", "1s"], 1, "three heartbeats"),
    (["queues", "set", "q", "--clear", "paused"], 2, "--clear paused"),
    (["queues", "pause", "no spaces"], 1, "queue"),
    (["archive", "purge"], 2, "older-than"),
    (["archive", "purge", "--older-than", "old", "--yes"], 1, "older_than: 'old' is not a duration"),
    (["archive", "purge", "--older-than", "90d"], 2, "--yes"),
    (["work", "nothing"], 2, "is not MODULE:APP"),
    (["demo", "--break", "everything"], 2, "conservation"),
    (["nonsense"], 2, "nonsense"),
    (["jobs", "list", "--database", "mysql://u:s3cret@h/d"], 2, "database.url"),
    (["jobs", "list", "--database", "postgresql://u:s3cret@127.0.0.1:1/d"], 1, "redrive doctor"),
    (["jobs", "list", "--config", "gone.toml"], 2, "gone.toml"),
    (["jobs", "list", "--actor", "a", "--limit", "x"], 2, "limit"),
    (["doctor", "--database", "postgresql://u:s3cret@127.0.0.1:1/d"], 1, ""),
]


@pytest.mark.parametrize(("arguments", "code", "said"), REFUSALS, ids=[" ".join(case[0]) for case in REFUSALS])
def test_refusals_have_a_code_and_words(lite, arguments, code, said):
    ran = run(*arguments)
    assert ran.code == code, ran.said
    assert said in ran.said
    assert "Traceback" not in ran.said
    assert "s3cret" not in ran.said + ran.text


def test_jobs_that_wait(app):
    handles = [app.enqueue("t", {}), app.enqueue("t", {}), app.enqueue("t", {}, run_after=3600, idempotency_key="k")]
    ids = [str(handle.id) for handle in handles]
    listed = json.loads(run("jobs", "list", "--json", "--type", "t").text)
    assert {job["id"] for job in listed["jobs"]} == set(ids)
    assert [job["id"] for job in json.loads(run("jobs", "list", "--key", "k", "--json").text)["jobs"]] == [ids[2]]
    assert "scheduled" in run("jobs", "list", "--state", "scheduled").text
    assert run("jobs", "run-now", ids[2]).text == "1 made due\n"
    assert run("jobs", "cancel", ids[0], "--note", "no").text == "1 cancelled\n"
    assert run("jobs", "isolate", ids[1]).text == "1 isolated\n"
    ran = run("jobs", "run-now", *ids)
    assert (ran.code, ran.text) == (1, "0 made due, 3 skipped\n")
    assert [handle.status() for handle in handles] == [Spot.DLQ, Spot.DLQ, Spot.PENDING]


def test_archive(app):
    (job,) = die(app, b'{"to": "a", "subject": "b", "body": "c"}')
    assert str(job) in run("archive", "list").text
    listed = json.loads(run("archive", "list", "--json", "--queue", "notifications", "--finished-after", "1h").text)
    assert listed["jobs"][0]["outcome"] == "succeeded"
    assert run("archive", "purge", "--older-than", "90d", "--yes").text == "0 archived jobs purged\n"
    assert run("archive", "purge", "--older-than", "0s", "--yes", "--note", "x").text == "1 archived jobs purged\n"
    assert run("archive", "list").said == "no jobs\n"


@pytest.mark.slow
def test_a_queue_is_shown_with_what_holds_it_back(app):
    assert run("queues", "show", "q").code == 1
    for _ in range(3):
        app.enqueue("t", {}, queue="q", lock_key="k")
    assert run("queues", "set", "q", "--max-running", "2", "--rate", "1/hour").code == 0
    app.store.register(WorkerInfo("w", "h", 1, "b", ("q",), (), 1))
    held = app.store.claim(ClaimRequest("w", ("q",), 3, ("t",)))
    app.store.start(("q",), [(one.id, one.lease) for one in held])
    shown = dict(re.split(" {2,}", line, maxsplit=1) for line in run("queues", "show", "q").text.splitlines())
    assert (shown["max_running"], shown["rate"], shown["running"], shown["pending"]) == ("2", "1/hour", "1", "2")
    assert shown["next start"].startswith("in 59 min") or shown["next start"] == "in 1 h"
    assert shown["held back"].startswith("rate 1/hour: next in ")
    assert shown["oldest pending"].endswith(" s")
    found = json.loads(run("queues", "show", "q", "--json").text)
    assert (found["name"], found["processing"], len(found["held_back"])) == ("q", 1, 1)


def test_who_has_the_lock_key_is_shown(app):
    first, second = (app.enqueue("t", {}, queue="q", lock_key="k").id for _ in range(2))
    app.store.register(WorkerInfo("w", "h", 1, "b", ("q",), (), 1))
    held = app.store.claim(ClaimRequest("w", ("q",), 3, ("t",)))
    app.store.start(("q",), [(one.id, one.lease) for one in held])
    said = f"Why does it wait?         its lock key is held by a job that is running: redrive jobs show {first}"
    assert said in run("jobs", "show", str(second)).text
    assert json.loads(run("jobs", "show", str(second), "--json").text)["lock_holder"] == str(first)
    assert run("queues", "show", "q").text.count("1 wait for a lock key") == 1


def test_queues(app):
    app.enqueue("t", {}, queue="q")
    assert run("queues", "pause", "q", "--note", "why").text == "queue q is paused\n"
    assert json.loads(run("queues", "list", "--json").text)[0]["paused"] is True
    ran = run("queues", "set", "q", "--zombie-timeout", "5m", "--owner", "team a")
    assert ran.code == 0
    assert "300" in ran.text
    assert run("queues", "set", "q", "--clear", "zombie-timeout", "--version", "0").code == 1
    assert run("queues", "set", "q", "--clear", "zombie-timeout").code == 0
    assert run("queues", "resume", "q").text == "queue q goes on\n"
    assert re.search(r"^q +no +1 ", run("queues", "list").text, re.MULTILINE)
    assert len(json.loads(run("audit", "list", "--target", "queue q", "--by", "nobody", "--json").text)) == 0
    assert len(json.loads(run("audit", "list", "--target", "queue q", "--json").text)) == 4


def test_workers_are_told_how_many_jobs_they_may_run(lite):
    lite.store.register(WorkerInfo("host:1:a", "host", 1, "b1", ("q",), (), 120))
    lite.store.register(WorkerInfo("host:2:b", "host", 2, "b1", ("q",), (), 120))
    lite.store.seen("host:2:b", waiting=False, condition=Condition("degraded", 7, 120))
    told = run("workers", "set", "host:1:a", "host:2:b", "--concurrency", "40", "--note", "busy peer")
    assert told.code == 0
    assert told.text.count("from its next heartbeat 40") == 2
    listed = json.loads(run("workers", "--json").text)
    assert [one["id"] for one in json.loads(run("workers", "list", "--json").text)] == [one["id"] for one in listed]
    assert {one["id"]: (one["wanted_concurrency"], one["mode"], one["stuck"]) for one in listed} == {
        "host:1:a": (40, "serving", 0), "host:2:b": (40, "degraded", 7),
    }  # fmt: skip
    assert "120 (wanted 40)" in run("workers").text
    (entry,) = json.loads(run("audit", "list", "--target", "worker host:1:a", "--json").text)
    assert (entry["action"], entry["note"]) == ("set-worker", "busy peer")
    assert run("workers", "set", "host:1:a", "--default").code == 0
    assert run("workers", "set", "host:1:a").code == 2
    assert run("workers", "set", "host:1:a", "--default", "--concurrency", "3").code == 2
    assert run("workers", "set", "host:1:a", "--concurrency", "0").code == 2
    assert run("workers", "set", "nobody", "--concurrency", "3").code == 1
    assert "set" in run("workers", "--help").text


@pytest.mark.slow
def test_types_workers_and_audit(app):
    assert run("types").said.startswith("no types")
    assert run("workers").said.startswith("no workers")
    assert run("queues", "list").said.startswith("no queues")
    assert run("audit", "list").said == "no entries\n"
    (job,) = die(app)
    assert "email.send.v1" in run("types").text
    assert json.loads(run("types", "--json").text)[0]["schema"]["required"] == ["to", "subject", "body"]
    assert json.loads(run("workers", "--json").text) == []  # it ended in order
    for tag in "abc":
        run("dlq", "edit", str(job), "--tag", tag)
    assert run("audit", "list", "--limit", "2").said.startswith("more: --before ")
    assert run("audit", "verify").code == 0
    verdict = json.loads(run("audit", "verify", "--json").text)
    assert (verdict["entries"], verdict["unsealed"], verdict["problems"]) == (3, 0, [])


def test_a_changed_audit_log_is_found(lite, sqlite_url):
    import sqlite3

    (job,) = die(lite)
    run("dlq", "edit", str(job), "--tag", "x")
    assert run("audit", "verify").code == 0
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE audit_log SET actor = 'somebody else'")
    connection.close()
    ran = run("audit", "verify")
    assert ran.code == 1
    assert "BROKEN" in ran.text


def test_doctor_names_settings_and_what_does_not_move(app, monkeypatch):
    monkeypatch.setenv("REDRIVE_WORKER__POLL", "2")
    app.enqueue("t", {}, queue="forgotten")
    app.desk("t").pause("held")
    app.enqueue("t", {}, queue="held")
    ran = run("doctor")
    assert ran.code == 0, ran.said
    assert re.search(r"worker\.poll +2\.0 +environment REDRIVE_WORKER__POLL", ran.text)
    assert "queue forgotten: 1 jobs wait, no live worker serves it" in ran.text
    assert "queue held: 1 jobs wait, it is paused: redrive queues resume held" in ran.text
    found = json.loads(run("doctor", "--json").text)
    assert found["schema"]["ready"] is True
    assert len(found["problems"]) == 2


def test_doctor_finds_a_wrong_clock_and_an_old_schema(lite, monkeypatch):
    store = "redrive.store.sql.store.SqlStore"
    monkeypatch.setattr(f"{store}.describe", lambda self: {"clock": "the server's, -7.30 s from this host's"})
    assert "clock differs from the database's by -7.3 s" in run("doctor").text
    monkeypatch.setattr(f"{store}.describe", lambda self: {"clock": "the server's, +0.30 s from this host's"})
    assert "clock differs" not in run("doctor").text
    monkeypatch.setattr(f"{store}.schema_state", lambda self: SchemaState("0000", "0001"))
    ran = run("doctor")
    assert ran.code == 1
    assert "the schema is at 0000, this Redrive needs 0001: redrive db upgrade" in ran.text


@pytest.mark.postgres
def test_doctor_reads_the_clock_of_a_server(postgres_url, here):
    facts = json.loads(run("doctor", "--json", "--database", postgres_url).text)["database"]
    assert re.search(r"[-+]\d+\.\d+ s", facts["clock"])


def test_doctor_checks_the_promises(lite, sqlite_url):
    import sqlite3

    (job,) = die(lite)
    ran = run("doctor", "--promises")
    assert ran.code == 0
    assert "SELECT" in ran.text.upper()
    assert re.search(r"(\d) of \1 kept", ran.text)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.execute("DELETE FROM jobs_dlq WHERE id = ?", (job.bytes,))
    connection.close()
    ran = run("doctor", "--promises")
    assert ran.code == 1
    assert "BROKEN" in ran.text
    as_json = run("doctor", "--promises", "--json")
    assert as_json.code == 1
    assert any(result["number"] for result in json.loads(as_json.text))


@pytest.mark.slow
@pytest.mark.postgres
def test_a_database_without_tables_says_what_to_do(here, databases, monkeypatch):
    name = databases.create()
    url = ["--database", databases.url(name)]
    ran = run("jobs", "list", *url)
    assert ran.code == 1
    assert "redrive db upgrade" in ran.said
    assert run("db", "check", *url).code == 1
    assert run("doctor", *url).code == 1
    (here / "worked.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "worked", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ran = run("work", "worked:app", "--burst", *url)
    assert ran.code == 1
    assert "redrive db upgrade" in ran.said
    assert run("db", "upgrade", *url).text.startswith("upgraded from nothing to ")
    assert "nothing to do" in run("db", "upgrade", *url).text
    assert run("db", "check", *url).code == 0
    assert "CREATE TABLE" in run("db", "sql", *url).text
    databases.drop(name)


# -- work --------------------------------------------------------------------------------------------------------------


MODULE = """
from redrive import Redrive
app = Redrive("sqlite:///work.db")
other = Redrive("sqlite:///other.db")
number = 3
@app.job("t", queue="a")
async def handler(n: int) -> int:
    return n + 1
"""


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nothing.here:app", "there is no module 'nothing'"),
        ("worked.py:app", "without its ending it is worked:app"),
        ("worked:gone", "module worked has no 'gone'; it has worked:app, worked:other"),
        ("worked:number", "is a int, not a Redrive application"),
        ("worked:other", "has no handler"),
        ("needy:app", "because it imports 'not_there'"),
        ("worked:", "is not MODULE:APP"),
        ("faulty:app", "faulty failed while it was imported: NameError: name 'app' is not defined ("),
        ("unfinished:app", "SyntaxError: '(' was never closed"),
    ],
)
def test_work_explains_what_is_wrong_with_its_target(here, monkeypatch, target, said):
    (here / "worked.py").write_text(MODULE)
    (here / "needy.py").write_text("import not_there\n")
    (here / "faulty.py").write_text("\nprint(app)\n")
    (here / "unfinished.py").write_text("x = (\n")
    monkeypatch.delitem(sys.modules, "worked", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    ran = run("work", target)
    assert ran.code == 2
    assert said in ran.said
    assert "faulty" not in target or "faulty.py, line 2)" in ran.said


@pytest.mark.slow
def test_work_runs_an_application_in_this_folder(here, monkeypatch):
    (here / "worked.py").write_text(MODULE)
    url = ["--database", "sqlite:///elsewhere.db"]
    job = run("enqueue", "t", '{"n": 41}', "--queue", "a", *url).text.strip()

    # A process of its own, as it is installed: the import path and the signals are its.
    ran = subprocess.run([BINARY, "work", "worked:app", "--burst", "--queues", "b", *url], cwd=here, check=False)
    assert ran.returncode == 0
    assert json.loads(run("jobs", "show", job, "--json", *url).text)["spot"] == "pending"

    monkeypatch.delitem(sys.modules, "worked", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run("work", "worked:app", "--burst", "--concurrency", "2", *url).code == 0
    sys.modules.pop("worked").app.close()
    shown = json.loads(run("jobs", "show", job, "--json", *url).text)
    assert (shown["spot"], shown["result"]) == ("archive", "42")
    assert not (here / "work.db").exists()


# -- the first minutes -------------------------------------------------------------------------------------------------


def test_init_writes_a_project_that_runs(here, monkeypatch):
    ran = run("init", "shop")
    assert ran.code == 0
    assert sorted(path.name for path in (here / "shop").iterdir()) == ["app.py", "redrive.toml"]
    again = run("init", "shop")
    assert again.code == 2
    assert "is there already: nothing was written" in again.said
    monkeypatch.chdir(here / "shop")
    monkeypatch.setattr(sys, "path", list(sys.path))
    good = run("enqueue", "greet.v1", '{"name": "Ada"}').text.strip()
    bad = run("enqueue", "greet.v1", '{"nmae": "Grace"}').text.strip()
    worked = run("work", "app:app", "--burst")
    sys.modules.pop("app").app.close()
    assert worked.code == 0, worked.said
    assert "Hello, Ada! (attempt 1)" in worked.text
    assert json.loads(run("jobs", "show", good, "--json").text)["result"] == '"greeted Ada"'
    assert run("dlq", "resurrect", bad, "--payload", '{"name": "Grace"}').code == 0
    assert run("doctor").code == 0


def test_demo_needs_a_checkout(here, monkeypatch):
    monkeypatch.setattr("redrive.faces.cli.start._checkouts", lambda: [here])
    ran = run("demo")
    assert ran.code == 2
    assert "clone the repository" in ran.said
    (here / "examples" / "lab").mkdir(parents=True)
    (here / "examples" / "lab" / "run.py").write_text(
        "import sys; sys.exit(3 if sys.argv[1:] == ['--break', 'owner'] else 0)"
    )
    assert run("demo").code == 0
    assert run("demo", "--break", "owner").code == 1


# -- the door ----------------------------------------------------------------------------------------------------------


def test_help_and_version(here):
    for arguments in ([], ["--help"], ["dlq", "--help"], ["dlq", "resurrect", "-h"]):
        ran = run(*arguments)
        assert ran.code == (0 if arguments else 2)
        assert "Usage: redrive" in ran.text + ran.said
    assert run("--version").text.startswith("redrive ")


@pytest.mark.slow
def test_every_command_has_help_of_its_own_and_the_common_options(here):
    def walk(*path: str) -> int:
        text = run(*path, "--help").text
        names = re.findall(r"^  ([a-z][a-z-]*)  ", text.partition("Commands:")[2], re.MULTILINE)
        if not names:
            assert re.search(r"^  [A-Z].{10}", text, re.MULTILINE), path
            for option in ("--database", "--config", "--actor"):
                assert option in text, path
            return 1
        return sum(walk(*path, name) for name in names)

    assert walk() >= 30


def test_what_nobody_expected_is_told_in_words(lite, monkeypatch):
    def explode(self: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("redrive.store.sql.store.SqlStore.workers", explode)
    ran = run("workers")
    assert ran.code == 1
    assert "ZeroDivisionError: oops" in ran.said
    assert "Traceback" not in ran.said
    monkeypatch.setenv("REDRIVE_DEBUG", "1")
    assert "Traceback" in run("workers").said


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(lite):
    lite.enqueue_many([("t", {"n": n}) for n in range(1000)])
    ran = subprocess.run(
        f"{BINARY} jobs list --limit 1000 --json | head -n 1", shell=True, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "{\n"
    assert ran.stderr == ""
