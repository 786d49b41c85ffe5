"""Enqueue inside Django's ``atomic``: in a process of its own, for Django is configured once."""

import json
import subprocess
import sys

import pytest

STORY = """
import json, sys
import django
from django.conf import settings
url, found = sys.argv[1], {}
if url.startswith("sqlite"):
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
else:
    from urllib.parse import urlsplit, parse_qs
    parts = urlsplit(url)
    database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "HOST": parts.hostname or
        parse_qs(parts.query).get("host", [""])[0], "PORT": parts.port or "", "USER": parts.username or "",
        "PASSWORD": parts.password or ""}
settings.configure(DATABASES={"default": database}, USE_TZ=True)
django.setup()
from django.db import connection, connections, transaction
from redrive import Redrive
from redrive import JobFilter, Place

app = Redrive(url)

@app.job("t")
def handler(n: int) -> None: ...

def count():
    return app.insight().count(JobFilter(place=Place.HOT)).number

class Undo(Exception): ...

orders = "CREATE TABLE django_orders (id int)"
with connection.cursor() as cursor:
    cursor.execute(orders)
for undo in (True, False):
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO django_orders VALUES (1)")
            handler.using(connection=connection).enqueue(1)
            app.enqueue("t", {"n": 2}, connection=connections["default"], idempotency_key="k")
            again = app.enqueue("t", {"n": 2}, connection=connection, idempotency_key="k")
            assert again.duplicate
            app.enqueue_many([handler.job(3), handler.job(4)], connection=connection)
            inside = count()
            try:
                with transaction.atomic():
                    app.enqueue("t", {"n": 5}, connection=connection)
                    raise Undo
            except Undo:
                pass
            if undo:
                raise Undo
    except Undo:
        pass
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_orders")
        found["rolled back" if undo else "committed"] = [inside, count(), cursor.fetchone()[0]]
app.enqueue("t", {"n": 6}, connection=connection)
found["without atomic"] = count()
with connection.cursor() as cursor:
    cursor.execute("DROP TABLE django_orders")
connection.close()
app.close()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_rollback_leaves_nothing_and_a_commit_leaves_the_jobs(database_url):
    """In each list: jobs that others see inside ``atomic``, jobs afterwards, rows of the application's afterwards."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", STORY, database_url], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"rolled back": [0, 0, 0], "committed": [0, 4, 1], "without atomic": 5}
