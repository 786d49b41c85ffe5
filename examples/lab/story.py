"""How the demo tells its story: calm, dense, legible in 80 columns, without colours, and in a pipe.

Rich finds the width and knows what the terminal can do. Lines are wrapped here, so that what is piped has no padding.
Whatever comes from stored data or from a peer loses its power over the terminal before it is shown.
"""

import textwrap
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from redrive.domain.text import one_line, printable

WIDEST = 110
MARGIN = 4


class StoryError(Exception):
    """The story did not go as it is told; the message says which part, and what was found instead."""


def moment(value: datetime) -> str:
    """A time as people read it; always UTC."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


class Teller:
    """Writes the story to the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, markup=False, emoji=False)
        self._width = max(60, min(self._console.width, WIDEST))
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._began = time.monotonic()
        self._scene = 0
        self._said = ("", 0.0)  # the last line of progress, and when a line was last printed

    @property
    def elapsed(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._began

    def title(self, text: str) -> None:
        """The first line."""
        self._print(text, "bold")

    def scene(self, title: str) -> None:
        """A new part of the story, with the time it begins at."""
        self._scene += 1
        head, clock = f"{self._scene}. {title}", f"{self.elapsed:.1f} s"
        self._print("")
        self._print(f"{head}{clock:>{self._width - len(head)}}", "bold")

    def say(self, text: str = "", *, style: str = "") -> None:
        """A paragraph; without text an empty line."""
        for line in self._wrapped(text, self._width - MARGIN):
            self._print(" " * MARGIN + line, style)

    def point(self, name: str, text: object, *, width: int = 12, style: str = "") -> None:
        """A name, and what there is to say about it beside it."""
        first, *rest = self._wrapped(text, self._width - MARGIN - width - 2)
        self._print(f"{'':{MARGIN}}{name:<{width}}  {first}", style)
        for more in rest:
            self._print(" " * (MARGIN + width + 2) + more, style)

    def code(self, lines: Iterable[str], *, indent: int = 4) -> None:
        """Lines exactly as they are."""
        for line in lines:
            style = {"+": "green", "-": "red"}.get(line[:1], "")
            self._print(" " * (MARGIN + indent) + printable(line, lines=False), style)

    def cut(self, text: str, *, width: int) -> str:
        """``text`` in one line beside a name of ``width``."""
        return one_line(text, self._width - MARGIN - width - 2)

    # -- the long part -------------------------------------------------------------------------------------------------

    def progress(self, text: str) -> None:
        """How far it is: one line that is written over on a terminal, else a line now and then."""
        last, at = self._said
        if text == last:
            return
        if self._live:
            self._console.file.write(f"\r\x1b[2K{'':{MARGIN}}{text[: self._width - MARGIN]}")
            self._console.file.flush()
        elif self.elapsed - at < 3 and last:
            return
        else:
            self.say(text)
        self._said = text, self.elapsed

    def progressed(self) -> None:
        """The long part is over: its line goes."""
        if self._live and self._said[0]:
            self._console.file.write("\r\x1b[2K")
            self._console.file.flush()
        self._said = ("", 0.0)

    # -- inner ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def _wrapped(text: object, width: int) -> list[str]:
        line = printable(text, lines=False)
        return textwrap.wrap(line, width, break_on_hyphens=False, break_long_words=False) or [""]  # a path stays whole

    def _print(self, line: str, style: str = "") -> None:
        self._console.print(Text(line.rstrip(), style=style), soft_wrap=True)
