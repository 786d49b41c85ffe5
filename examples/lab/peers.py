"""Start the lab's mail server and HTTP server as one process: ``python -m examples.lab.peers --mailbox DIR``.

Prints one JSON line with both addresses when both accept connections, and stops on SIGTERM (or Ctrl-C).
"""

import argparse
import json
import os
import signal
import threading
from pathlib import Path

from examples.lab.http_peer import HttpPeer
from examples.lab.smtp_peer import SmtpPeer


def main() -> None:
    parser = argparse.ArgumentParser(description="The peers of the lab: SMTP and HTTP on loopback.")
    parser.add_argument("--mailbox", type=Path, required=True, help="folder for the mails that arrive")
    parser.add_argument("--smtp-port", type=int, default=0, help="0 takes a free port (default)")
    parser.add_argument("--http-port", type=int, default=0, help="0 takes a free port (default)")
    args = parser.parse_args()

    # Blocked before the first thread starts, so that all threads inherit it and no signal comes between: it waits
    # for sigwait() below.
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)

    with SmtpPeer(args.mailbox, args.smtp_port) as smtp, HttpPeer(args.http_port) as http:
        for server in (smtp, http):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        addresses = {
            "smtp": f"127.0.0.1:{smtp.server_address[1]}",
            "http": f"http://127.0.0.1:{http.server_address[1]}",
            "pid": os.getpid(),
        }
        print(json.dumps(addresses), flush=True)
        signal.sigwait(stop)
        http.closing.set()
        for server in (smtp, http):
            server.shutdown()


if __name__ == "__main__":
    main()
