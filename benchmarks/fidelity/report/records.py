"""What a run of this benchmark records of one configuration on one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tuning.records import RecordFile


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
        seconds: of the prefill; of the processor, so that neighbours of the run do not count, by
            the clock on a GPU.
        map_l2: by depth, see `benchmarks.fidelity.report.metrics`.
        k_error: by layer, see there.
        v_error: by layer, see there.
        text: the generated answer, where answers are known.
        full_text: full prefill's, which is all there is to know of it without running it twice.
        full_seconds: as `seconds`, of full prefill.
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
    text: str | None = None
    full_text: str | None = None
    full_seconds: float | None = None


class Records(RecordFile[Record]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, Record)
