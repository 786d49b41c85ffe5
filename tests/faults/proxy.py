"""A TCP proxy in front of PostgreSQL that loses answers: it cuts the client off and lets the server finish.

It also makes the weather: away, blocked, slow.
"""

import contextlib
import select
import socket
import threading
import time
from types import TracebackType
from typing import Self

from sqlalchemy.engine import make_url


class Proxy:
    """``url`` leads through the proxy to the database of the given one."""

    def __init__(self, url: str) -> None:
        target = make_url(url)
        self._target = (target.host or "127.0.0.1", target.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = target.set(host="127.0.0.1", port=self._listener.getsockname()[1]).render_as_string(False)
        self._clients: dict[int, socket.socket] = {}
        self._needles: tuple[bytes, ...] = ()
        self._away = False
        self._flows = threading.Event()
        self._flows.set()
        self._answers = threading.Event()
        self._answers.set()
        self._lag = 0.0
        self.cuts = 0
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, port: int) -> None:
        """Cut off the client whose connection the server knows by ``port``; what it sent goes on being executed."""
        self.cuts += 1
        self._clients[port].shutdown(socket.SHUT_RDWR)

    def cut_all(self) -> None:
        """Cut off everybody; who comes anew is let in."""
        for port, client in list(self._clients.items()):
            with contextlib.suppress(OSError):  # gone by itself
                client.shutdown(socket.SHUT_RDWR)
                self.cuts += 1
            self._clients.pop(port, None)

    def away(self) -> None:
        """Cut off everybody, and let nobody in."""
        self._away = True
        self.cut_all()

    def block(self) -> None:
        """Pass nothing on, in either direction, and say nothing."""
        self._flows.clear()

    def hold(self) -> None:
        """Keep answers back; questions are passed on."""
        self._answers.clear()

    def let_go(self) -> None:
        """Pass on the answers that were kept back, to those who are still there."""
        self._answers.set()

    def slow(self, seconds: float) -> None:
        """Hold up each answer for so long."""
        self._lag = seconds

    def clear(self) -> None:
        """Fine weather again; what was held up is passed on."""
        self._away, self._lag = False, 0.0
        self._flows.set()
        self._answers.set()

    def cut_after(self, *needles: bytes) -> None:
        """Cut off the first client that sends all of ``needles`` in this order, once the last one is passed on."""
        self._needles = needles

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                if self._away:
                    self.refused += 1
                    client.close()
                    continue
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:  # it is away itself
            client.close()
            return
        with client, server:
            self._clients[server.getsockname()[1]] = client
            seen = 0
            while True:
                ready, _, _ = select.select([client, server], [], [])
                self._flows.wait()
                if client in ready:
                    data = _receive(client)
                    if not data:
                        break
                    with contextlib.suppress(OSError):  # it has gone meanwhile, which its end of the line tells next
                        server.sendall(data)
                    needles = self._needles
                    while seen < len(needles) and needles[seen] in data:
                        seen += 1
                    if needles and seen == len(needles):
                        self._needles = ()
                        self.cuts += 1
                        break
                if server in ready:
                    data = _receive(server)
                    if not data:
                        return
                    self._answers.wait()
                    if self._lag:
                        time.sleep(self._lag)
                        self._flows.wait()
                    with contextlib.suppress(OSError):
                        client.sendall(data)
            client.close()
            with contextlib.suppress(OSError):  # the server was quicker
                server.shutdown(socket.SHUT_WR)
            while _receive(server):  # until it has finished, and seen that nobody is there
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self._listener.close()


def _receive(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 18)
    except OSError:
        return b""
