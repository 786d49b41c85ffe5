"""The command line in this process: the real ``main``, with real bytes on its three streams."""

import functools
import io
import sys
from dataclasses import dataclass
from unittest import mock

import typer.main

from redrive.faces.cli.main import main


@dataclass
class Ran:
    code: int
    out: bytes
    said: str

    @property
    def text(self) -> str:
        return self.out.decode()


class Terminal(io.TextIOWrapper):
    """A stream that a program takes for a person's."""

    def isatty(self) -> bool:
        return True


built = functools.cache(typer.main.get_command)
"""The tree of commands is made from signatures, and that is half the time of a short command."""


def run(*arguments: str, stdin: bytes = b"", terminal: bool = False) -> Ran:
    kind = Terminal if terminal else io.TextIOWrapper
    out, err = io.BytesIO(), io.BytesIO()
    given = kind(io.BytesIO(stdin), encoding="utf-8")
    stdout = kind(out, encoding="utf-8", errors="surrogateescape")
    stderr = kind(err, encoding="utf-8", errors="backslashreplace")
    with (
        mock.patch.object(sys, "argv", ["redrive", *arguments]),
        mock.patch.object(sys, "stdin", given),
        mock.patch.object(sys, "stdout", stdout),
        mock.patch.object(sys, "stderr", stderr),
        mock.patch.object(typer.main, "get_command", built),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        for stream in (stdout, stderr):
            if not stream.closed:
                stream.flush()
    return Ran(code, out.getvalue(), err.getvalue().decode())
