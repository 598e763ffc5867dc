"""What a run records of one configuration on one prompt, and what the configurations' keys mean.

Records are lines of `samples-….jsonl`. Beside it lies `samples-….about.json`: names and parameters
of the configurations by key, so that a table needs neither model nor methods.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality.configurations import Configuration
from kvstitch_tune.records import RecordFile


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
        rows: document rows that were recomputed at the last layer.
        flops: operations relative to full prefill.
        bytes: stored KV that was read.
        seconds: of the prefill; of the processor, so that neighbours of the run do not count, by
            the clock on a GPU.
        text: the generated answer, where answers are known.
        full_text: full prefill's, which is all there is to know of it without running it twice.
        full_seconds: as `seconds`, of full prefill.
        lead: of the likeliest token over the second, the least of the answer up to where it
            differs, in nats; full prefill would take over with a greater `exact_below`.
    """

    prompt: str
    configuration: str
    tokens: int
    kl_first: float
    agree_first: float
    next_count: int
    kl_next: float | None
    agree_next: float | None
    rows: int
    flops: float
    bytes: int
    seconds: float
    text: str | None = None
    full_text: str | None = None
    full_seconds: float | None = None
    lead: float | None = None

    @property
    def kl(self) -> float:
        """KL per token over the whole answer, first token included."""
        later = 0.0 if self.kl_next is None else self.kl_next * self.next_count
        return (self.kl_first + later) / (1 + self.next_count)


class Records(RecordFile[Record]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, Record)

    @property
    def about_path(self) -> Path:
        return self.path.with_suffix(".about.json")

    def note(self, configurations: Sequence[Configuration], facts: Mapping[str, Any]) -> None:
        """Adds these configurations, each with the facts of the run that asked for it first."""
        known = self.about() if self.about_path.exists() else {}
        for each in configurations:
            known.setdefault(
                each.key,
                {
                    "name": each.name,
                    "method": f"{type(each.method).__module__}: {each.method!r}",
                    "prefix_mode": each.prefix_mode,
                    "codec": each.codec,
                    **facts,
                },
            )
        self.about_path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(known, indent=1, ensure_ascii=False) + "\n"
        self.about_path.write_text(text, encoding="utf-8")

    def about(self) -> dict[str, Any]:
        """By key of the configuration, in the order in which they were first asked for.

        Raises:
            OSError: there is no such file.
        """
        known: dict[str, Any] = json.loads(self.about_path.read_text(encoding="utf-8"))
        return known
