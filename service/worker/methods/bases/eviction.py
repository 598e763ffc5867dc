"""The base of eviction methods: a method gives parameters and scores, the base picks what is kept.

A prompt is evicted once, after the logits of the first answer token, layer by layer. Generated
tokens are never evicted and do not count towards the budget. By default the instruction S and the
question Q are kept (A3(ex), docs/specification.md §1.6); with `protect` off only the scoring
window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.kv.pool import SequenceKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.scores import stable_topk
from kvstitch.service.worker.model.attention import attention_probabilities
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import PLAIN, AttentionRule, ModelFacts


@dataclass(frozen=True, kw_only=True)
class PromptAttention:
    """One layer of a prompt after its prefill."""

    layer: int
    layout: PromptLayout
    k: Tensor  # keys after RoPE `[kv_heads, n, head_dim]`
    observed: Tensor  # the tensor that `EvictionMethod.observe` returned at this layer
    # for each token, the number of earlier layers in which some head kept it `[n]` int64
    kept_before: Tensor
    scale: float
    model: ModelFacts
    # what this layer adds to causal attention: a window, a soft cap, sinks
    rule: AttentionRule = PLAIN

    def query_attention(self) -> Tensor:
        """Return softmax weights `[kv_heads, w, n]` fp32 of the observed queries, mean over the
        query heads of each KV head. They must be `[w, heads, head_dim]`, those of the prompt's
        last w rows."""
        w, heads, _ = self.observed.shape
        n, kv_heads = self.layout.tokens, self.k.shape[0]
        rows = torch.arange(n - w, n, device=self.k.device)
        weights = attention_probabilities(self.observed, self.k, rows, self.scale, rule=self.rule)
        return weights.view(kv_heads, heads // kv_heads, w, n).mean(1)


@dataclass(frozen=True)
class EvictionMethod:
    """Base: keeps `budget` entries per layer and KV head, protected ones included."""

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
        """Number of last prompt rows (the window) whose queries score the tokens."""
        return 32

    def check(self, model: ModelFacts) -> None:
        """Check that this model has what the method needs; raises InvalidRequest if not."""

    def observe(self, view: LayerView) -> Tensor:
        """Return what scoring needs of a layer: the window's queries `[w, heads, head_dim]`."""
        return view.q[-self.observed_rows(view.layout) :].clone()

    def restart(self, view: LayerView) -> Tensor | None:
        """Return the rows of a shorter prompt with which prefill starts over; None to continue."""
        return None

    def score(self, prompt: PromptAttention) -> Tensor:
        """Return the importance of every token `[kv_heads, n]`; the highest are kept."""
        raise NotImplementedError

    def layer_room(self, prompt: PromptAttention, room: int, competitors: int) -> int:
        """Return the entries per KV head that this layer has for unprotected tokens."""
        return room

    def head_rooms(self, prompt: PromptAttention, scores: Tensor, room: int) -> Sequence[int]:
        """Return the entries that each KV head of this layer has for unprotected tokens."""
        return [room] * scores.shape[0]

    # -- implemented by the base ------------------------------------------------------------------

    def observed_rows(self, layout: PromptLayout) -> int:
        """Return the number w of rows in the window: at most the question, because only its rows
        are computed by every fusion method; without `protect` also less than the budget."""
        question = layout.tokens - layout.question_start
        w = min(self.window_rows, question)
        return w if self.protect else max(1, min(w, self.budget - 1))

    def applies(self, layout: PromptLayout) -> bool:
        """Return whether the prompt is longer than the budget."""
        return layout.tokens > self.budget

    def regions(self, layout: PromptLayout) -> tuple[Tensor, Tensor]:
        """Return ascending rows that are always kept, and rows that compete for the rest."""
        rows = layout.all_rows
        if not self.protect:
            border = layout.tokens - self.observed_rows(layout)
            return rows[border:], rows[:border]
        first, last = layout.segments[0].end, layout.question_start
        return torch.cat([rows[:first], rows[last:]]), rows[first:last]

    def keep(self, prompt: PromptAttention) -> list[Tensor]:
        """Return indices of the tokens that each KV head keeps, ascending."""
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
        """Return a warning if the budget is too small for this prompt; None otherwise."""
        if not self.applies(layout):
            return None
        fixed = len(self.regions(layout)[0])
        if self.protect and fixed >= self.budget:
            return (
                f"eviction.budget {self.budget} is not above the {fixed} tokens of instruction "
                "and question: every document token was evicted"
            )
        return None


def evict(
    decoder: DecoderModel,
    model: ModelFacts,
    kv: SequenceKV,
    method: EvictionMethod,
    *,
    layout: PromptLayout,
    observed: Sequence[Tensor],
    room: int,
    original_tokens: int | None = None,
    on_kept: Callable[[int, Sequence[Tensor]], None] | None = None,
) -> float:
    """Shrink every layer of the cache to the entries that `method` keeps; return the share of the
    prompt's tokens that at least one head of one layer kept.

    `room` is the number of tokens still to be generated, for which KV stays reserved. If `method`
    started over with a shorter prompt (`layout`), all of it is kept and the KV that was reserved
    for the original one is released. `on_kept` gets each layer's number and kept token indices per
    KV head.
    """
    if original_tokens is not None:
        everything = [layout.all_rows] * decoder.kv_heads
        for layer in range(decoder.layers):
            kv.keep(layer, everything, room)
        return layout.tokens / original_tokens
    if not method.applies(layout):
        return 1.0
    kept_before = torch.zeros(layout.tokens, dtype=torch.long, device=layout.ids.device)
    for layer in range(decoder.layers):
        k, _ = kv.prompt_layer(layer, layout.tokens)
        prompt = PromptAttention(
            layer=layer,
            layout=layout,
            k=k,
            observed=observed[layer],
            kept_before=kept_before,
            scale=decoder.scale,
            rule=decoder.rules[layer],
            model=model,
        )
        kept = method.keep(prompt)
        kv.keep(layer, kept, room)
        if decoder.rules[layer].window is not None:
            kv.remember(layer, kept, layout.tokens)
        if on_kept is not None:
            on_kept(layer, kept)
        kept_here = torch.zeros_like(kept_before)
        kept_here[torch.cat(kept)] = 1
        # Not in place: earlier `PromptAttention`s hold the old tensor.
        kept_before = kept_before + kept_here
    return float((kept_before > 0).float().mean())
