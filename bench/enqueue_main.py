"""Enqueues through the public API: `URL KIND many|single NUMBER`. Checking the arguments is in the time."""

import sys

from bench.child import answer, timed, wait
from bench.jobs import LETTER, application


def main(url: str, kind: str, form: str, number: int) -> None:
    app, handler = application(url, kind)
    app.store.now()
    handler.job(**LETTER)

    def many() -> None:
        app.enqueue_many([handler.job(**LETTER) for _ in range(number)])

    def single() -> None:
        for _ in range(number):
            handler.enqueue(**LETTER)

    wait()
    answer(timed({"many": many, "single": single}[form]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
