"""GemFilter: at layer r the last query's raw logits are summed over query heads and mean-pooled;
the best B tokens become a prompt of their own at positions 0..B-1, which is prefilled in full.
Already the first answer token comes from it, so the fusion method's work only serves to choose. The
pool pads with zeros, as the public code does.

Source: docs/specification.md §2.7; Shi et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from service.worker.methods.api import (
    EvictionMethod,
    InvalidRequest,
    LayerView,
    ModelFacts,
    PromptAttention,
    PromptLayout,
    parameter,
    stable_topk,
)

# The paper's choice for Llama 3.1 8B: layer 13 of 32.
DEFAULT_DEPTH = 13 / 32


@dataclass(frozen=True)
class Method(EvictionMethod):
    """Run the prompt up to an early layer, choose the tokens that its last query scores highest
    there, and prefill those alone, in full. The answer never sees the rest. Unprotected, template
    and question may be dropped too."""

    layer: int = parameter(
        0,
        "layer that chooses, from 0; 0 itself: 13/32 of the model's depth, rounded down",
        ge=0,
        layer=True,
    )
    kernel: int = parameter(5, "width of the mean over neighbouring tokens, odd", ge=1)

    def __post_init__(self) -> None:
        if self.kernel % 2 == 0:
            raise InvalidRequest(
                f"eviction.kernel must be odd, not {self.kernel}", field="eviction.kernel"
            )

    @property
    def window_rows(self) -> int:
        return 1

    def check(self, model: ModelFacts) -> None:
        if self.layer >= model.layers:
            raise InvalidRequest(
                f"eviction.layer must be at most {model.layers - 1} (the model has "
                f"{model.layers} layers, counted from 0), not {self.layer}",
                field="eviction.layer",
            )

    def regions(self, layout: PromptLayout) -> tuple[Tensor, Tensor]:
        """As in the base, but without `protect` every token competes: there is no window."""
        rows = layout.all_rows
        return super().regions(layout) if self.protect else (rows[:0], rows)

    def restart(self, view: LayerView) -> Tensor | None:
        if view.layer != self.chooses_at(view.flops.shape.layers):
            return None
        if not self.applies(view.layout):
            return None
        fixed, open_rows = self.regions(view.layout)
        scores = self._scores(view.q[-1], view.k)[open_rows]
        best = stable_topk(scores, max(0, self.budget - len(fixed)))
        view.flops.score(view.layout.tokens)
        kept = torch.cat([fixed, open_rows[best]]).sort().values
        return kept if len(kept) < view.layout.tokens else None

    def score(self, prompt: PromptAttention) -> Tensor:
        """Return the same scores for every head. In a prefill `restart` has already chosen the
        tokens."""
        kv_heads, n, _ = prompt.k.shape
        return self._scores(prompt.observed[-1], prompt.k).expand(kv_heads, n)

    def chooses_at(self, layers: int) -> int:
        """Return the layer r that chooses: `layer`, or its default for a model of this depth."""
        return self.layer or min(max(1, int(DEFAULT_DEPTH * layers)), layers - 1)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return pooled logits `[n]` fp32 of the last query `[heads, head_dim]`, of keys
        `[kv_heads, n, head_dim]`."""
        kv_heads, _, d = k.shape
        # The query heads of a group share their keys, so the sum of q·k is (sum of q)·k.
        summed_queries = q.float().view(kv_heads, -1, d).sum(1)
        logits = torch.einsum("hd,hnd->n", summed_queries, k.float())
        return _mean_pool(logits.unsqueeze(0), self.kernel)[0]


def _mean_pool(scores: Tensor, kernel: int) -> Tensor:
    """Return the sum of the scores within `kernel // 2` tokens on either side, divided by `kernel`:
    `[rows, n]` → `[rows, n]`."""
    reach = min(kernel // 2, scores.shape[1])
    width = 2 * reach + 1
    pooled = F.avg_pool1d(scores.unsqueeze(0), width, stride=1, padding=reach).squeeze(0)
    return pooled * (width / kernel)
