"""The peers of the lab answer as real peers do, and its jobs file is the one its source makes."""

import json
import smtplib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
import pytest

from examples.lab import make_jobs
from examples.lab.groups import GROUPS
from examples.lab.texts import SEED

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Peers:
    smtp: str
    http: str
    mailbox: Path
    process: subprocess.Popen[str]

    def client(self) -> smtplib.SMTP:
        host, port = self.smtp.split(":")
        return smtplib.SMTP(host, int(port), timeout=10)

    def mails(self) -> list[EmailMessage]:
        return [message_from_bytes(path.read_bytes(), policy=policy.default) for path in self.mailbox.glob("*.eml")]

    def mail_to(self, address: str) -> EmailMessage:
        (mail,) = (mail for mail in self.mails() if mail["Delivered-To"] == address)
        return mail

    def body_to(self, address: str) -> str:
        """The text of the mail, its CRLF line ends as the newlines that were sent."""
        return str(self.mail_to(address).get_content()).replace("\r\n", "\n")

    def post(self, path: str, timeout: float = 10, **more: object) -> httpx.Response:
        return httpx.post(self.http + path, json={"for": path} | more, timeout=timeout, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.http + path, timeout=10, trust_env=False)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    mailbox = tmp_path_factory.mktemp("lab") / "mailbox"
    command = [sys.executable, "-m", "examples.lab.peers", "--mailbox", str(mailbox)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield Peers(ready["smtp"], ready["http"], mailbox, process)
        finally:
            process.terminate()
        assert process.wait(10) == 0, "SIGTERM is an orderly end"


def letter(to: str, body: str, subject: str = "Hello") -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "lab@example.com", to, subject
    mail.set_content(body, cte="8bit" if not body.isascii() else None)
    return mail


def test_a_mail_arrives_whole_with_its_dots(peers: Peers) -> None:
    body = ".\n..\n.hidden\n\nlast line\n.\n"
    with peers.client() as client:
        client.send_message(letter("dots@example.com", body))
    assert peers.body_to("dots@example.com") == body


def test_unicode_in_subject_body_and_address(peers: Peers) -> None:
    body = "Cafe\u0301 \N{PARTY POPPER} \u05e9\u05dc\u05d5\u05dd\n"
    with peers.client() as client:
        client.send_message(letter("zo\u00eb@example.com", body, "\N{PARTY POPPER} \u05e9\u05dc\u05d5\u05dd"))
    assert peers.mail_to("zo\u00eb@example.com")["Subject"] == "\N{PARTY POPPER} \u05e9\u05dc\u05d5\u05dd"
    assert peers.body_to("zo\u00eb@example.com") == body


def test_one_connection_carries_several_mails(peers: Peers) -> None:
    with peers.client() as client:
        for name in ("first", "second"):
            client.send_message(letter(f"{name}@example.com", name))
    assert peers.body_to("second@example.com") == "second\n"


@pytest.mark.parametrize(
    ("address", "code"),
    [("nobody@example.com", 550), ("full@example.com", 452), ("without-at", 501), ("two words@example.com", 501)],
)
def test_a_refused_recipient_gets_no_mail(peers: Peers, address: str, code: int) -> None:
    with peers.client() as client, pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        client.sendmail("lab@example.com", [address], b"Subject: x\r\n\r\nx\r\n")
    assert refused.value.recipients[address][0] == code
    assert not [mail for mail in peers.mails() if mail["Delivered-To"] == address]


def test_greylisting_refuses_once(peers: Peers) -> None:
    with peers.client() as client:
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            client.send_message(letter("grey@example.com", "x"))
        assert refused.value.recipients["grey@example.com"][0] == 451
        client.send_message(letter("grey@example.com", "x"))
    assert peers.mail_to("grey@example.com")


def test_commands_out_of_order_are_refused(peers: Peers) -> None:
    with peers.client() as client:
        assert client.docmd("RCPT", "TO:<a@example.com>")[0] == 503
        assert client.docmd("MAIL", "FROM:nobody")[0] == 501
        assert client.docmd("MAIL", "FROM:<a@example.com>")[0] == 250
        assert client.docmd("MAIL", "FROM:<a@example.com>")[0] == 503
        assert client.docmd("DATA")[0] == 554
        assert client.docmd("RSET")[0] == 250
        assert client.docmd("DATA")[0] == 503
        assert client.docmd("BREW")[0] == 500


def test_a_mail_cut_off_in_the_middle_was_not_taken(peers: Peers) -> None:
    client = peers.client()
    client.helo()
    client.mail("lab@example.com")
    client.rcpt("cut@example.com")
    assert client.docmd("DATA")[0] == 354
    assert client.sock is not None
    client.sock.sendall(b"Subject: cut\r\n\r\nhalf a li")
    client.sock.shutdown(socket.SHUT_WR)
    assert client.sock.recv(100) == b"", "the server hangs up without a word"
    client.close()
    assert not [mail for mail in peers.mails() if mail["Delivered-To"] == "cut@example.com"]


def test_a_second_mail_cannot_be_smuggled_in_behind_a_bare_line_feed(peers: Peers) -> None:
    with peers.client() as client:
        client.helo()
        client.mail("lab@example.com")
        client.rcpt("smuggled@example.com")
        client.docmd("DATA")
        client.send(b"Subject: one\r\n\r\nx\n.\r\nMAIL FROM:<evil@example.com>\r\n.\r\n")
        assert client.getreply()[0] == 250
    assert "evil@example.com" in peers.body_to("smuggled@example.com")


def test_a_delivery_is_kept_with_its_key_and_bytes(peers: Peers) -> None:
    body = b'{"big": 10000000000000000000000000000000000000000, "price": 1.10}'
    for _ in range(2):
        answer = httpx.post(f"{peers.http}/ok/d-1", content=body, headers={"Idempotency-Key": "k"}, trust_env=False)
        assert (answer.status_code, answer.json()) == (201, {"accepted": "d-1"})
    seen = peers.get("/state").json()["deliveries"]["d-1"]
    assert (seen["count"], seen["keys"], seen["body"]) == (2, ["k"], body.decode())


def test_failing_stops_after_so_many(peers: Peers) -> None:
    assert [peers.post("/fail/2/f-1").status_code for _ in range(4)] == [500, 500, 201, 201]
    state = peers.get("/state").json()
    assert (state["hits"]["f-1"], state["deliveries"]["f-1"]["count"]) == (4, 2)


def test_failing_always(peers: Peers) -> None:
    assert [peers.post("/fail/always/f-2").status_code for _ in range(5)] == [500] * 5


@pytest.mark.parametrize(("how", "status"), [("throttle", 429), ("busy", 503)])
def test_throttling_names_its_seconds_and_notes_who_comes_early(peers: Peers, how: str, status: int) -> None:
    first = peers.post(f"/{how}/1/30/{how}-early")
    assert (first.status_code, first.headers["Retry-After"]) == (status, "30")
    assert peers.post(f"/{how}/1/30/{how}-early").status_code == 201
    assert peers.post(f"/{how}/1/0/{how}-late").status_code == status
    assert peers.post(f"/{how}/1/0/{how}-late").status_code == 201
    early = peers.get("/state").json()["early"]
    assert f"{how}-early" in early
    assert f"{how}-late" not in early


def test_throttling_until_a_date(peers: Peers) -> None:
    answer = peers.post("/throttle-until/1/30/t-1")
    wait = parsedate_to_datetime(answer.headers["Retry-After"]).timestamp() - time.time()
    assert answer.status_code == 429
    assert 20 < wait <= 30


@pytest.mark.parametrize("status", [400, 404, 422])
def test_an_answer_for_good(peers: Peers, status: int) -> None:
    assert [peers.post(f"/answer/{status}/a-{status}").status_code for _ in range(2)] == [status, status]


def test_hanging_outlasts_the_client_once(peers: Peers) -> None:
    with pytest.raises(httpx.ReadTimeout):
        peers.post("/hang/1/h-1", timeout=0.2)
    assert peers.post("/hang/1/h-1").status_code == 201


def test_a_dropped_connection_and_then_an_answer(peers: Peers) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        peers.post("/drop/1/x-1")
    assert peers.post("/drop/1/x-1").status_code == 201


def test_html_where_json_was_promised(peers: Peers) -> None:
    answer = peers.post("/html/1/p-1")
    assert answer.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        answer.json()
    assert peers.post("/html/1/p-1").json() == {"accepted": "p-1"}


def test_a_parcel_arrives_and_a_reader_left(peers: Peers) -> None:
    assert [peers.get("/track/2/parcel-1").json()["arrived"] for _ in range(3)] == [False, False, True]
    assert peers.get("/subscriber/reader").json() == {"subscribed": True}
    assert peers.get("/subscriber/left-1").json() == {"subscribed": False}


def test_the_ledger_books_a_repeat_again(peers: Peers) -> None:
    for _ in range(2):
        peers.post("/ledger/acct", text="Invoice 1")
    assert [entry["text"] for entry in peers.get("/state").json()["ledger"]["acct"]] == ["Invoice 1", "Invoice 1"]


def test_waiting_answers_at_the_moment_it_happens(peers: Peers) -> None:
    answers: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: answers.append(peers.get("/wait/2/w-1")))
    waiting.start()
    peers.post("/ok/w-1")
    assert not answers
    peers.post("/ok/w-1")
    waiting.join(10)
    assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"hits": 2})]


