"""Settings: where they come from, and that no typing error passes."""

from datetime import timedelta
from pathlib import Path

import pytest

from redrive import ConfigError, Redrive
from redrive.config import Settings, load, mask
from redrive.config.tables import allowed, keys_of

URL = "postgresql://ann:s3cret@db.example/jobs"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def origins(settings: Settings) -> dict[str, str]:
    return {one.name: one.origin for one in settings.effective()}


def test_each_source_beats_the_one_before(here, monkeypatch):
    (here / "redrive.toml").write_text("[worker]\nheartbeat = 5\npoll = 2\ngrace = 7\n")
    monkeypatch.setenv("REDRIVE_WORKER__POLL", "3")
    monkeypatch.setenv("REDRIVE_WORKER__GRACE", "8")
    monkeypatch.setenv("REDRIVE_DATABASE_URL", "sqlite:///env.db")
    settings = load(settings={"worker": {"grace": 9}})

    assert (settings.worker.heartbeat, settings.worker.poll, settings.worker.grace) == (5, 3, 9)
    assert str(settings.database.url) == "sqlite:///env.db"
    where = origins(settings)
    assert where["worker.heartbeat"] == "file redrive.toml"
    assert where["worker.poll"] == "environment REDRIVE_WORKER__POLL"
    assert where["worker.grace"] == "argument"
    assert where["worker.threads"] == "default"
    assert where["database.url"] == "environment REDRIVE_DATABASE_URL"


def test_every_setting_is_listed_with_its_origin(here):
    listed = {one.name for one in load().effective()}
    assert listed == {f"{table}.{key}" for table in Settings.model_fields for key in keys_of(table)}


