"""The partners' side of the lab: an HTTP server that behaves, and misbehaves, as its paths say.

    /ok/ID                  takes the delivery
    /fail/N/ID              500 to the first N requests about ID, then takes it
    /throttle/N/S/ID        429 with Retry-After: S, N times, then takes it
    /busy/N/S/ID            503 with Retry-After: S, N times, then takes it
    /throttle-until/N/S/ID  429 with the moment as an HTTP date, N times, then takes it
    /answer/STATUS/ID       that status, for good
    /hang/N/ID              no answer at all, N times, then takes it
    /drop/N/ID              closes the connection instead of answering, N times, then takes it
    /html/N/ID              200 and an HTML page instead of JSON, N times, then takes it
    /track/N/ID             {"arrived": false} N times, then true
    /subscriber/NAME        whether NAME still wants mail: a name that begins with "left" does not
    /ledger/ACCOUNT         books every request it gets: it cannot know one it has booked before

N may be "always". GET /state tells everything seen; GET /wait/N/ID answers when ID was asked about N times.
"""

import hashlib
import json
import sys
import threading
import time
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import unquote

PATIENCE = 60  # seconds a hanging answer, or a GET /wait, lasts at the most


class HttpPeer(ThreadingTCPServer):
    """What was asked and what was taken, by id, under one condition that says when it changed."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, port: int = 0) -> None:
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self.hits: dict[str, int] = {}
        self.deliveries: dict[str, dict[str, Any]] = {}
        self.ledger: dict[str, list[Any]] = {}
        self.not_before: dict[str, float] = {}
        self.early: list[str] = []
        super().__init__(("127.0.0.1", port), Exchange)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client that left is no error of ours
            super().handle_error(request, client_address)

    def hit(self, about: str) -> int:
        with self.changed:
            self.hits[about] = self.hits.get(about, 0) + 1
            if time.time() < self.not_before.pop(about, 0.0):
                self.early.append(about)  # came back before the time it was told
            self.changed.notify_all()
            return self.hits[about]

    def deliver(self, about: str, key: str | None, body: bytes) -> None:
        with self.changed:
            seen = self.deliveries.setdefault(about, {"count": 0, "keys": []})
            seen["count"] += 1
            seen["keys"] = sorted({*seen["keys"], key or ""})
            seen["body"], seen["sha256"] = body.decode("utf-8", "replace"), hashlib.sha256(body).hexdigest()

    def state(self) -> dict[str, Any]:
        with self.changed:
            return {
                "hits": dict(self.hits),
                "deliveries": dict(self.deliveries),
                "ledger": {account: list(entries) for account, entries in self.ledger.items()},
                "early": list(self.early),
            }


class Exchange(BaseHTTPRequestHandler):
    server: HttpPeer
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE + 5
    wbufsize = -1  # head and body leave in one packet
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        match self.words():
            case ["state"]:
                self.answer(200, self.server.state())
            case ["wait", count, about]:
                with self.server.changed:
                    reached = self.server.changed.wait_for(
                        lambda: self.server.hits.get(about, 0) >= int(count), timeout=PATIENCE
                    )
                self.answer(200 if reached else 504, {"hits": self.server.hits.get(about, 0)})
            case ["track", times, about]:
                self.answer(200, {"arrived": self.server.hit(about) > limit(times)})
            case ["subscriber", name]:
                self.server.hit(name)
                self.answer(200, {"subscribed": not name.startswith("left")})
            case _:
                self.answer(404, {"error": "no such path"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        *how, about = self.words() or [""]
        hit = self.server.hit(about)
        match how:
            case ["fail", times] if hit <= limit(times):
                self.answer(500, {"error": f"failure {hit} of {times}"})
            case ["throttle", times, seconds] if hit <= limit(times):
                self.put_off(429, about, seconds, time.time() + float(seconds))
            case ["busy", times, seconds] if hit <= limit(times):
                self.put_off(503, about, seconds, time.time() + float(seconds))
            case ["throttle-until", times, seconds] if hit <= limit(times):
                date = formatdate(time.time() + float(seconds), usegmt=True)
                self.put_off(429, about, date, parsedate_to_datetime(date).timestamp())  # a date has whole seconds
            case ["answer", status]:
                self.answer(int(status), {"error": f"always {status}"})
            case ["hang", times] if hit <= limit(times):
                self.server.closing.wait(PATIENCE)
                self.close_connection = True
            case ["drop", times] if hit <= limit(times):
                self.close_connection = True
            case ["html", times] if hit <= limit(times):
                self.send(200, "text/html", b"<!doctype html><title>Down for maintenance</title>")
            case ["ledger"]:
                with self.server.changed:
                    self.server.ledger.setdefault(about, []).append(json.loads(body))
                self.answer(201, {"booked": about})
            case ["ok" | "fail" | "throttle" | "busy" | "throttle-until" | "hang" | "drop" | "html", *_]:
                self.server.deliver(about, self.headers.get("Idempotency-Key"), body)
                self.answer(201, {"accepted": about})
            case _:
                self.answer(404, {"error": "no such path"})

    def words(self) -> list[str]:
        return [unquote(word) for word in self.path.partition("?")[0].split("/") if word]

    def put_off(self, status: int, about: str, retry_after: str, until: float) -> None:
        with self.server.changed:
            self.server.not_before[about] = until
        self.answer(status, {"error": "slow down"}, {"Retry-After": retry_after})

    def answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self.send(status, "application/json", json.dumps(content).encode(), headers)

    def send(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: GET /state is the log."""


def limit(times: str) -> float:
    return float("inf") if times == "always" else int(times)
