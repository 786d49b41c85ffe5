"""The machine: what it is, and waiting until it is mostly idle."""

import platform
import time
from importlib.metadata import version
from pathlib import Path

import psycopg

BUSY = 0.15
"""The share of the CPUs that others may use when a measure begins."""


def quiet(limit: float) -> float:
    """Waits until the CPUs are mostly idle, `limit` seconds at most; the answer is the share in use at the end."""
    end = time.monotonic() + limit
    while True:
        before = _ticks()
        time.sleep(0.4)
        after = _ticks()
        share = 1 - (after[1] - before[1]) / max(1, after[0] - before[0])
        if share <= BUSY or time.monotonic() > end:
            return share


def _ticks() -> tuple[int, int]:
    """Clock ticks of all CPUs since the start: all, and idle."""
    with Path("/proc/stat").open() as stat:
        values = [int(word) for word in stat.readline().split()[1:9]]
    return sum(values), values[3] + values[4]


def facts(server: str) -> dict[str, str]:
    """What the figures depend on."""
    cpus = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    with psycopg.connect(server, autocommit=True) as connection:
        shown = {}
        for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers", "max_wal_size"):
            row = connection.execute(f"SHOW {name}").fetchone()
            shown[name] = str(row[0]) if row else "?"
    return {
        "machine": f"{len(cpus)} CPUs ({cpus[0] if cpus else 'unknown'}), {memory / 2**20:.0f} GiB,"
        f" {platform.system()} {platform.release()}",
        "PostgreSQL": f"{shown.pop('server_version')}, on the same machine; "
        + ", ".join(f"{name} {value}" for name, value in shown.items()),
        "Python": f"{platform.python_version()}, psycopg {version('psycopg')}, SQLAlchemy {version('sqlalchemy')},"
        f" pydantic {version('pydantic')}",
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