def test_the_settings_file_can_be_named(here, monkeypatch):
    (here / "redrive.toml").write_text("[worker]\npoll = 2\n")
    (here / "other.toml").write_text("[worker]\npoll = 4\n")
    assert load(file="other.toml").worker.poll == 4
    monkeypatch.setenv("REDRIVE_CONFIG", "other.toml")
    assert load().worker.poll == 4
    monkeypatch.setenv("REDRIVE_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"gone\.toml \(from REDRIVE_CONFIG\) cannot be read"):
        load()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("REDRIVE_WORKR__X", "1", r"workr \(environment REDRIVE_WORKR__X\) is no setting; the tables are database, "),
        ("REDRIVE_WORKER__POL", "1", r"worker\.pol \(environment REDRIVE_WORKER__POL\) is no setting; worker has conc"),
        ("REDRIVE_WORKER", "1", r"worker \(environment REDRIVE_WORKER\) is a table"),
        ("REDRIVE_FOO", "1", r"foo \(environment REDRIVE_FOO\) is no setting"),
        ("REDRIVE_WORKER__POLL", "nan", r"worker\.poll \(environment .*\) is not accepted: allowed is a number from"),
        ("REDRIVE_WORKER__POLL", "inf", r"worker\.poll .* is not accepted"),
        ("REDRIVE_WORKER__POLL", "soon", r"worker\.poll .* is not accepted"),
        ("REDRIVE_WORKER__CONCURRENCY", "0", r"worker\.concurrency .*: allowed is a whole number from 1 to 10000"),
        ("REDRIVE_WORKER__CONCURRENCY", "2.5", r"worker\.concurrency .* is not accepted"),
        ("REDRIVE_WORKER__QUEUES", " , ", r"worker\.queues .*: allowed is names of queues"),
        ("REDRIVE_RETRY__FACTOR", "0.5", r"retry\.factor .*: allowed is a number from 1 to 1000"),
        ("REDRIVE_LIMITS__BATCH", "1001", r"limits\.batch .*: allowed is a whole number from 1 to 1000"),
        ("REDRIVE_LIMITS__PAYLOAD", "-1", r"limits\.payload .* is not accepted"),
        ("REDRIVE_TIMEOUTS__HANDLER", "0", r"timeouts\.handler .*: allowed is a number above 0"),
        ("REDRIVE_DATABASE__SCHEMA", "a b", r"database\.schema .*: allowed is up to 63"),
        ("REDRIVE_DATABASE_URL", "mysql://h/d", r"database\.url \(environment REDRIVE_DATABASE_URL\) is not accepted"),
        ("REDRIVE_RECOVERY__ZOMBIE_TIMEOUT", "29", r"recovery\.zombie_timeout = 29 .*: allowed is 30 or more, three"),
        ("REDRIVE_RECOVERY__FETCHED_TIMEOUT", "29.9", r"recovery\.fetched_timeout = 29\.9 .*: allowed is 30 or more"),
        ("REDRIVE_WORKER__HEARTBEAT", "21", r"zombie_timeout = 60 \(default\) .*worker\.heartbeat = 21 \(environment"),
    ],
)
def test_what_is_unknown_or_out_of_range_is_refused_by_name(here, monkeypatch, variable, value, said):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=said):
        load()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[workr]\nx = 1\n", r"workr.* \(file redrive\.toml\) is no setting"),
        ("[worker]\npol = 1\n", r"worker\.pol \(file redrive\.toml\) is no setting"),
        ("worker = 3\n", r"worker \(file redrive\.toml\) is a table"),
        ("[worker]\npoll = true\n", r"worker\.poll \(file redrive\.toml\) is not accepted"),
        ("[worker\n", r"redrive\.toml is not TOML"),
        ("[worker]\npoll = -1\n[retry]\nbase = -1\n", r"worker\.poll .*\n.*retry\.base"),
    ],
)
def test_a_file_is_held_to_the_same(here, text, said):
    (here / "redrive.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load()


def test_every_setting_can_say_what_is_allowed():
    for table in Settings.model_fields:
        for key in keys_of(table):
            assert allowed(f"{table}.{key}")


def test_what_belongs_to_tests_is_left_alone(here, monkeypatch):
    monkeypatch.setenv("REDRIVE_TEST_ANYTHING", "1")
    load()


def test_durations_may_carry_a_unit(here, monkeypatch):
    monkeypatch.setenv("REDRIVE_RECOVERY__ZOMBIE_TIMEOUT", "5m")
    settings = load(settings={"timeouts": {"handler": timedelta(hours=1)}, "worker": {"poll": "250 ms"}})
    assert settings.recovery.zombie_timeout == 300
    assert settings.timeouts.handler == 3600
    assert settings.worker.poll == 0.25


def test_queues_are_a_list_or_separated_by_commas(here, monkeypatch):
    monkeypatch.setenv("REDRIVE_WORKER__QUEUES", "a, b")
    assert load().worker.queues == ("a", "b")
    assert load(settings={"worker": {"queues": ["c"]}}).worker.queues == ("c",)


def test_a_wrong_argument_is_refused_where_it_is_written(here):
    with pytest.raises(ConfigError, match=r"workr\.x|workr"):
        Redrive(URL, workr={"x": 1})
    with pytest.raises(ConfigError, match=r"worker\.poll"):
        Redrive(URL, worker={"poll": -1})


def test_without_a_database_it_says_how_to_name_one(here):
    with pytest.raises(ConfigError, match="REDRIVE_DATABASE_URL"):
        _ = Redrive().store


def test_a_password_is_never_shown(here, monkeypatch):
    monkeypatch.setenv("REDRIVE_DATABASE_URL", URL)
    settings = load()
    url = settings.database.url
    assert url is not None
    assert url.reveal() == URL
    shown = [repr(settings), str(settings), repr(url), str(url), f"{url}", *(one.shown for one in settings.effective())]
    assert not [text for text in shown if "s3cret" in text]
    assert "postgresql://ann:***@db.example/jobs" in str(url)


def test_a_password_is_not_in_the_refusal_of_its_url(here, monkeypatch):
    monkeypatch.setenv("REDRIVE_DATABASE_URL", URL.replace("postgresql", "mysql"))
    with pytest.raises(ConfigError) as refused:
        load()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://u:p@ss:w@h/d", "postgresql://u:***@h/d"),
        ("no postgresql://u:p@h/d or postgresql://v:q@h/d", "no postgresql://u:***@h/d or postgresql://v:***@h/d"),
        ("postgresql://h/d?user=u&password=geheim&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("sqlite:///redrive.db", "sqlite:///redrive.db"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
    ],
)
def test_masking(text, masked):
    assert mask(text) == masked
