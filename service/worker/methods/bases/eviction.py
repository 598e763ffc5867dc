"""An eviction method: a dataclass of parameters and a score; the base allocates and selects.

Evicts once, after the first token's logits, so that token 1 is the fusion method's own; generated
tokens are never evicted and not counted. By default the instruction S and the question Q are kept
(A3(ex), METHODS §1.6); with `protect` off only the scoring window is, as in the methods' papers.
Returns kept indices; the pool compacts. Knows no pool and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.core.topk import stable_topk
from service.worker.model.attention import attention_probabilities


@dataclass(frozen=True, kw_only=True)
class PromptAttention:
    """One layer of a filled prompt, as a method sees it.

    k `[kv_heads, n, d]` after RoPE; observed: what `EvictionMethod.observe` gave at this layer;
    kept_before `[n]` int64: at how many earlier layers some head kept a token.
    """

    layer: int
    layout: PromptLayout
    k: Tensor
    observed: Tensor
    kept_before: Tensor
    scale: float
    model: ModelFacts

    def query_attention(self) -> Tensor:
        """Softmax weights in fp32 of the observed queries `[w, heads, d]`, the last w rows of the
        prompt, mean over each group's query heads: `[kv_heads, w, n]`."""
        w, heads, _ = self.observed.shape
        n, kv_heads = self.layout.tokens, self.k.shape[0]
        rows = torch.arange(n - w, n, device=self.k.device)
        weights = attention_probabilities(self.observed, self.k, rows, self.scale)
        return weights.view(kv_heads, heads // kv_heads, w, n).mean(1)


@dataclass(frozen=True)
class EvictionMethod:
    """Base: keep `budget` entries per layer and KV head, what must stay among them."""

    budget: int = parameter(
        1024, "KV entries kept per layer and KV head, what is protected included", ge=1
    )
    protect: bool = parameter(
        True,
        "always keep instruction and question; false: only the scoring window, as in the papers",
    )

    # -- what a method may override ---------------------------------------------------------------

    @property
    def window_rows(self) -> int:
        """Last prompt rows whose queries score."""
        return 32

    def check(self, model: ModelFacts) -> None:
        """Raise InvalidRequest if this model lacks what the method needs."""

    def observe(self, view: LayerView) -> Tensor:
        """What scoring will need of a layer's queries, taken while they are at hand in prefill.
        Default: the window's queries `[w, heads, d]`."""
        return view.q[-self.observed_rows(view.layout) :].clone()

    def restart(self, view: LayerView) -> Tensor | None:
        """Ascending prompt rows to start over with as a prompt of their own; None: go on."""
        return None

    def score(self, prompt: PromptAttention) -> Tensor:
        """Importance `[kv_heads, n]`; higher is kept. Only competitors' columns are looked at."""
        raise NotImplementedError

    def layer_room(self, prompt: PromptAttention, room: int, competitors: int) -> int:
        """Entries per KV head for competitors at this layer; `room` is the mean over layers."""
        return room

    def head_rooms(self, prompt: PromptAttention, scores: Tensor, room: int) -> Sequence[int]:
        """Entries for competitors per KV head, from their scores `[kv_heads, competitors]`."""
        return [room] * scores.shape[0]

    # -- what the base owns -----------------------------------------------------------------------

    def observed_rows(self, layout: PromptLayout) -> int:
        """w: the window's rows. Only question rows are computed by every fusion method, and one
        entry of the budget must be left to choose."""
        question = layout.tokens - layout.question_start
        w = min(self.window_rows, question)
        return w if self.protect else max(1, min(w, self.budget - 1))

    def applies(self, layout: PromptLayout) -> bool:
        return layout.tokens > self.budget

    def regions(self, layout: PromptLayout) -> tuple[Tensor, Tensor]:
        """Ascending indices that are always kept, and those that compete for the rest."""
        rows = layout.all_rows
        if not self.protect:
            border = layout.tokens - self.observed_rows(layout)
            return rows[border:], rows[:border]
        first, last = layout.segments[0].end, layout.question_start
        return torch.cat([rows[:first], rows[last:]]), rows[first:last]

    def keep(self, prompt: PromptAttention) -> list[Tensor]:
        """Kept token indices per KV head, ascending."""
        fixed, open_rows = self.regions(prompt.layout)
        room = max(0, self.budget - len(fixed))
        room = self.layer_room(prompt, room, len(open_rows))
        scores = self.score(prompt)[:, open_rows]
        rooms = self.head_rooms(prompt, scores, room)
        return [
            torch.cat([fixed, open_rows[stable_topk(row, count)]]).sort().values
            for row, count in zip(scores, rooms, strict=True)
        ]

    def warning(self, layout: PromptLayout) -> str | None:
        """What the user should know about this budget on this prompt."""
        if not self.applies(layout):
            return None
        fixed = len(self.regions(layout)[0])
        if self.protect and fixed >= self.budget:
            return (
                f"eviction.budget {self.budget} is not above the {fixed} tokens of instruction "
                "and question: every document token was evicted"
            )
        return None
