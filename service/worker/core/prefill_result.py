"""The result of a prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from service.worker.core.layout import PromptLayout


@dataclass
class PrefillResult:
    """The logits of the first answer token, and the work that computing them took.

    Attributes:
        logits: `[vocabulary]` fp32.
        observed: per layer, the tensor that the eviction method's `observe` returned.
        rows_per_layer: per layer, the number of rows whose attention was computed.
        rows: prompt rows that were computed anew, question included.
        flops: floating-point operations, as scheduled.
        layout: the prompt whose KV is in place now.
        kept_ids: indices of `layout`'s tokens in the original prompt; None if it is the original
            prompt (an eviction method may start over with fewer tokens).
        entries_per_head: KV entries per layer and KV head; None if every token of `layout` has one.
        held: prompt rows of the entries of layers with a window, by layer, where not every token of
            `layout` has one.
        coverage: share of the prompt's tokens whose KV is held by at least one layer.
    """

    logits: Tensor
    observed: list[Tensor]
    rows_per_layer: list[int]
    rows: Tensor
    flops: float
    layout: PromptLayout
    kept_ids: Tensor | None = None
    entries_per_head: int | None = None
    held: Mapping[int, Tensor] = field(default_factory=dict)
    coverage: float = 1.0
