"""Each way of finding PostgreSQL, taken for real."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from scripts import services
from scripts.services import MissingError, PrivatePostgres

pytestmark = pytest.mark.slow  # most of them start a server

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_named_server(monkeypatch):
    monkeypatch.delenv(services.URL_VARIABLE, raising=False)


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(services, "DEBIAN", Path("/nowhere"))


def execute(server: PrivatePostgres, *statements: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


# The server the environment names


def test_the_named_server_comes_first(private_postgres, monkeypatch):
    monkeypatch.setenv(services.URL_VARIABLE, private_postgres.url)
    assert services.existing(port=1) == private_postgres.url


def test_a_named_server_that_does_not_answer_is_an_error_and_its_password_stays_hidden(private_postgres, monkeypatch):
    monkeypatch.setenv(services.URL_VARIABLE, "postgresql://me:s3cret@127.0.0.1:1/postgres")
    with pytest.raises(MissingError) as error:
        services.existing(port=private_postgres.port)
    message = str(error.value)
    assert message.startswith("REDRIVE_TEST_POSTGRES_URL=postgresql://me:***@127.0.0.1:1/postgres cannot be used: ")
    assert "s3cret" not in message
    assert "\n" not in message


def test_a_named_user_who_may_not_create_databases_is_an_error(private_postgres, monkeypatch):
    execute(private_postgres, "CREATE ROLE guest LOGIN")
    monkeypatch.setenv(services.URL_VARIABLE, private_postgres.url.replace("postgres@", "guest@"))
    with pytest.raises(MissingError, match="may not create databases"):
        services.existing()


# The standard local port


def test_the_local_port_is_used_when_it_answers(private_postgres):
    assert services.existing(private_postgres.port) == private_postgres.url


def test_the_current_user_is_tried_after_postgres(private_postgres, monkeypatch):
    execute(private_postgres, "CREATE ROLE somebody LOGIN CREATEDB")
    only_somebody(private_postgres)
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    url = services.existing(private_postgres.port)
    assert url == f"postgresql://somebody@127.0.0.1:{private_postgres.port}/postgres"


def test_a_local_server_that_lets_nobody_in_is_passed_over(private_postgres, monkeypatch):
    only_somebody(private_postgres)
    monkeypatch.setattr("getpass.getuser", lambda: "nobody")
    assert services.existing(private_postgres.port) is None


def test_a_port_without_a_server_is_passed_over():
    assert services.existing(port=1) is None


def only_somebody(server: PrivatePostgres) -> None:
    (server.data / "pg_hba.conf").write_text("host all somebody 127.0.0.1/32 trust\n")
    server.restart()


# A private instance


def test_a_private_server_is_started_where_there_is_no_other(private_postgres, monkeypatch):
    monkeypatch.setattr(services, "existing", lambda: None)
    with services.postgres() as url:
        assert url != private_postgres.url
        assert services.unusable(url) is None
    assert services.unusable(url) is not None


def test_a_private_server_keeps_its_port_and_its_data_over_restart_and_crash(private_postgres):
    url = private_postgres.url
    execute(private_postgres, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (1)")
    private_postgres.restart()
    execute(private_postgres, "INSERT INTO kept VALUES (2)")
    private_postgres.restart("immediate")
    assert private_postgres.url == url
    assert execute(private_postgres, "SELECT n FROM kept ORDER BY n") == [(1,), (2,)]
    assert "not properly shut down" in private_postgres.log()


def test_a_private_server_writes_for_real_and_takes_settings(private_postgres):
    private_postgres.configure(work_mem="7MB", max_connections=17)
    assert execute(private_postgres, "SHOW fsync") == [("on",)]
    assert execute(private_postgres, "SHOW max_connections") == [("100",)]
    private_postgres.restart()
    assert execute(private_postgres, "SHOW max_connections") == [("17",)]
    assert execute(private_postgres, "SHOW work_mem") == [("7MB",)]


def test_a_private_server_leaves_nothing_behind(private_postgres):
    assert private_postgres.folder.exists()
    private_postgres.remove()
    assert not private_postgres.folder.exists()
    assert not services.answers(private_postgres.port)
    private_postgres.remove()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_the_server_of_a_process_that_was_killed_is_removed_by_the_next(private_postgres, end):
    with alone("server = services.PrivatePostgres().start()", "print(server.port, server.folder, flush=True)") as child:
        port, folder = first_line(child).split()
        assert services.answers(int(port))
        child.send_signal(end)
        child.wait(20)
    services.sweep()
    assert not Path(folder).exists()
    assert not services.answers(int(port))
    assert services.unusable(private_postgres.url) is None, "a server in use was swept away"


# The command


def test_the_command_prints_an_existing_server_and_ends(private_postgres):
    done = subprocess.run(
        [sys.executable, "scripts/services.py", "postgres"],
        cwd=ROOT,
        env=os.environ | {services.URL_VARIABLE: private_postgres.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, private_postgres.url + "\n", "")


def test_the_command_says_in_one_line_what_is_missing():
    done = subprocess.run(
        [sys.executable, "scripts/services.py", "postgres"],
        cwd=ROOT,
        env=os.environ | {services.URL_VARIABLE: "postgresql://127.0.0.1:1/x"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.usefixtures("private_postgres")
def test_the_command_keeps_a_server_of_its_own_until_it_is_stopped():
    with alone("services.local_server = lambda port: None", "sys.exit(services.main(['postgres']))") as child:
        url = first_line(child)
        assert services.unusable(url) is None
        child.terminate()
        assert child.wait(20) == 0
    assert services.unusable(url) is not None


def alone(*lines: str) -> subprocess.Popen[str]:
    program = "\n".join(["import sys", "from scripts import services", *lines, "import time; time.sleep(60)"])
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    return child.stdout.readline().strip()


# The Debian package


@pytest.mark.usefixtures("nothing_installed")
def test_without_the_right_to_install_one_line_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(MissingError, match=r"^missing: a PostgreSQL server.*apt-get install postgresql") as error:
        PrivatePostgres()
    assert "\n" not in str(error.value)


@pytest.fixture
def debian(monkeypatch) -> Iterator[Path]:
    """A machine where apt-get puts the programs of this one in place, and all that was run is written down."""
    if not (real := services.installed()):
        pytest.skip("needs the programs of a PostgreSQL server")
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder)
        machine.chmod(0o755)  # the server's user must get at the programs
        (machine / "bin").mkdir()
        for program in ("apt-get", "pg_conftool"):
            script = machine / "bin" / program
            script.write_text(f"""\
