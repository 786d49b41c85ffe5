"""A small mail server that speaks real SMTP (RFC 5321) and keeps its mailbox on disk as ``.eml`` files.

How it answers depends on the recipient, so that a jobs file decides what happens and no test has to steer the server:

    nobody…   550  no such user, for good
    full…     452  mailbox full, every time
    grey…     451  greylisted: refused the first time, taken the second
    others    250
"""

import itertools
import re
import tempfile
import threading
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

LONGEST_LINE = 64 * 1024
LARGEST_MAIL = 10 * 1024 * 1024
ADDRESS = re.compile(r"(?i)(?:FROM|TO):\s*<([^<>]*)>")


class SmtpPeer(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, mailbox: Path, port: int = 0) -> None:
        self.mailbox = mailbox
        mailbox.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._greeted: set[str] = set()
        super().__init__(("127.0.0.1", port), Conversation)

    def verdict(self, recipient: str) -> str:
        """The answer to ``RCPT TO``."""
        name, at, _ = recipient.partition("@")
        if not name or not at or any(letter.isspace() for letter in recipient):
            return "501 5.1.3 bad address"
        if name.startswith("nobody"):
            return "550 5.1.1 no such user here"
        if name.startswith("full"):
            return "452 4.2.2 mailbox full"
        if name.startswith("grey") and self._first_time(recipient):
            return "451 4.7.1 greylisted, try again"
        return "250 2.1.5 ok"

    def _first_time(self, recipient: str) -> bool:
        with self._lock:
            new = recipient not in self._greeted
            self._greeted.add(recipient)
            return new

    def keep(self, sender: str, recipients: list[str], message: bytes) -> None:
        """Store one mail whole, or not at all: who lists the mailbox never sees half a file."""
        trace = "".join([f"Return-Path: <{sender}>\r\n", *(f"Delivered-To: {to}\r\n" for to in recipients)])
        with self._lock:
            number = next(self._numbers)
        with tempfile.NamedTemporaryFile(dir=self.mailbox, prefix=".", delete=False) as draft:
            draft.write(trace.encode() + message)
        Path(draft.name).rename(self.mailbox / f"{number:06}.eml")


class Conversation(StreamRequestHandler):
    """One client, from greeting to QUIT."""

    server: SmtpPeer
    timeout = 60
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.reset()
        try:
            self.say("220 lab.example ESMTP")
            while (line := self.rfile.readline(LONGEST_LINE)).endswith(b"\n"):
                if not self.obey(line.decode("utf-8", "replace").rstrip("\r\n")):
                    return
        except OSError:  # the client hung up, or fell silent: what it had not finished never happened
            return

    def reset(self) -> None:
        self.sender: str | None = None
        self.recipients: list[str] = []

    def say(self, *lines: str) -> None:
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())

    def obey(self, line: str) -> bool:
        """Answer one command; False ends the conversation."""
        verb, _, rest = line.partition(" ")
        found = ADDRESS.match(rest)
        address = found[1] if found else ""
        match verb.upper():
            case "EHLO":
                self.reset()
                self.say("250-lab.example", "250-8BITMIME", "250-SMTPUTF8", f"250 SIZE {LARGEST_MAIL}")
            case "HELO":
                self.reset()
                self.say("250 lab.example")
            case "MAIL" if self.sender is not None:
                self.say("503 5.5.1 one sender at a time")
            case "MAIL" | "RCPT" if not found:
                self.say("501 5.5.4 syntax: an address in angle brackets")
            case "MAIL":
                self.sender = address
                self.say("250 2.1.0 ok")
            case "RCPT" | "DATA" if self.sender is None:
                self.say("503 5.5.1 MAIL first")
            case "RCPT":
                answer = self.server.verdict(address)
                if answer.startswith("250"):
                    self.recipients.append(address)
                self.say(answer)
            case "DATA" if not self.recipients:
                self.say("554 5.5.1 no valid recipients")
            case "DATA":
                return self.take_message()
            case "RSET":
                self.reset()
                self.say("250 2.0.0 ok")
            case "NOOP":
                self.say("250 2.0.0 ok")
            case "QUIT":
                self.say("221 2.0.0 bye")
                return False
            case _:
                self.say("500 5.5.2 unknown command")
        return True

    def take_message(self) -> bool:
        self.say("354 end with a dot on a line of its own")
        message, size, whole_line = [], 0, True
        while (line := self.rfile.readline(LONGEST_LINE)) != b".\r\n" or not whole_line:
            if not line:
                return False  # cut off in the middle of the mail: nothing was taken
            # A dot that begins a line was doubled by the sender. Only CRLF ends a line, and so the mail: taking a bare
            # LF for one lets a second mail be smuggled in inside the first.
            message.append(line[1:] if whole_line and line.startswith(b".") else line)
            whole_line = line.endswith(b"\r\n")
            size += len(line)
            if size > LARGEST_MAIL:
                message.clear()
        if size > LARGEST_MAIL:
            self.say("552 5.3.4 too big")
        else:
            self.server.keep(self.sender or "", self.recipients, b"".join(message))
            self.say("250 2.0.0 taken")
        self.reset()
        return True
