"""Options out of range stop the start, with their name and what is allowed."""

import pytest

from redrive.domain.errors import ConfigError, InvalidField
from redrive.worker.options import WorkerOptions
from redrive.worker.process import Worker
from redrive.worker.registry import Registry


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"heartbeat": 10.0, "zombie_timeout": 29.9}, "zombie_timeout"),
        ({"heartbeat": 10.0, "fetched_timeout": 29.9}, "fetched_timeout"),
        ({"heartbeat": 30.0}, "zombie_timeout"),
        ({"async_slots": 0}, "async_slots"),
        ({"threads": 0}, "threads"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"poll": -1}, "poll"),
        ({"grace": -1}, "grace"),
        ({"zombie_timeout": float("nan")}, "zombie_timeout"),
        ({"queues": ()}, "queues"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(wrong, name):
    with pytest.raises(ConfigError, match=name):
        WorkerOptions(**wrong)


def test_a_lease_may_expire_after_three_heartbeats_and_queues_have_names():
    assert WorkerOptions(heartbeat=10.0, zombie_timeout=30.0, fetched_timeout=30.0).zombie_timeout == 30.0
    with pytest.raises(InvalidField):
        WorkerOptions(queues=("a b",))


def test_a_worker_without_handlers_says_what_to_do(sqlite_url):
    from redrive.store.sql.store import open_store

    with pytest.raises(ConfigError, match="import the modules"):
        Worker(open_store(sqlite_url), Registry())
