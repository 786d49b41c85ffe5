"""A job whose work was done by another: how the command line tells it."""

from redrive import Redrive
from tests.cli.command import run


def test_a_skipped_job_is_shown_as_such(sqlite_url: str):
    app = Redrive(sqlite_url)

    @app.job("invoice.send.v1", once=lambda invoice: f"invoice-{invoice}")
    async def send(invoice: int) -> None: ...

    first = send.enqueue(7)
    app.worker().run(burst=True)
    second = send.enqueue(7)
    app.worker().run(burst=True)
    app.close()
    listed = run("archive", "list", "--database", sqlite_url).text
    assert f"{second.id}  skipped    default" in listed
    assert f"{first.id}  succeeded  default" in listed
    shown = run("jobs", "show", str(second.id), "--database", sqlite_url).text
    assert "is     archive, skipped\n" in shown
    assert f"attempt 1: skipped  'invoice-7' was completed by job {first.id}" in shown
    assert "is     archive\n" in run("jobs", "show", str(first.id), "--database", sqlite_url).text
