"""A primary that becomes read-only while another is promoted: it is left, by workers, desks and listeners alike."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from redrive import Spot
from scripts.services import PrivatePostgres, Standby
from tests.conftest import migrate, started
from tests.faults.evidence import Evidence, account, placed_once
from tests.faults.load import Load
from tests.faults.nursery import Nursery
from tests.faults.scene import Scene, patience
from tests.faults.waiting import Crew, until

pytestmark = pytest.mark.slow


@pytest.fixture
def standby(private_postgres: PrivatePostgres) -> Iterator[Standby]:
    """A standby of a migrated primary."""
    migrate(private_postgres.url)
    with started(lambda: Standby(private_postgres)) as standby:
        yield standby


def both(primary: PrivatePostgres, standby: Standby) -> str:
    return f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"


def fail_over(primary: PrivatePostgres, standby: Standby) -> None:
    """As an operator does it who loses nothing: no more writes here, all of them there, then promote."""
    primary.configure(default_transaction_read_only="on")
    with (
        psycopg.connect(primary.url, autocommit=True) as old,
        psycopg.connect(standby.url, autocommit=True) as new,
    ):
        writing = "SELECT 1 FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
        until(lambda: old.execute("SHOW default_transaction_read_only").fetchone() == ("on",))
        until(lambda: not old.execute(writing).fetchall())
        (end,) = old.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
        until(lambda: new.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [end]).fetchone() == (True,))
    standby.promote()


def test_row_58_a_failover_under_load(
    private_postgres: PrivatePostgres, standby: Standby, nursery: Nursery, tmp_path: Path, report: Callable[[str], None]
):
    """Pooled connections pointed to a read-only server, and every write failed until somebody restarted the service."""
    native = both(private_postgres, standby)
    ports = f"{private_postgres.port},{standby.port}"
    query = f"postgresql://postgres@/postgres?host=127.0.0.1,127.0.0.1&port={ports}"  # what the tests' own driver reads
    with Scene(query, nursery, tmp_path) as scene:
        workers = [scene.start(REDRIVE_DATABASE_URL=native, **patience(0.5, 5)) for _ in range(2)]
        until(lambda: all("worker-started" in worker.text() for worker in workers), why=scene.outputs)
        load = Load(scene)
        gate = tmp_path / "gate"
        long = [scene.enqueue("gated", gate=str(gate)), scene.enqueue("gated-thread", gate=str(gate))]
        load.accepted |= {job.id.hex for job in long}
        with Crew() as crew:
            crew.keep(load.enqueue, 0.01)
            until(lambda: len(load.accepted) > 30, why=scene.outputs)
            scene.begun(2)
            fail_over(private_postgres, standby)
            began = time.monotonic()
            scene.evidence = Evidence(standby.url)
            before = len(load.accepted)
            until(lambda: len(load.accepted) > before + 10, why=scene.outputs)
            until(lambda: all("database-back" in worker.text() for worker in workers), why=scene.outputs)
            away = time.monotonic() - began
            crew.check()
        gate.touch()
        assert [job.wait(30) for job in long] == [Spot.ARCHIVE] * 2, "handlers that ran meanwhile are settled there"
        until(lambda: scene.evidence.hot() == 0, 60, why=scene.outputs)
        assert [worker.finish() for worker in workers] == [0, 0]
        assert away < 30
        assert placed_once(scene.evidence, load.accepted) == []
        assert account(scene.evidence, scene.lines(), set()) == []
        scene.promises()
        report(
            f"failover under load: written again {away:.1f} s after the promotion, nobody restarted\n"
            f"  {len(load.accepted)} jobs accepted, none lost; {len(load.unknown)} enqueues unanswered\n"
        )
