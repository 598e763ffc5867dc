"""Records of one prompt and configuration each, appended to a JSONL file as they are made.

A record is identified by what was measured (the prompt's ids, the configuration's parameters), so a
run continues where another stopped, also with more samples or configurations. A file belongs to one
model, whose fingerprint the caller puts into the file's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

_DIGITS = 5
"""Significant digits of stored floats."""


@dataclass(frozen=True)
class Record:
    """Results of one configuration on one prompt; None for what does not exist.

    Attributes:
        prompt: key of the prompt.
        configuration: key of the configuration.
        tokens: of the prompt.
        kl_first: KL(full prefill ‖ method) in nats at the first answer token.
        agree_first: 1 if the most likely first tokens are the same, else 0.
        next_count: number of answer tokens after the first.
        kl_next: mean KL over these tokens.
        agree_next: share of these tokens with the same most likely token.
        right: whether the generated answer is a known one.
        rows: document rows that were recomputed at the last layer.
        hit: share of these rows among as many that the question attends to most in full prefill.
        flops: operations relative to full prefill.
        bytes: stored KV that was read.
        seconds: time of the prefill.
        map_l2: by depth, see `benchmarks.fidelity.report.metrics`.
        k_error: by layer, see there.
        v_error: by layer, see there.
    """

    prompt: str
    configuration: str
    tokens: int
    kl_first: float
    agree_first: float
    next_count: int
    kl_next: float | None
    agree_next: float | None
    right: bool | None
    rows: int
    hit: float | None
    flops: float
    bytes: int
    seconds: float
    map_l2: list[float]
    k_error: list[float]
    v_error: list[float]


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


class Records(RecordFile[Record]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, Record)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return [_short(v) for v in value] if isinstance(value, list) else value