#!/bin/sh
echo {program} "$@" >> {machine}/log
case "$*" in *install*postgresql)
  test ! -e {machine}/broken || {{ echo trouble; echo no space >&2; exit 100; }}
  /bin/mkdir -p {machine}/lib/15 && /bin/ln -s {real} {machine}/lib/15/bin
esac
""")
            script.chmod(0o755)
        monkeypatch.setenv("PATH", str(machine / "bin"))
        monkeypatch.setattr(services, "DEBIAN", machine / "lib")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        yield machine


INSTALLATION = [
    "apt-get update -qq",
    "apt-get install -y -qq --no-install-recommends postgresql-common",
    "pg_conftool /etc/postgresql-common/createcluster.conf set create_main_cluster off",
    "apt-get install -y -qq --no-install-recommends postgresql",
    "pg_conftool /etc/postgresql-common/createcluster.conf remove create_main_cluster",
]


def test_root_installs_the_package_without_a_cluster_and_starts_a_private_server(debian, monkeypatch):
    monkeypatch.setattr(services, "server_user", services.server_user if os.getuid() == 0 else lambda: None)
    with PrivatePostgres() as server:
        assert server.programs == debian / "lib" / "15" / "bin"
        assert services.unusable(server.url) is None
    assert (debian / "log").read_text().splitlines() == INSTALLATION


def test_a_failed_installation_is_told_and_leaves_the_switch_as_it_was(debian):
    (debian / "broken").touch()
    with pytest.raises(MissingError, match=r"no space$"):
        PrivatePostgres()
    assert (debian / "log").read_text().splitlines() == INSTALLATION


def test_the_newest_debian_version_is_taken_and_path_before_it(monkeypatch, tmp_path):
    folders = [tmp_path / name for name in ("lib/9.6/bin", "lib/15/bin", "lib/17/bin", "own")]
    for folder in folders:
        folder.mkdir(parents=True)
        for program in ("initdb", "pg_ctl", "postgres"):
            (folder / program).touch()
    monkeypatch.setattr(services, "DEBIAN", tmp_path / "lib")
    monkeypatch.setenv("PATH", "/nowhere")
    assert services.installed() == tmp_path / "lib/17/bin"
    (tmp_path / "lib/17/bin/pg_ctl").unlink()
    assert services.installed() == tmp_path / "lib/15/bin"
    monkeypatch.setenv("PATH", str(tmp_path / "own"))
    assert services.installed() == tmp_path / "own"
