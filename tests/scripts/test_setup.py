"""What the set-up does on machines other than this one."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def run(*command: str | Path, path: Path, home: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_a_python_that_does_not_start_is_passed_over(tmp_path):
    """As a pyenv shim for a version that is not selected, which is found on PATH all the same."""
    program(tmp_path, "python3.11", "echo no such version >&2; exit 127")
    program(tmp_path, "python3.12", "echo /the/second")
    done = run("scripts/python.sh", "3.11", "3.12", path=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "/the/second\n", "")


def test_a_pyenv_version_is_found_behind_its_shim(tmp_path):
    program(tmp_path, "python3.13", "exit 127")
    folder = tmp_path / ".pyenv/versions/3.13.0/bin"
    folder.mkdir(parents=True)
    program(folder, "python3.13", "echo /in/pyenv")
    assert run("scripts/python.sh", "3.13", path=tmp_path, home=tmp_path).stdout == "/in/pyenv\n"


def test_without_a_python_one_line_says_so(tmp_path):
    done = run("scripts/python.sh", "3.99", path=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "missing: a working Python (tried: 3.99); Redrive needs 3.11 or newer\n"


def test_without_venv_and_the_right_to_install_it_one_line_names_the_package(tmp_path):
    python = program(tmp_path, "python3.11", 'case "$2" in *ensurepip*) exit 1;; esac; echo python3.11-venv')
    program(tmp_path, "id", "echo 1000")
    program(tmp_path, "sudo", "exit 1")
    done = run("scripts/setup.sh", tmp_path / "venv", python, path=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "missing: python3.11-venv (on Debian: apt-get install python3.11-venv)\n"


def test_help_names_every_word_of_make(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = subprocess.run(["make", "--no-print-directory"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    words = [line.split()[1] for line in done.stdout.splitlines()]
    assert words == ["help", "setup", "demo", "test", "fast", "check", "fmt", "bench", "soak", "prove"]
