"""How commands print: tables for people, JSON for scripts, errors on stderr.

Text from documents is never interpreted as markup, and cannot control the terminal.
"""

import json
import sys
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvstitch.client import Job
from kvstitch.service.errors import KvstitchError

PIPE_WIDTH = 160  # columns, if the output is no terminal
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise as print does, for main() to handle; rich would exit with an error."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console with colours on terminals only, and tables as wide as the terminal."""
    found = _Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not found.is_terminal:
        found.width = PIPE_WIDTH
    return found


def table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    """Return a table that wraps long cells; columns in `numbers` are right-aligned."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def progress_bars(*, as_json: bool) -> Progress:
    """Return bars on stderr, each with its description, count, the field `note` and its time."""
    stderr = console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=stderr,
        disable=as_json or not stderr.is_terminal,
    )


def emit(value: Any) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def emit_line(value: Any) -> None:
    """Print one line of JSON on stdout, and flush."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def report_error(error: KvstitchError, *, as_json: bool) -> None:
    """Print an error on stderr: a line for people, or JSON with code, message and field."""
    if as_json:
        content = {"code": error.code, "message": error.message, "field": error.field}
        print(json.dumps({"error": content}, ensure_ascii=False), file=sys.stderr)
    else:
        print(f"kvstitch: {plain(error.message)}", file=sys.stderr)


def plain(text: object) -> str:
    """Replace control characters (except newline and tab) and lone surrogates with U+FFFD."""
    return "".join("\ufffd" if _is_control(char) else char for char in str(text))


def size(count: float) -> str:
    """Return bytes for people: 1.5 MiB."""
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


def time_left(seconds: float | None) -> str:
    """Return how long something still takes, rounded; "" if that is not known."""
    return "" if seconds is None else f"{duration(seconds)} left"


def job_left(job: Job) -> str:
    """Return what is being done for a job, and how long it still takes, as far as it is known."""
    left = ""
    if job.eta_s is not None:
        low, high = (duration(eta or job.eta_s) for eta in (job.eta_low_s, job.eta_high_s))
        first = low.rsplit(" ", 1)[0] if low.split()[2] == high.split()[2] else low
        left = f"{low} left" if low == high else f"{first} to {high[6:]} left"
    return ", ".join(filter(None, [job.phase, left]))


def duration(seconds: float) -> str:
    """Return a time for people, rounded: about 24 min."""
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    return f"about {minutes} min" if minutes < 90 else f"about {hours} h"


def _is_control(char: str) -> bool:
    code = ord(char)
    return (code < 32 and char not in "\n\t") or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000
