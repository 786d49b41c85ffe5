"""What importing costs, and what the types of the surface say."""

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from redrive import JobContext, Redrive
from redrive.domain.errors import InvalidField

HEAVY = (
    "sqlalchemy", "alembic", "psycopg", "pydantic", "typer", "rich", "json_repair", "structlog",
)  # fmt: skip


def loaded(code: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(ran.stdout.split())


def test_importing_redrive_loads_nothing_heavy():
    assert not loaded("import redrive") & set(HEAVY)


def test_declaring_a_handler_opens_no_database():
    code = """
from redrive import Redrive
app = Redrive("sqlite:////nowhere/at/all.db")
@app.job("t")
def handler(n: int) -> None: ...
"""
    modules = loaded(code)
    assert "pydantic" in modules  # that the test looks at the right thing
    assert not modules & {"sqlalchemy", "alembic", "psycopg", "typer", "json_repair"}


def test_the_decorator_without_parentheses_is_refused_at_once(tmp_path):
    app = Redrive(f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(InvalidField, match=r'@app\.job\("email\.send\.v1"\)'):

        @app.job  # type: ignore[arg-type]
        def handler() -> None: ...


def test_a_parameter_may_be_called_self(sqlite_url):
    app = Redrive(sqlite_url)

    @app.job("portrait.v1")
    def portrait(self: str) -> str:
        return self

    handle = portrait.enqueue(self="me")
    app.worker().run(burst=True)
    assert handle.result() == "me"
    app.close()


if TYPE_CHECKING:
    # Never run: mypy is the test, for it complains of an ignore that hides nothing.
    _app = Redrive()

    @_app.job("with")
    async def _with(ctx: JobContext, to: str, n: int = 1) -> None: ...

    @_app.job("without")
    def _without(to: str, *, n: int = 1) -> int:
        return n

    _with.enqueue("a")
    _with.enqueue(to="a", n=2)
    _with.using(priority=3).job("a", 2)
    _without.enqueue("a", n=2)
    _number: int = _without("a")

    _with.enqueue(to=3)  # type: ignore[arg-type]
    _with.enqueue()  # type: ignore[call-arg]
    _with.using(priority=3).enqueue("a", m=3)  # type: ignore[call-arg]
    _with.job("a", "b")  # type: ignore[arg-type]
    _without.enqueue("a", 2)  # type: ignore[call-arg]
    _with("a")  # type: ignore[call-arg, arg-type, unused-coroutine]
    _with.using(priority="high")  # type: ignore[arg-type]
    _text: str = _without("a")  # type: ignore[assignment]
