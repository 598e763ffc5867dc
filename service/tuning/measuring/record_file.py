"""Records of one prompt and configuration each, appended to a JSONL file as they are made.

A record is identified by what was measured (the prompt's ids, the configuration's parameters), so a
run continues where another stopped, also with more samples or configurations. A file belongs to one
model, whose fingerprint the caller puts into the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

_DIGITS = 5
"""Significant digits of stored floats."""


class _Recorded(Protocol):
    """A frozen dataclass of plain values, with the keys of prompt and configuration."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def prompt(self) -> str: ...

    @property
    def configuration(self) -> str: ...


R = TypeVar("R", bound=_Recorded)


class RecordFile(Generic[R]):
    """Records of one kind for one model, in one file; `add` writes immediately."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path = path
        self._kind = kind
        self._known: dict[tuple[str, str], R] = {}

    def load(self) -> None:
        """Reads the records of earlier runs; an incomplete last line is dropped."""
        if not self.path.exists():
            return
        whole, _, _ = self.path.read_text(encoding="utf-8").rpartition("\n")
        for line in whole.splitlines():
            record = self._kind(**json.loads(line))
            self._known[record.prompt, record.configuration] = record
        self.path.write_text(whole + "\n" if whole else "", encoding="utf-8")

    def discard(self) -> None:
        self._known.clear()
        self.path.unlink(missing_ok=True)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._known

    def __getitem__(self, key: tuple[str, str]) -> R:
        """The record of a prompt key and a configuration key.

        Raises:
            KeyError: there is none.
        """
        return self._known[key]

    def add(self, records: Iterable[R]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for record in records:
                values = {f.name: _short(getattr(record, f.name)) for f in fields(record)}
                short = self._kind(**values)
                self._known[short.prompt, short.configuration] = short
                file.write(json.dumps(asdict(short), separators=(",", ":")) + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return [_short(v) for v in value] if isinstance(value, list) else value
