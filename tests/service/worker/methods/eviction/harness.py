"""Kept sets of our methods and of the reference's, over random attention and on stitched prompts.

Ours go the way the engine goes: observe in the layer loop, `evict` on a pool. On random attention
every pool row holds its token's index as value, so the pool itself tells what was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod, evict
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.model.model_facts import PLAIN, AttentionRule, FlopCount, ModelFacts
from kvstitch.service.worker.model.rope import RotaryTable
from tests.references import eviction as reference
from tests.references.eviction import Kept, Region, attention_weights
from tests.service.worker.held import held
from tests.service.worker.tiny import Run, Tiny

D = 8
LAYERS, KV_HEADS = 4, 2
QK = tuple[Tensor, Tensor]  # q [n, heads, d], k [n, kv_heads, d], both after RoPE


# -- prompts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Tokens of S, of the documents, of Q."""

    system: int
    document: int
    question: int

    @property
    def tokens(self) -> int:
        return self.system + self.document + self.question

    @property
    def layout(self) -> PromptLayout:
        half = self.document // 2
        documents = [[2] * half, [3] * (self.document - half)]
        return PromptLayout.of(
            [1] * self.system, documents, [4] * self.question, uncached=[False] * 3
        )

    def region(self, method: EvictionMethod) -> Region:
        return Region(
            self.tokens,
            self.system,
            self.question,
            method.budget,
            method.window_rows,
            method.protect,
        )


@cache
def random_layers(
    shape: Shape, group: int, seed: int = 0, *, layers: int = LAYERS, kv_heads: int = KV_HEADS
) -> tuple[QK, ...]:
    """Sharp enough that ranks are far apart."""
    source = torch.Generator().manual_seed(1000 * seed + shape.tokens)
    out = []
    for _ in range(layers):
        q = 1.5 * torch.randn(shape.tokens, kv_heads * group, D, generator=source)
        out.append((q, 1.5 * torch.randn(shape.tokens, kv_heads, D, generator=source)))
    return tuple(out)


@cache
def attentions_of(shape: Shape, group: int, seed: int = 0) -> list[Tensor]:
    """The reference's softmax of `random_layers`, every row."""
    return [attention_weights(q, k) for q, k in random_layers(shape, group, seed)]


def head_scores(layers: int, heads: int, seed: int = 0) -> dict[str, Tensor]:
    """What a calibration gives, uneven: some heads almost nothing."""
    source = torch.Generator().manual_seed(seed)
    scores = torch.rand(2, layers, heads, generator=source) ** 3
    return {"R": scores[0] / scores[0].sum(), "R2": scores[1] / scores[1].sum()}


# -- ours -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """What `evict`, a layer view and a count of operations need of a decoder."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int = D
    hidden: int = 1
    intermediate: int = 1
    vocabulary: int = 1

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def rules(self) -> list[AttentionRule]:
        return [PLAIN] * self.layers


