"""One record per prompt and configuration, appended to a JSONL file as it is made.

A record is found again by what was measured (the prompt's ids, the configuration's parameters), so
a run goes on where another stopped, with more samples or more configurations. The file belongs to
one model: the caller puts the model's fingerprint into its name. Knows no tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

_DIGITS = 5
"""Significant digits kept of a float."""


@dataclass(frozen=True)
class Record:
    """What one configuration did to one prompt; None where there is nothing to say.

    kl_*: KL(full prefill ‖ method) in nats; agree_*: share of equal most likely tokens; `first`
    token, and mean over the `next_count` tokens after it up to the answer's end. right: the
    generated answer is one of the known ones. rows: document rows recomputed at the last layer;
    hit: of these, the share among as many rows that full prefill's question attended to most.
    flops: operations over full prefill's. bytes: stored KV read. map_l2 per depth, k_error and
    v_error per layer: see `benchmarks.fidelity.report.metrics`.
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
    """A frozen dataclass of plain values that says what it is of."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def prompt(self) -> str: ...

    @property
    def configuration(self) -> str: ...


R = TypeVar("R", bound=_Recorded)


class RecordFile(Generic[R]):
    """Records of one kind and one model, in one file. `add` writes at once."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path = path
        self._kind = kind
        self._known: dict[tuple[str, str], R] = {}

    def load(self) -> None:
        """Read what an earlier run left; a last line cut short is dropped."""
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
        """By prompt and configuration. Raises KeyError."""
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
