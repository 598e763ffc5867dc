"""K-VEC: SnapKV that spreads its choice over heads and layers. With attention A `[kv_heads, O', T]`
(mean over the query heads of a KV head), equations 8-16:

    P[g,t]   mean over the last O queries of A; of the δ heads with the lowest deviation of P
             over t the mean over the last O' queries instead        (8, 10, 11)
    I[t]     mean over the last O queries of max over heads of A     (13)
    focus    I · (1 - earlier layers that kept t / (layer + 1))      (12, 14)
    P'       P + λ · focus; the best ⌊β·B⌋ by P are kept anyway      (15, 16)

Where the paper says nothing, we chose: heads are KV heads; the window of O is kept and charged to
the budget; means divide by O and O' also for keys that fewer rows see; pooling is off by default.
"Most focused heads" of the algorithm's comment are those of lowest deviation, as its text says.
With λ = 0 and δ = 0 the method is SnapKV.

Source: docs/specification.md §2.8; "Coverage-Driven KV Cache Eviction" (anonymous, under review).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.methods.api import (
    EvictionMethod,
    LayerView,
    PromptAttention,
    PromptLayout,
    exact,
    max_pool,
    parameter,
    stable_topk,
)

POOL_KERNEL = 7


@dataclass(frozen=True)
class Method(EvictionMethod):
    """Keep what the last prompt queries attend to, preferring tokens that earlier layers dropped,
    and with a longer window for the least focused heads, so that more of the prompt survives
    somewhere."""

    window: int = parameter(16, "O: last prompt queries that score, at most the question", ge=1)
    extended: int = parameter(
        32, "O': queries that score for the least focused heads, at most the question", ge=1
    )
    delta: int = parameter(3, "δ: KV heads, the least focused, that use the longer window", ge=0)
    lam: float = parameter(1.0, "λ: weight of what earlier layers dropped; 0: none", ge=0)
    beta: float = parameter(
        0.25, "β: share of the budget kept by a head's own scores alone", ge=0, le=1
    )
    pool: str = parameter(
        "none", "max7: a head's scores are max-pooled over 7 tokens", choices=("none", "max7")
    )

    @property
    def window_rows(self) -> int:
        return self.window

    def observe(self, view: LayerView) -> Tensor:
        """Return the queries of the longer window `[O', heads, head_dim]`."""
        return view.q[-self._extended_rows(view.layout) :].clone()

    def score(self, prompt: PromptAttention) -> Tensor:
        layout, weights = prompt.layout, prompt.query_attention()
        window = self.observed_rows(layout)
        candidates = layout.tokens - window
        recent = weights[:, -window:, :candidates]
        own = self._own_scores(recent.mean(1), weights[:, :, :candidates].mean(1))
        coverage = prompt.kept_before[:candidates] / (prompt.layer + 1)
        focus = recent.amax(0).mean(0) * (1 - coverage)
        scores = torch.zeros(len(own), layout.tokens, dtype=own.dtype, device=own.device)
        scores[:, :candidates] = own + self.lam * focus
        return scores.scatter(1, self._preserved(own, layout), float("inf"))

    def _own_scores(self, recent: Tensor, extended: Tensor) -> Tensor:
        """Return P after equation 11, pooled; arguments and result are `[kv_heads, candidates]`."""
        deviation = recent.std(1, correction=0)
        unfocused = stable_topk(-deviation, self.delta)
        own = recent.clone()
        own[unfocused] = extended[unfocused]
        return max_pool(own, POOL_KERNEL) if self.pool == "max7" else own

    def _preserved(self, own: Tensor, layout: PromptLayout) -> Tensor:
        """Return what equation 16 keeps, `[kv_heads, ⌊β·B⌋]`, fewer if a head has no more room."""
        fixed, open_rows = self.regions(layout)
        room = max(0, self.budget - len(fixed))
        count = min(int(exact(self.beta) * self.budget), room)
        return open_rows[stable_topk(own[:, open_rows], count)]

    def _extended_rows(self, layout: PromptLayout) -> int:
        question = layout.tokens - layout.question_start
        return max(self.observed_rows(layout), min(self.extended, question))
