"""Limits of the settings reach what they limit."""

from redrive import Redrive


def test_a_result_beyond_the_limit_is_left_out_and_the_job_succeeds(sqlite_url):
    app = Redrive(sqlite_url, limits={"result": 10})

    @app.job("echo.v1")
    def echo(text: str) -> str:
        return text

    short, long = echo.enqueue("12345678"), echo.enqueue("123456789")
    app.worker().run(burst=True)
    assert (short.status(), short.result()) == ("archive", "12345678")
    assert (long.status(), long.result()) == ("archive", None)
    app.close()
