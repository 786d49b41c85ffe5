"""SQLite where it ends: full disks, files that may not be written, network file systems, a log that grows."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from redrive.domain.errors import ConfigError, Unavailable
from redrive.domain.filters import JobFilter, PageRequest
from redrive.domain.states import Place
from redrive.store.sql import mounts, wal
from redrive.store.sql.mounts import network_file_system
from redrive.store.sql.store import open_store
from tests.faults.waiting import Crew, until

from .make import job

HOT = JobFilter(place=Place.HOT)


# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs root, to mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs tmpfs")
def test_a_full_disk_loses_nothing(small_disk: Path):
    """What was answered is there, what was refused is not; with space again it goes on."""
    with closing(open_store(f"sqlite:///{small_disk}/redrive.db")) as store:
        (small_disk / "ballast").write_bytes(b"x" * 300_000)
        accepted = 0
        refused: Unavailable | None = None
        while refused is None:
            try:
                store.enqueue([job(b"x" * 20_000)])
                accepted += 1
            except Unavailable as error:
                refused = error
        assert refused.cause == "disk-full"
        assert "Free some space" in str(refused)
        assert accepted > 10
        assert store.count_jobs(HOT).number == accepted
        (small_disk / "ballast").unlink()
        store.enqueue([job(b"x")])
        assert store.count_jobs(HOT).number == accepted + 1
        assert [result.number for result in store.promises()] == [0] * len(store.promises())
    with closing(sqlite3.connect(small_disk / "redrive.db")) as plain:
        assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs tmpfs")
def test_a_disk_that_is_full_from_the_start(small_disk: Path):
    fill(small_disk / "ballast")
    with pytest.raises(Unavailable) as error:
        open_store(f"sqlite:///{small_disk}/redrive.db")
    assert error.value.cause == "disk-full"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs tmpfs")
def test_a_file_system_that_is_mounted_read_only(small_disk: Path):
    url = f"sqlite:///{small_disk}/redrive.db"
    open_store(url).close()
    remount(small_disk, "ro")
    with closing(open_store(url)) as store:
        for call in (store.queues, lambda: store.enqueue([job()])):
            with pytest.raises(Unavailable) as error:
                call()
            assert "writable" in str(error.value)
            assert str(small_disk) in str(error.value)
    remount(small_disk, "rw")
    with closing(open_store(url)) as store:
        store.enqueue([job()])


# -- network file systems ----------------------------------------------------------------------------------------------

MOUNTED = r"""22 1 0:21 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /proc rw - proc proc rw
30 22 0:40 / /mnt/share rw,relatime shared:1 - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /mnt/share/local rw - ext4 /dev/vdb rw
32 22 0:42 / /mnt/two\040words rw - cifs //server/share rw
33 22 0:43 / /mnt/ssh rw - fuse.sshfs ann@host: rw
34 22 0:44 / /mnt/bucket rw - fuse.mergerfs local rw
35 22 0:45 / /mnt/twice rw - nfs server:/a rw
36 22 0:46 / /mnt/twice rw - xfs /dev/vdc rw
37 22 0:47 / /mnt/shared rw - tmpfs tmpfs rw
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/redrive.db", None),
        ("/mnt/share/redrive.db", "nfs4"),
        ("/mnt/share/local/redrive.db", None),
        ("/mnt/two words/app/redrive.db", "cifs"),
        ("/mnt/ssh/redrive.db", "fuse.sshfs"),
        ("/mnt/bucket/redrive.db", None),
        ("/mnt/twice/redrive.db", None),
        ("/mnt/shared/redrive.db", None),
    ],
)
def test_the_file_system_of_a_path(tmp_path: Path, path: str, kind: str | None):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTED)
    assert network_file_system(Path(path), table) == kind


def test_where_there_is_no_table_of_mounts_nothing_is_refused(tmp_path: Path):
    assert network_file_system(Path("/mnt/share/redrive.db"), tmp_path / "nowhere") is None


def test_a_network_file_system_is_refused_before_the_file_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = tmp_path / "mountinfo"
    table.write_text(f"30 22 0:40 / {tmp_path.resolve()} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(mounts, "MOUNTS", table)
    with pytest.raises(ConfigError, match=r"nfs4.*a disk of this host, or use PostgreSQL"):
        open_store(f"sqlite:///{tmp_path}/redrive.db")
    assert not (tmp_path / "redrive.db").exists()


# -- the write-ahead log -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_row_63_the_log_stays_small_under_readers(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    """The log grew without end because there was always some reader in it, so that no checkpoint completed."""
    monkeypatch.setattr(wal, "LIMIT", 1_000_000)
    monkeypatch.setattr(wal, "AGAIN", 0.0)
    grow(sqlite_url, megabytes=12, most=4_000_000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_row_63_the_log_stays_small_for_long(sqlite_url: str):
    """As it is set: a gigabyte written, never more than 256 MB of log."""
    grow(sqlite_url, megabytes=1000, most=256_000_000)


def grow(url: str, *, megabytes: int, most: int) -> None:
    """Readers that always overlap, and a list page that stays open half-read, while jobs are written."""
    path = Path(url.removeprefix("sqlite:///"))
    log = path.with_name(path.name + "-wal")
    with closing(open_store(url)) as store, closing(open_store(url)) as reading, Crew() as crew:
        store.enqueue([job(b"x" * 1000) for _ in range(500)])
        pages = reading.list_jobs(HOT, PageRequest(limit=100))
        assert pages.next_cursor is not None
        baton, looks = threading.Semaphore(0), [0]

        def read() -> None:
            """One begins before the other ends."""
            with closing(sqlite3.connect(path, isolation_level=None)) as plain:
                plain.execute("BEGIN")
                plain.execute("SELECT count(*) FROM jobs_hot").fetchone()
                baton.release()
                looks[0] += 1
                baton.acquire()
                plain.execute("SELECT sum(length(payload)) FROM jobs_hot").fetchone()
                plain.execute("COMMIT")

        for _ in range(3):
            crew.keep(read, 0)
        until(lambda: looks[0] > 5)
        largest = 0
        for _ in range(megabytes * 10):
            store.enqueue([job(b"x" * 100_000)])
            largest = max(largest, log.stat().st_size)
            crew.check()
        rest = reading.list_jobs(HOT, PageRequest(100, pages.next_cursor))
        assert rest.jobs
    assert looks[0] > 20
    assert largest < most, f"{largest / 1e6:.1f} MB of log"
