"""Evictions (docs/specification.md §2.7, §2.8)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.worker.methods.api import (
    EvictionMethod,
    InvalidRequest,
    LayerView,
    ModelFacts,
    PromptAttention,
    PromptLayout,
    exact,
    max_pool,
    parameter,
    stable_topk,
)

# The paper's choice for Llama 3.1 8B: layer 13 of 32.
DEFAULT_DEPTH = 13 / 32


@dataclass(frozen=True)
class GemFilter(EvictionMethod):
    """Run the prompt up to an early layer, choose the tokens that its last query scores highest
    there, and prefill those alone, in full. The answer never sees the rest. Unprotected, template
    and question may be dropped too.

    At layer r the last query's raw logits are summed over query heads and mean-pooled; the best B
    tokens become a prompt of their own at positions 0..B-1. Already the first answer token comes
    from it, so the fusion method's work only serves to choose. The pool pads with zeros, as the
    public code does. Shi et al. 2024.
    """

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


POOL_KERNEL = 7


@dataclass(frozen=True)
class KVec(EvictionMethod):
    """Keep what the last prompt queries attend to, preferring tokens that earlier layers dropped,
    and with a longer window for the least focused heads, so that more of the prompt survives
    somewhere.

    With attention A `[kv_heads, O', T]` (mean over the query heads of a KV head), equations 8-16:

        P[g,t]   mean over the last O queries of A; of the δ heads with the lowest deviation of P
                 over t the mean over the last O' queries instead        (8, 10, 11)
        I[t]     mean over the last O queries of max over heads of A     (13)
        focus    I · (1 - earlier layers that kept t / (layer + 1))      (12, 14)
        P'       P + λ · focus; the best ⌊β·B⌋ by P are kept anyway      (15, 16)

    Where the paper says nothing, we chose: heads are KV heads; the window of O is kept and charged
    to the budget; means divide by O and O' also for keys that fewer rows see; pooling is off by
    default. "Most focused heads" of the algorithm's comment are those of lowest deviation, as its
    text says. With λ = 0 and δ = 0 the method is SnapKV. "Coverage-Driven KV Cache Eviction"
    (anonymous, under review).
    """

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
