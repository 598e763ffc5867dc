"""The table of figures with targets and verdicts, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.markdown import table
from benchmarks.speed.records import Record

HEAD = ("figure", "threads", "median", "min to max", "processor time", "target", "verdict")


def rows(record: Record) -> list[tuple[str, ...]]:
    """A row for each figure, with the columns of HEAD."""
    return [
        (
            figure["what"],
            str(record["threads"]),
            _number(figure["median"], figure["unit"]),
            f"{figure['min']:.3g} to {figure['max']:.3g}",
            _number(figure["cpu_median"]),
            figure["target"] or "",
            figure["verdict"],
        )
        for figure in record["figures"]
    ]


def text(record: Record) -> str:
    """A line of text for each figure, then the notes."""
    lines = [
        f"  {what:72s} {median:>9s}  ({spread})  {target:>7s} {verdict}".rstrip()
        for what, _, median, spread, _, target, verdict in rows(record)
    ]
    return "\n".join([*lines, *(f"  note: {note}" for note in record["notes"])])


def write(path: Path, records: Sequence[Record]) -> None:
    """Writes all records as one page; figures without a target have their own table at the end."""
    wanted = [r for record in records for r in rows(record) if r[5]]
    others = [r for record in records for r in rows(record) if not r[5]]
    notes = [f"- {record['line']}: {note}" for record in records for note in record["notes"]]
    parts = [
        "# Speed\n",
        "Medians with the least and the greatest of all repetitions; ways that are compared run in "
        "turn. Written by `python -m benchmarks.speed`; raw samples lie beside this page.\n",
        *sorted({f"{_circumstances(record)}\n" for record in records}),
        table(HEAD, wanted),
    ]
    if others:
        parts += ["## Without a target\n", table(HEAD, others)]
    if notes:
        parts += ["## Notes\n", "\n".join(dict.fromkeys(notes)) + "\n"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts), encoding="utf-8")


def _number(value: Any, unit: str = "") -> str:
    return "" if value is None else f"{value:.3g} {unit}".strip()


def _circumstances(record: Record) -> str:
    where, shape = record["environment"], record["shape"]
    versions = ", ".join(f"{name} {v}" for name, v in where["packages"].items())
    changed = " with uncommitted changes" if where["uncommitted"] else ""
    return (
        f"Random-weight {shape['model']}, bfloat16; {record['repetitions']} repetitions, seed "
        f"{record['seed']}. {where['cpu']}, {where['cores']} cores; Python {where['python']}, "
        f"{versions}; commit {where['commit'][:12]}{changed}."
    )
