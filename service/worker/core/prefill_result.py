"""What a prefill gives back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from service.worker.core.layout import PromptLayout


@dataclass
class PrefillResult:
    """The first answer token's logits, and what computing them took.

    Attributes:
        logits: `[vocabulary]` fp32, of the first answer token.
        observed: per layer, what the eviction method's `observe` gave.
        rows_per_layer: rows whose attention was computed.
        rows: prompt rows that were computed anew, question included.
        flops: floating-point operations, as scheduled.
        layout: the prompt whose KV is in place now.
        kept_ids: where the tokens of `layout` were in the prompt that was asked for; None if it is
            that prompt (an eviction method may start over with fewer tokens).
        entries_per_head: KV entries per layer and KV head; None if every token of `layout` has one.
        coverage: share of the prompt's tokens that some layer holds.
    """

    logits: Tensor
    observed: list[Tensor]
    rows_per_layer: list[int]
    rows: Tensor
    flops: float
    layout: PromptLayout
    kept_ids: Tensor | None = None
    entries_per_head: int | None = None
    coverage: float = 1.0