@pytest.mark.parametrize("path", ["/", "/nonsense/1", "/nonsense/1/2"])
def test_an_unknown_path_is_no_success(peers: Peers, path: str) -> None:
    assert (peers.post(path).status_code, peers.get(path).status_code) == (404, 404)


def test_the_jobs_file_is_what_its_source_writes() -> None:
    assert make_jobs.FILE.read_bytes() == "".join(line + "\n" for line in make_jobs.lines()).encode("ascii")


def test_the_jobs_file_holds_exact_texts() -> None:
    jobs = [json.loads(line) for line in make_jobs.FILE.read_text(encoding="ascii").splitlines()]
    payloads: dict[str, list[str]] = {group.name: [] for group in GROUPS}
    for job in jobs:
        payloads[job["labels"]["group"]].append(job["payload"])
    assert {name: sorted(texts) for name, texts in payloads.items()} == {g.name: sorted(g.payloads) for g in GROUPS}
    assert SEED in payloads["mail-malformed"]
    with pytest.raises(json.JSONDecodeError) as broken:
        json.loads(SEED)
    assert (broken.value.lineno, broken.value.colno) == (4, 3)
    everything = "".join(job["payload"] for job in jobs)
    for text in (str(10**40), str(2**63), "1.10", "1e5", "\\u0000", "Cafe\u0301", "Caf\u00e9", '"subject": "Second"'):
        assert text in everything


def test_the_readme_shows_the_expected_outcomes() -> None:
    assert make_jobs.table() in (make_jobs.FILE.parent / "README.md").read_text(encoding="utf-8")
