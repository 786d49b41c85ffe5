"""What a command writes. Stored text has no power here: controls are escaped, markup is never parsed.

On a terminal tables are drawn by Rich and fold in a narrow window; piped, they are plain columns that cut nothing off.
Answers go to stdout, everything said about them to stderr.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from redrive.domain.text import printable

_HIDDEN = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def shown(value: object) -> str:
    """A value in one line, safe to show."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, Mapping):
        return shown(", ".join(f"{name}={text}" for name, text in value.items()) or None)
    if isinstance(value, list | tuple):
        return shown(", ".join(map(str, value)) or None)
    return printable(value, lines=False)


def moment(value: datetime) -> str:
    """A time as people read it; always UTC."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(seconds: float | None) -> str:
    """A duration in its two largest units."""
    if seconds is None:
        return "-"
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


def say(text: str = "") -> None:
    """A line of the answer."""
    sys.stdout.write(printable(text) + "\n")


def remark(text: str) -> None:
    """A line about the answer: on stderr, so that what is piped stays clean."""
    sys.stdout.flush()
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def facts(pairs: Iterable[tuple[str, object]]) -> None:
    """Names and values, a line each; what is None or empty is left out."""
    kept = [(name, shown(value)) for name, value in pairs if value not in (None, "", (), {})]
    width = max((len(name) for name, _ in kept), default=0)
    for name, text in kept:
        say(f"{name:<{width}}  {text}")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under headings."""
    cells = [[shown(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, cells)
        return
    widths = [max(len(line[n]) for line in [list(columns), *cells]) for n in range(len(columns))]
    for line in [list(columns), *cells]:
        say("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


def _draw(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # a tenth of a second: only for a terminal
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        drawn.add_column(Text(name), overflow="fold")
    for line in cells:
        drawn.add_row(*(Text(text) for text in line))
    Console(highlight=False, markup=False, emoji=False).print(drawn)


def as_json(value: object) -> None:
    """A value as JSON; characters that could act on a terminal are written as escapes."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=2)
    sys.stdout.write(_HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def plain(value: object) -> Any:
    """A value of ours as JSON has it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID | date):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if is_dataclass(value):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return value


def diff(lines: Sequence[str]) -> None:
    """A diff, coloured on a terminal."""
    if not sys.stdout.isatty():
        for line in lines:
            say(line)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in lines:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(printable(line), style=style))


class Counting:
    """Progress of long work, on stderr: one line that is written over on a terminal, else a line now and then."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._shown = 0

    def __call__(self, done: int) -> None:
        """So many are done."""
        of = f" of {self._total}" if self._total is not None else ""
        text = f"{self._what}: {done}{of}"
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()
        elif done != self._total:
            remark(text)
        self._shown = done

    def end(self) -> None:
        """Leave the line."""
        if self._shown and sys.stderr.isatty():
            sys.stderr.write("\n")
