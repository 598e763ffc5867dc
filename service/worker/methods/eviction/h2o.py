"""H2O: keeps heavy hitters, the keys whose attention weights have the largest sum over the queries
of rows that the fusion method computed (mean over a KV head's query heads), and the `recent` last.
The original also splits its budget in halves and evicts during decode, which is left out.

Source: docs/specification.md §2.2; Zhang et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod, PromptAttention
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.model.attention import attention_probabilities

# Query rows scored at once; bounds the memory of the [heads, rows, n] fp32 weights.
TILE = 64


@dataclass(frozen=True)
class Method(EvictionMethod):
    """Keep the tokens that all computed prompt queries together attended to most, and the most
    recent ones. Costs as much as the attention of those rows once more."""

    recent: int = parameter(
        8, "last tokens always kept, at most the question; less than protect keeps anyway", ge=1
    )

    @property
    def window_rows(self) -> int:
        return self.recent

    def observe(self, view: LayerView) -> Tensor:
        """Return attention that each key received, summed over the rows of this layer, `[kv_heads,
        n]`."""
        if not self.applies(view.layout):
            return view.q[:0]
        heads, (kv_heads, n, _) = view.q.shape[1], view.k.shape
        sums = torch.zeros(heads, n, dtype=torch.float32, device=view.k.device)
        last_rows = [*view.rows[TILE - 1 :: TILE].tolist(), int(view.rows[-1])]  # one transfer
        for tile, last in zip(range(0, len(view.rows), TILE), last_rows, strict=False):
            q, rows = view.q[tile : tile + TILE], view.rows[tile : tile + TILE]
            weights = attention_probabilities(
                q, view.k[:, : last + 1], rows, view.scale, rule=view.rule
            )
            sums[:, : last + 1] += weights.sum(1)
        view.flops.score_causally(view.rows)
        return sums.view(kv_heads, heads // kv_heads, n).mean(1)

    def score(self, prompt: PromptAttention) -> Tensor:
        return prompt.observed
