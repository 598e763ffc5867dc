"""A first pass over the stitched cache: which of its tokens does the question look at?

Only the question's rows run (about one percent of a prefill), over cached keys at their global
positions; cold segments, whose keys do not exist yet, are not seen. A method may then send some
document rows the same way, to see what these look at (`FusionMethod.lead_rows`). One softmax serves
both the rows' own attention and the method's evidence. Afterwards every cached segment is in place
at the layers that were gone through, with the KV of the rows that ran, so the layer loop that
follows need not place it again there. Pauses after every layer, so that it can follow a cache that
arrives layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from service.worker.core.flops import FlopCount
from service.worker.core.layer_view import AttentionScores
from service.worker.core.layout import PromptLayout
from service.worker.core.steps import Steps
from service.worker.forward.kv_placement import KVPlacer, PromptKV, write_rows
from service.worker.methods.fusion.base import FusionMethod
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.attention import ScoreFn, attend_rows, attend_with_scores

Prepare = Callable[[int], Steps[None]]
Shares = Callable[[int], Tensor | ScoreFn]
"""What the attention of each row counts for in a layer `[m]`, or what to make of it."""


Projected = tuple[Tensor, Tensor, Tensor, Tensor]
"""Queries after RoPE and before, keys before RoPE, values of some rows in a layer."""


@dataclass
class ReusedQuestionRows:
    """The question's rows in the first layers, as the first pass leaves them: their projections
    there, and their hidden rows as they come into the layer after."""

    layers: int
    projected: list[Projected] = field(default_factory=list)
    x: Tensor | None = None


@dataclass(frozen=True)
class QuestionPassResult:
    """placed: first layers at which the cache is in place now."""

    attention_scores: AttentionScores
    placed: int
    question: ReusedQuestionRows


def scout(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    placement: KVPlacer,
    method: FusionMethod,
    kv: PromptKV,
    flops: FlopCount,
    arrival: Callable[[int], Steps[None]] | None = None,
) -> Steps[QuestionPassResult]:
    """The question's pass and, if the method asks for it, the leads'. `arrival` waits until the
    cache has a layer."""
    looked = method.question_pass_layers(adapter.layers)

    def place_cache(layer: int) -> Steps[None]:
        if arrival is not None:
            yield from arrival(layer)
        placement.place(layer)

    shares = method.question_row_weights(layout)

    def asked(layer: int) -> Tensor | ScoreFn:
        return partial(method.scout, layer, layout=layout) if shares is None else shares

    look = partial(_look, adapter, layout, kv, flops, looked)
    question = ReusedQuestionRows(method.reused_question_layers(adapter.layers))
    found = yield from look(layout.question_rows, asked, place_cache, question)
    leads = method.seed_rows(layout, found)
    if not len(leads):
        return QuestionPassResult(
            AttentionScores(found, torch.zeros_like(found)), looked.stop, question
        )
    followed = method.seed_weights(leads, found)
    second = yield from look(leads, lambda layer: followed)
    return QuestionPassResult(AttentionScores(found, second), looked.stop, question)


def _look(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    kv: PromptKV,
    flops: FlopCount,
    looked: range,
    rows: Tensor,
    shares: Shares,
    prepare: Prepare | None = None,
    settled: ReusedQuestionRows | None = None,
) -> Steps[Tensor]:
    """Run `rows` up to the last layer of `looked`; their evidence `[n]`. `prepare`: before a layer,
    if its cache is not in place yet; `settled` remembers the first layers."""
    n, seen = layout.tokens, layout.cached_rows
    everything = len(seen) == n
    attention_scores = torch.zeros(n, dtype=torch.float32, device=layout.ids.device)
    x = adapter.embed(layout.ids[rows])
    pairs = float(len(rows)) * len(seen)
    last_layer = looked.stop - 1
    for layer in range(looked.stop):
        if settled is not None and layer == settled.layers:
            settled.x = x
        if prepare is not None:
            yield from prepare(layer)
        k_all, v_all = kv.prompt_layer(layer, n)
        fresh_q, k, v = adapter.qkv(layer, x)
        q = adapter.rope.rotate(fresh_q, rows)
        if settled is not None and layer < settled.layers:
            settled.projected.append((q, fresh_q, k, v))
        write_rows(adapter.rope, k_all, v_all, k, v, rows)
        keys, values = (k_all, v_all) if everything else (k_all[:, seen], v_all[:, seen])
        key_rows = None if everything else seen
        if layer in looked:
            attended, told = attend_with_scores(
                q, keys, values, rows, shares(layer), adapter.scale, key_rows=key_rows
            )
            if everything:
                attention_scores += told
            else:
                attention_scores.index_add_(0, seen, told)
        else:
            attended = attend_rows(q, keys, values, rows, adapter.scale, key_rows=key_rows)
        flops.project(len(rows))
        flops.score(pairs)
        if layer < last_layer:  # nobody reads what the last one would give
            x = adapter.finish(layer, x, attended)
            flops.score(pairs)  # weighting values costs what scoring does
            flops.finish(len(rows))
        yield None
    return attention_scores
