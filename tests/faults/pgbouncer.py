"""A PgBouncer of the test's own before a PostgreSQL server."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from scripts import services
from tests.faults.waiting import until


def program() -> Path | None:
    found = shutil.which("pgbouncer", path=os.pathsep.join([*os.get_exec_path(), "/usr/sbin"]))
    return Path(found) if found else None


@contextlib.contextmanager
def pgbouncer(url: str, *, mode: str = "transaction", servers: int = 2) -> Iterator[str]:
    """The URL through a pooler with so many server connections to the database of ``url``."""
    binary = services.packaged(program, "pgbouncer")
    target = make_url(url)
    port = services.free_port()
    with tempfile.TemporaryDirectory(prefix="redrive-pgbouncer-") as name:
        folder = Path(name)
        (folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"* = host={target.host} port={target.port or 5432} user={target.username or 'postgres'}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {mode}\ndefault_pool_size = {servers}\nmax_client_conn = 1000\n"
            f"logfile = {folder}/log\npidfile = {folder}/pid\n"
        )
        user = services.server_user()  # it refuses to run as root
        identity: dict[str, object] = {}
        if user:
            for path in (folder, folder / "pgbouncer.ini"):
                os.chown(path, user.pw_uid, user.pw_gid)
            identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with subprocess.Popen(
            [binary, "-q", folder / "pgbouncer.ini"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            **identity,  # type: ignore[call-overload]
        ) as process:  # fmt: skip
            try:
                until(lambda: services.answers(port), why=lambda: (folder / "log").read_text())
                yield target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
            finally:
                process.terminate()
