"""Errors of HTTP: one real server, every client, and what their exceptions mean."""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import httpx
import pytest
import requests

from redrive.domain import classify as classify_module
from redrive.domain.classify import Classification
from redrive.domain.failures import FailureClass
from redrive.domain.policy import LONGEST
from tests.domain.given import NOW

FATAL, TRANSIENT, THROTTLED = (Classification(kind) for kind in FailureClass)


def classify(error):
    return classify_module.classify(error, now=NOW)


class Peer(BaseHTTPRequestHandler):
    """Answers /<status>?<header>=<value> with just that."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urlsplit(self.path)
        self.send_response_only(int(url.path[1:]))
        for name, value in parse_qsl(url.query):
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Peer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def with_httpx(url):
    httpx.get(url).raise_for_status()


def with_requests(url):
    requests.get(url, timeout=5).raise_for_status()


def with_urllib(url):
    try:
        urllib.request.urlopen(url).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise


def with_aiohttp(url):
    async def get():
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            response.raise_for_status()

    asyncio.run(get())


@pytest.fixture(params=[with_httpx, with_requests, with_urllib, with_aiohttp])
def fetch(request, peer):
    def error_of(status, **headers):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - each client has its own
            request.param(f"{peer}/{status}?{urlencode({name.replace('_', '-'): v for name, v in headers.items()})}")
        return caught.value

    return error_of


@pytest.mark.parametrize("status", [400, 405, 406, 410, 411, 413, 414, 415, 422, 501, 505])
def test_the_request_itself_is_wrong(fetch, status):
    assert classify(fetch(status)) == FATAL


@pytest.mark.parametrize("status", [401, 403, 404, 407, 408, 409, 423, 425, 500, 502, 503, 504, 507, 599])
def test_the_answer_may_change(fetch, status):
    assert classify(fetch(status)) == TRANSIENT


@pytest.mark.parametrize("status", [429, 503])
def test_too_fast(fetch, status):
    assert classify(fetch(status, Retry_After="60")) == Classification(FailureClass.THROTTLED, 60)


def test_too_fast_without_a_time(fetch):
    assert classify(fetch(429)) == THROTTLED


@pytest.mark.parametrize("status", [400, 500, 502])
def test_elsewhere_a_time_means_nothing(fetch, status):
    assert classify(fetch(status, Retry_After="60")) == classify(fetch(status))


def test_a_date_is_read_by_the_clock_that_wrote_it(fetch):
    theirs = NOW + timedelta(days=400)  # a peer whose clock is far off
    headers = {"Date": format_datetime(theirs, usegmt=True)}
    headers["Retry_After"] = format_datetime(theirs + timedelta(seconds=75), usegmt=True)
    assert classify(fetch(503, **headers)) == Classification(FailureClass.THROTTLED, 75)


@pytest.fixture
def far_from_utc(monkeypatch):
    """The time zone of the host must not matter."""
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def told(retry_after, date=None, status=503):
    headers = {"Retry-After": retry_after} | ({"Date": date} if date else {})
    plain, lower = (
        classify(Shaped(response=SimpleNamespace(status_code=status, headers=spelled))).retry_after
        for spelled in (headers, {name.lower(): value for name, value in headers.items()})
    )
    assert plain == lower
    return plain


class Shaped(LookupError):
    """A fatal error by its class, unless its attributes make it one of HTTP."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


IN_A_MINUTE = format_datetime(NOW + timedelta(seconds=60), usegmt=True)


@pytest.mark.usefixtures("far_from_utc")
class TestRetryAfter:
    @pytest.mark.parametrize(
        ("value", "seconds"),
        [
            ("0", 0),
            ("60", 60),
            (" 60 ", 60),
            ("1.5", 1.5),
            ("315360000", 315_360_000),  # ten years: beyond any sane lifetime, and judged by it
            ("9" * 5000, LONGEST),
            (IN_A_MINUTE, 60),
            ("Mon, 04 May 2026 03:03:01 -0000", 60),
            ("Mon, 04 May 2026 05:03:01 +0200", 60),
            ("Mon, 04 May 2020 03:03:01 GMT", 0),  # past
            ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST),
        ],
    )
    def test_is_seconds_or_a_date(self, value, seconds):
        assert told(value) == seconds

    @pytest.mark.parametrize(
        "value",
        ["", "soon", "-5", "1e3", "0x10", "60s", "60, 120", "٦٠", "1.", ".5", "NaN", "inf", "Fri, 99 Foo 2026", "🚀"],
    )
    def test_garbage_falls_back_to_backoff(self, value):
        assert told(value) is None
        assert told(value, status=429) is None

    def test_is_relative_to_the_date_of_the_answer(self):
        assert told(IN_A_MINUTE, date=format_datetime(NOW - timedelta(seconds=5), usegmt=True)) == 65
        assert told(IN_A_MINUTE, date="Mon, 04 May 2026 03:02:31 -0000") == 30

    @pytest.mark.parametrize("date", ["", "yesterday", "Mon, 04 May 99999 03:02:01 GMT"])
    def test_a_date_of_the_answer_that_is_none_is_ignored(self, date):
        assert told(IN_A_MINUTE, date) == 60


def answer(status, **attributes):
    return SimpleNamespace(status_code=status, **attributes)


@pytest.mark.parametrize(
    "error",
    [
        Shaped(response=answer(500)),
        Shaped(response=answer(599)),
        Shaped(response=answer(401)),
        Shaped(response=SimpleNamespace(status=500)),
        Shaped(response=answer(500), status=400, headers={}),  # the response goes first
        Shaped(status=500, headers={}),
        aiohttp.ClientResponseError(None, (), status=500),  # type: ignore[arg-type]  # its headers are None
    ],
    ids=range(7),
)
def test_what_is_an_error_of_http(error):
    assert classify(error) == TRANSIENT


def test_an_error_of_aiohttp_needs_no_headers():
    assert classify(aiohttp.ClientResponseError(None, (), status=400)) == FATAL  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        Shaped(),
        Shaped(response=None),
        Shaped(response="500"),
        Shaped(response=answer("500")),
        Shaped(response=answer(True)),
        Shaped(response=answer(200)),
        Shaped(response=answer(399)),
        Shaped(response=answer(600)),
        Shaped(status=500),  # may be anything
    ],
    ids=range(9),
)
def test_what_only_looks_like_one_is_judged_by_its_class(error):
    assert classify(error) == FATAL


@pytest.mark.parametrize("headers", [None, {}, 5, {"Retry-After": None}, {"Retry-After": b"60"}, {"retry-after": 60}])
def test_headers_may_be_missing_or_odd(headers):
    assert classify(Shaped(response=answer(429, headers=headers))) == THROTTLED
    assert classify(Shaped(response=answer(503, headers=headers))) == TRANSIENT
