"""A delay is a length of time: a day of it has 24 hours also where the server's clock is changed meanwhile."""

from datetime import timedelta

import psycopg
import pytest

from redrive.domain.states import Verb
from redrive.store.sql.store import open_store
from tests.databases import Databases

from .make import Floor, job, retry, worker


@pytest.mark.slow
@pytest.mark.postgres
def test_delays_of_days_across_a_change_of_the_servers_clock(databases: Databases, postgres_template: str):
    """PostgreSQL adds days by the calendar of its session's time zone, and hours by the clock."""
    name = databases.create(template=postgres_template)
    with psycopg.connect(databases.url(name), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET timezone = 'Europe/Berlin'")
    store = open_store(databases.url(name))
    floor = Floor(store)
    store.register(worker())
    for days in (90, 180, 270):  # whatever day it is, one of them is on the other side of a change
        delay = timedelta(days=days)
        (alone,) = floor.accept(job(due=delay))
        bulk = floor.accept(job(due=delay), job(due=delay, idempotency_key=f"key-{days}"))
        with psycopg.connect(databases.url(name)) as theirs:
            (joined,) = [accepted.id for accepted in store.enqueue([job(due=delay)], connection=theirs)]
        held = floor.running()
        floor.settle(retry(held, delay.total_seconds()))
        dead = floor.dead()
        floor.ask(Verb.RESURRECT, dead, due=delay)
        for one in (alone, *bulk, joined, held.uuid, dead):
            head = floor.head(one)
            assert head.due_at - head.updated_at == delay
    store.close()
    databases.drop(name)
