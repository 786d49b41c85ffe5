"""The demo tells its whole story and keeps its promises; each damage on purpose is noticed and named."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from examples.lab import accepted, stage
from examples.lab.arrival import compare
from examples.lab.damage import DAMAGES, damage
from examples.lab.groups import GROUPS
from examples.lab.proof import check
from examples.lab.stage import DATABASE
from examples.lab.story import StoryError, Teller
from redrive import JobFilter, Place, Redrive
from redrive.domain.filters import PageRequest
from redrive.faces.cli.start import BREAKS

ROOT = Path(__file__).resolve().parents[2]
REDRIVE = str(Path(sys.executable).with_name("redrive"))
RUN = [sys.executable, "-m", "examples.lab.run"]
STORY = """
SQLite in FOLDER
414 jobs of examples/lab/jobs.ndjson are handed in: 408 accepted, 6 answered as duplicates
At the moment entry 3 of 12 arrives there: SIGKILL.
408 accepted = 0 hot + 309 in the archive + 99 dead
fatal 62 it cannot succeed as it is: repair the payload or the code, then resurrect
retries_exhausted 21
cancelled 6
throttled 4
timeout 3
retry_lifetime_expired 2
zombie 1 its worker vanished while it ran
ended as expected, in the expected number of attempts
safe again? cannot tell: it may have done part of its work, and its handler is not idempotent
the ledger itself has 3 entries
+ …1", "amount": "21.11"}], "start_at": 3}
15 asked for, 15 done
0 done, 15 skipped
All 15 have succeeded
before "body" at line 4, column 3
4 | "body": "Hello, World!" | ^ line 4, column 3
safe again? safe, but would die again: its payload cannot be read: repair it first
comma put in on line 3; 81 bytes become 82, all others stay
- "subject": "Welcome!" + "subject": "Welcome!",
desk = app.desk("admin@example.com")
attempt 1 of life 2, succeeded in
To: user@example.com Subject: Welcome! Hello, World!
ledger 2026-01-01 00:00:00Z life 1, attempt 1: failed, fatal
revision number 1: 81 bytes, the broken text, byte for byte
admin@example.com (admin, by code): resurrect, "the comma after the subject"
The ledger has 12 entries, each once: 3 from process PID and 9 from process PID
Nobody came back before the time a partner had asked for
kept 0 conservation every job is in exactly one place
kept 0 owner
kept 0 exclusive
kept 0 evidence
kept 0 exactness
kept 0 audited
(2 hot, 326 archive, 80 dead)
408 payloads have the SHA-256 that was accepted
hash to what was sealed
The story went as it is told, and every promise is kept.
"""


def play(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LAB_DIR": str(folder)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )


def flat(told: str, folder: Path) -> str:
    """The story without line breaks and without what differs from run to run."""
    text = re.sub(r"\s+", " ", told).replace(str(folder), "FOLDER")
    text = re.sub(r"\bprocess \d+", "process PID", text)
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "2026-01-01 00:00:00Z", text)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_story_and_every_damage_to_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """One test, for the story is told once: the damages are done to copies of its end."""
    folder = tmp_path / "demo"
    done = play(RUN, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    story = flat(done.stdout, folder)
    for line in STORY.strip().splitlines():
        assert line in story
    assert not [
        line for line in done.stdout.splitlines() if (len(line) > 80 or line != line.rstrip()) and "/" not in line
    ]
    assert "\x1b" not in done.stdout
    pids = {int(pid) for pid in re.findall(r"\bprocess(?:es)? (\d+)", done.stdout, re.IGNORECASE)}
    assert pids
    assert not [pid for pid in pids if alive(pid)]

    with subtests.test("nothing broken"):
        assert broken(folder) == {}
    for name in DAMAGES:
        with subtests.test(damage=name):
            copy = tmp_path / name
            copy.mkdir()
            for file in (DATABASE, accepted.NAME, "redrive.toml"):
                shutil.copy(folder / file, copy)
            damage(copy, name)
            found = broken(copy)
            assert found.keys() == {name}, "the promise that was broken, and no other"
            assert all(found[name]), "with an example of what was found"
    with subtests.test("a job that ended otherwise"), pytest.raises(StoryError, match=r"group mail .* fatal in 1"):
        different(folder)


def broken(folder: Path) -> dict[str, tuple[str, ...]]:
    told = io.StringIO()
    found = check(folder, Teller(Console(file=told, width=80)))
    verdicts = re.findall(r"^ +(kept|BROKEN) +\d+  (\w+)", told.getvalue(), re.MULTILINE)
    assert {name for verdict, name in verdicts if verdict == "BROKEN"} == {result.promise for result in found}
    assert len(verdicts) == 9
    return {result.promise: result.examples for result in found}


def different(folder: Path) -> None:
    """Compare the end of the story with expectations that one mail does not meet."""
    jobs = accepted.read(folder)
    nobody = next(job for job in jobs if job.group == "mail-nobody")
    app = Redrive(f"sqlite:///{folder / DATABASE}", config=folder / "redrive.toml")
    try:
        dead = app.insight().jobs(JobFilter(place=Place.DLQ), PageRequest(1000)).jobs
    finally:
        app.close()
    moved = accepted.Accepted(nobody.id, nobody.sha256, "mail")
    compare([moved], [head for head in dead if str(head.id) == nobody.id])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_damage_through_the_command_line_is_refused_by_name(tmp_path: Path) -> None:
    done = play([REDRIVE, "demo", "--break", "owner"], tmp_path / "demo")
    assert done.returncode == 1, done.stdout + done.stderr
    story = flat(done.stdout, tmp_path)
    assert "By plain SQL on the file: a job that waits is given a lease that no worker holds." in story
    assert re.search(r"BROKEN: owner\. job [\w-]+ is scheduled and its lease does not fit that\.", story)
    assert "BROKEN    1  owner" in done.stdout
    assert done.stdout.count("BROKEN") == 2


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    environment = os.environ | {"LAB_DIR": str(tmp_path / "demo"), "PYTHONUNBUFFERED": "1"}
    pids: list[int] = []
    with subprocess.Popen(RUN, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if match := re.search(r"Processes (\d+) and (\d+)", line):
                pids = children(demo.pid)
                assert {int(pid) for pid in match.groups()} < set(pids), "two workers, and the peers"
                demo.send_signal(number)
                break
        rest = demo.stdout.read()
    assert demo.returncode == 128 + number
    assert ("Interrupted; every process has ended" in rest) is (number is signal.SIGINT)
    assert not [pid for pid in pids if alive(pid)]


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(child) for child, parent in (line.split() for line in listed.splitlines()) if int(parent) == pid]


@pytest.mark.slow
@pytest.mark.parametrize("command", [RUN, [REDRIVE, "demo"]], ids=["run.py", "redrive demo"])
def test_an_unknown_damage_is_wrong_usage_and_the_known_ones_are_named(tmp_path: Path, command: list[str]) -> None:
    done = play([*command, "--break", "everything"], tmp_path / "demo")
    assert done.returncode == 2
    assert all(name in done.stderr for name in DAMAGES)
    assert not (tmp_path / "demo").exists()


def test_the_command_line_offers_the_damages_there_are() -> None:
    assert tuple(DAMAGES) == BREAKS


@pytest.mark.slow
def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = play(RUN, tmp_path)
    assert (done.returncode, [file.name for file in tmp_path.iterdir()]) == (2, ["mine.txt"])
    assert "LAB_DIR" in done.stderr


@pytest.fixture
def environment() -> Iterator[None]:
    """The stage sets the environment of its process: afterwards it is as it was."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.slow
def test_a_process_that_ends_too_early_ends_the_story_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: None
) -> None:
    monkeypatch.setattr(stage, "SHORTENED", {"REDRIVE_WORKER__HEARTBEAT": "never"})
    with stage.Stage(tmp_path) as here:
        here.start_worker("worker-1")
        with pytest.raises(StoryError, match=r"worker-1 ended with \d while .*worker\.heartbeat"):
            here.wait_for("nothing", lambda: False, lambda: "nothing")


@pytest.mark.slow
def test_the_deadline_ends_the_story_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: None
) -> None:
    monkeypatch.setattr(stage, "DEADLINE", 0.3)
    with stage.Stage(tmp_path) as here, pytest.raises(StoryError, match=r"a miracle was waited for.*: none so far"):
        here.wait_for("a miracle", lambda: False, lambda: "none so far")


def test_every_group_that_ended_otherwise_is_named() -> None:
    jobs = [accepted.Accepted(f"{group.name}-{n}", "", group.name) for group in GROUPS for n in range(2)]
    with pytest.raises(StoryError) as refused:
        compare(jobs, [])
    for group in GROUPS:
        assert f"group {group.name} had to end {group.outcome} in {group.attempts} attempts" in str(refused.value)