def view_of(layout: PromptLayout, number: int, qk: QK, layers: int) -> LayerView:
    """A layer at which a full prefill computed every row."""
    q, k = qk
    keys = k.transpose(0, 1)
    sizes = Sizes(layers, q.shape[1], k.shape[1], k.shape[2])
    return LayerView(
        layer=number,
        layout=layout,
        rows=layout.all_rows,
        q=q,
        k=keys,
        v=keys,
        fresh_q=q,
        fresh_k=k,
        fresh_v=k,
        cached=[None] * len(layout.segments),
        scale=sizes.scale,
        rope=RotaryTable(torch.zeros(sizes.head_dim // 2), 1.0, layout.tokens),  # turns nothing
        flops=FlopCount(cast(Any, sizes)),
    )


def filled(layout: PromptLayout, layers: Sequence[QK], room: int = 0) -> tuple[KVPool, SequenceKV]:
    """A pool whose keys are these and whose values are the token's index."""
    kv_heads, d = layers[0][1].shape[1:]
    n = layout.tokens
    pool = KVPool(
        len(layers), kv_heads, d, n + room + 3, dtype=torch.float32, device=torch.device("cpu")
    )
    sequence = pool.reserve(n + room)
    assert sequence is not None
    for number, (_, keys) in enumerate(layers):
        k, v = sequence.prompt_layer(number, n)
        k.copy_(keys.transpose(0, 1))
        v.copy_(torch.arange(n)[None, :, None].expand_as(v))
    sequence.set_length(n)
    return pool, sequence


def evicted_kept(
    method: EvictionMethod,
    layout: PromptLayout,
    layers: Sequence[QK],
    scores: dict[str, Tensor] | None = None,
) -> tuple[Kept, float]:
    """Indices that the pool holds after eviction, ascending as they lie there, and coverage."""
    q, k = layers[0]
    sizes = Sizes(len(layers), q.shape[1], k.shape[1], k.shape[2])
    facts = ModelFacts(sizes.layers, sizes.heads, sizes.kv_heads, scores or {})
    observed = [
        method.observe(view_of(layout, number, qk, len(layers))) for number, qk in enumerate(layers)
    ]
    _, sequence = filled(layout, layers)
    coverage = evict(
        sizes,  # type: ignore[arg-type]
        facts,
        sequence,
        method,
        layout=layout,
        observed=observed,
        room=0,
    )
    kept = [
        [[int(t) for t in v[:, 0]] for _, v in held(sequence, number)]
        for number in range(len(layers))
    ]
    return kept, coverage


def kept_by(
    method: EvictionMethod,
    layout: PromptLayout,
    layers: Sequence[QK],
    scores: dict[str, Tensor] | None = None,
) -> Kept:
    return evicted_kept(method, layout, layers, scores)[0]


def shrink(model: Tiny, run: Run, method: EvictionMethod, room: int) -> float:
    """`method` applied to a run that was stitched with it, as the engine does; head scores are
    `head_scores` of the model's sizes."""
    decoder, result = model.decoder, run.result
    run.sequence.set_length(result.layout.tokens)
    scores = head_scores(decoder.layers, decoder.heads)
    facts = ModelFacts(decoder.layers, decoder.heads, decoder.kv_heads, scores)
    original_tokens = None if result.kept_ids is None else run.layout.tokens
    return evict(
        decoder,
        facts,
        run.sequence,
        method,
        layout=result.layout,
        observed=result.observed,
        room=room,
        original_tokens=original_tokens,
    )


# -- the reference --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What the reference needs. attentions: per layer `[heads, n, n]`; rows: computed ones."""

    method: Any
    region: Region
    attentions: Sequence[Tensor]
    rows: Sequence[Sequence[int]]
    scores: dict[str, Tensor]
    kv_heads: int = KV_HEADS


EXPECTED: dict[str, Callable[[Case], Kept]] = {
    "streaming_llm": lambda c: reference.streaming_llm(
        len(c.attentions), c.kv_heads, c.region, c.method.sinks
    ),
    "h2o": lambda c: [
        reference.h2o([attention], c.kv_heads, c.region, rows)[0]
        for attention, rows in zip(c.attentions, c.rows, strict=True)
    ],
    "snapkv": lambda c: reference.snapkv(c.attentions, c.kv_heads, c.region, c.method.kernel),
    "pyramidkv": lambda c: reference.pyramidkv(
        c.attentions, c.kv_heads, c.region, c.method.beta, c.method.kernel
    ),
    "ada_snapkv": lambda c: reference.ada_snapkv(
        c.attentions, c.kv_heads, c.region, c.method.alpha, c.method.kernel
    ),
    "ada_pyramidkv": lambda c: reference.ada_pyramidkv(
        c.attentions, c.kv_heads, c.region, c.method.alpha, c.method.beta, c.method.kernel
    ),
    "headkv": lambda c: reference.headkv(
        c.attentions,
        c.kv_heads,
        c.region,
        c.scores[c.method.variant].tolist(),
        c.method.beta,
        c.method.kernel,
    ),
    "kvec": lambda c: reference.kvec(
        c.attentions,
        c.kv_heads,
        c.region,
        extended=c.method.extended,
        delta=c.method.delta,
        lam=c.method.lam,
        beta=c.method.beta,
        pooling=c.method.pool,
    ),
}


def expected(name: str, method: EvictionMethod, shape: Shape, group: int, seed: int = 0) -> Kept:
    """The reference's kept sets on `random_layers`; all but GemFilter's."""
    attentions = attentions_of(shape, group, seed)
    rows = [range(shape.tokens)] * len(attentions)
    scores = head_scores(len(attentions), KV_HEADS * group)
    return EXPECTED[name](Case(method, shape.region(method), attentions, rows, scores))
