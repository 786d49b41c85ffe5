"""The file of a relative URL is the one it named first, wherever the process goes later."""

from redrive.store.sql.store import open_store
from tests.store import make


def test_a_change_of_folder_does_not_change_the_database(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///jobs.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.close()  # so that the next call opens a connection
    (one,) = store.enqueue([make.job()])
    assert store.head(one.id) is not None
    store.close()
    assert not list((tmp_path / "elsewhere").iterdir())
