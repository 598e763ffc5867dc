"""An eviction method: a dataclass of parameters and a score; the base allocates and selects.

Evicts once, after the first token's logits, so that token 1 is the fusion method's own. S and Q
are always kept (A3(ex), METHODS §1.6); generated tokens are never evicted and not counted. The
window holds the last prompt queries, which every fusion method computes. Returns kept indices;
the pool compacts. Knows no pool and no request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.attention import attention_probabilities
from service.worker.layout import PromptLayout
from service.worker.topk import stable_topk


@dataclass(frozen=True)
class PromptAttention:
    """One layer of a filled prompt, as a method sees it.

    k `[kv_heads, n, d]` after RoPE; window_q `[w, heads, d]` the last w prompt queries.
    """

    layer: int
    layers: int
    layout: PromptLayout
    k: Tensor
    window_q: Tensor
    scale: float

    def window_attention(self) -> Tensor:
        """Mean over the window of the softmax weights, fp32, mean over each group's query heads:
        `[kv_heads, n]`."""
        w, heads, _ = self.window_q.shape
        n = self.layout.tokens
        rows = torch.arange(n - w, n, device=self.k.device)
        weights = attention_probabilities(self.window_q, self.k, rows, self.scale).mean(1)
        kv_heads = self.k.shape[0]
        return weights.view(kv_heads, heads // kv_heads, n).mean(1)


@dataclass(frozen=True)
class EvictionMethod:
    """Base: keep `budget` entries per layer and KV head, S and Q among them."""

    budget: int = parameter(1024, "KV entries kept per layer and KV head, S and Q included", ge=1)

    # Last prompt queries the score looks at; the prefill loop keeps this many.
    @property
    def window_rows(self) -> int:
        return 32

    def score(self, prompt: PromptAttention) -> Tensor:
        """Importance `[kv_heads, n]`; higher is kept. Only document tokens compete."""
        raise NotImplementedError

    def applies(self, layout: PromptLayout) -> bool:
        return layout.tokens > self.budget

    def keep(self, prompt: PromptAttention) -> list[Tensor]:
        """Kept token indices per KV head, ascending."""
        layout = prompt.layout
        documents = torch.arange(
            layout.segments[0].end, layout.question_start, device=prompt.k.device
        )
        fixed = torch.cat([layout.all_rows[: layout.segments[0].end], layout.question_rows])
        room = max(0, self.budget - len(fixed))
        top = stable_topk(self.score(prompt)[:, documents], room)
        return [torch.cat([fixed, documents[head]]).sort().values for head in top]

    def warning(self, layout: PromptLayout) -> str | None:
        """What the user should know about this budget on this prompt."""
        if not self.applies(layout):
            return None
        fixed = layout.segments[0].tokens + layout.tokens - layout.question_start
        if fixed >= self.budget:
            return (
                f"eviction.budget {self.budget} is not above the {fixed} tokens of instruction "
                "and question: every document token was evicted"
            )
        return None
