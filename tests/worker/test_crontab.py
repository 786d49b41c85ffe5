"""Rhythms as they are written, and what is refused."""

from datetime import timedelta
from typing import Any

import pytest

from redrive.domain.errors import InvalidField
from redrive.worker import crontab

REFUSED: list[tuple[Any, Any, str, str]] = [
    ("* * * *", "UTC", "cron", "4 fields"),
    ("* * * * * *", "UTC", "cron", "6 fields"),
    ("@daily", "UTC", "cron", "1 fields"),
    ("", "UTC", "cron", "0 fields"),
    (None, "UTC", "cron", "no text"),
    ("60 * * * *", "UTC", "cron", "bad minute"),
    ("0 24 * * *", "UTC", "cron", "bad hour"),
    ("0 0 0 * *", "UTC", "cron", "bad day-of-month"),
    ("0 0 * 13 *", "UTC", "cron", "bad month"),
    ("0 0 * * 8", "UTC", "cron", "bad day-of-week"),
    ("*/0 * * * *", "UTC", "cron", "bad minute"),
    ("0 0 30 2 *", "UTC", "cron", "bad day-of-month"),
    ("0 0 LW * */6", "UTC", "cron", "no time that ever comes"),
    ("0 3 * * *", "Europe/Nowhere", "tz", "no time zone"),
    ("0 3 * * *", "Europe", "tz", "no time zone"),
    ("0 3 * * *", "/etc/localtime", "tz", "no time zone"),
    ("0 3 * * *", "../x", "tz", "no time zone"),
    ("0 3 * * *", "", "tz", "no time zone"),
    ("0 3 * * *", None, "tz", "no time zone"),
]


@pytest.mark.parametrize(("expression", "tz", "field", "said"), REFUSED, ids=str)
def test_an_expression_that_cannot_be_meant_is_refused_with_words(expression, tz, field, said):
    with pytest.raises(InvalidField) as refused:
        crontab.cron(expression, tz)
    assert refused.value.field == field
    assert said in str(refused.value)
    assert refused.value.expected


@pytest.mark.parametrize(
    "interval",
    [0, 0.5, 1.5, -60, True, None, "60", float("nan"), float("inf"), timedelta(milliseconds=1500), timedelta(days=367)],
    ids=str,
)
def test_an_interval_that_cannot_be_meant_is_refused(interval: Any):
    with pytest.raises(InvalidField) as refused:
        crontab.every(interval)
    assert refused.value.field == "every"


def test_what_is_stored_is_what_was_meant():
    assert crontab.cron(" 0  3 * *\tmon ", "Europe/Berlin")[1] == {"cron": "0 3 * * mon", "tz": "Europe/Berlin"}
    assert crontab.every(timedelta(hours=1))[1] == crontab.every(3600.0)[1] == {"every": 3600}
    assert isinstance(crontab.every(3600.0)[1]["every"], int)
