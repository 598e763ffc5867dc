"""How commands print: tables for people, JSON for scripts, errors on stderr. Knows no command.

Text that comes from documents is never read as markup, and cannot steer the terminal.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from service.errors import KvstitchError

PIPE_WIDTH = 160  # columns where no terminal says how many there are
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """As for any other print: main() knows what it means. rich would end with an error."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Colours only on a terminal; tables as wide as it is."""
    found = _Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not found.is_terminal:
        found.width = PIPE_WIDTH
    return found


def table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """A table whose cells fold rather than vanish; `numbers` are the columns set to the right."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def emit(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def emit_line(value: Any) -> None:
    """One line of JSON on stdout, at once."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def report(error: KvstitchError, *, as_json: bool) -> None:
    """An error on stderr: a line for people, or an object with code, message and field."""
    if as_json:
        content = {"code": error.code, "message": error.message, "field": error.field}
        print(json.dumps({"error": content}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"kvstitch: {plain(error.message)}", file=sys.stderr)


def plain(text: object) -> str:
    """Control characters (but newline and tab) and halves of surrogates are shown as one mark."""
    return "".join("\ufffd" if _steers(char) else char for char in str(text))


def size(count: float) -> str:
    """Bytes as people read them: 1.5 MiB."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable: the last unit takes everything")


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"


def moment(seconds: float) -> str:
    """Unix seconds as local time."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _steers(char: str) -> bool:
    code = ord(char)
    return (code < 32 and char not in "\n\t") or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000
