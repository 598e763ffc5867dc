"""SamKV's prompts on tiny models: stored tokens that must be read first, own sketches or the
reference's, and a run from sketches to a cache that can be decoded on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.layout import Prefix, PromptLayout
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch.service.worker.steps import Steps, run
from kvstitch_methods.samkv.selection import Selection, SketchedDocument, SketchedPrompt, SparsePlan
from kvstitch_methods.samkv.sketch import BlockGrid, Sketch, SketchBuilder
from kvstitch_methods.samkv.sparse_loop import BlockSets, SparseLayerLoop, TokenSource
from kvstitch_methods.samkv.sparse_method import SamKV
from tests.service.worker.tiny import Q, S, StoredSegment, Tiny
from tests_methods.samkv import reference_sketch as expected


def tokens(count: int) -> list[int]:
    """Random ones, others for another count."""
    source = random.Random(f"tokens {count}")
    return [source.randrange(2, 101) for _ in range(count)]


SOURCE = random.Random(5)
# 16, 12 and 14 blocks of 4; the last one of two of them is short.
LONG = [[SOURCE.randrange(2, 101) for _ in range(length)] for length in (61, 48, 53)]
PAPER = SamKV(max_kept=1.0, max_recomputed=1.0)
"""Without the caps that the paper does not have."""


@dataclass(frozen=True)
class SomeTokens:
    """What a read of these blocks gives, layer by layer, and no other token."""

    stored: StoredSegment
    grid: BlockGrid
    blocks: Mapping[int, Sequence[int]]

    def tokens(self, layer: int) -> Tensor:
        return torch.tensor(self.grid.indices(list(self.blocks[layer])), dtype=torch.long)

    def layer(
        self, layer: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        at = self.tokens(layer)
        return self.stored.k[layer][at], self.stored.v[layer][at]


@dataclass(repr=False)
class SparseRun:
    """One prompt: what was chosen, what was read, and the filled cache, per layer
    `[held, kv_heads, d]`. Token indices are the prompt's."""

    layout: PromptLayout
    result: PrefillResult
    sequence: SequenceKV
    selection: Selection
    plan: SparsePlan
    queries: Tensor
    read: BlockSets = field(default_factory=list)
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)


def sketch(model: Tiny, ids: Sequence[int], prefix: Sequence[int] = (), block: int = 4) -> Sketch:
    """As precompute makes it, before it is rounded for the store."""
    builder = SketchBuilder(len(prefix), block)
    layout = PromptLayout.of([*prefix, *ids], [], [], uncached=[True])
    kv = _pool(model, layout.tokens).reserve(layout.tokens)
    assert kv is not None
    run(prefill(model.decoder, layout, [None], Vanilla(), kv, capture=builder.add))
    return builder.sketch()


def of_reference(layers: Sequence[expected.Sketch]) -> Sketch:
    """The reference's sketch of one document as ours."""
    return Sketch(
        means=torch.stack([s.block_keys for s in layers]),
        anchor=torch.stack([s.anchor for s in layers]),
        local_query=torch.stack([s.local_query for s in layers]),
        representative=torch.tensor(
            [[-1 if t is None else t for t in s.representatives] for s in layers],
            dtype=torch.int32,
        ),
        mass=torch.tensor([[m or 0.0 for m in s.masses] for s in layers]),
        alpha=torch.tensor([[float("inf") if a is None else a for a in s.alphas] for s in layers]),
    )


def sparse_run(
    model: Tiny,
    documents: Sequence[Sequence[int]] = LONG,
    method: SamKV = PAPER,
    *,
    system: Sequence[int] = S,
    prefix: Sequence[int] = (),
    block: int = 4,
    sketches: Sequence[Sketch] | None = None,
    stable_layers: tuple[int, ...] = (),
    room: int = 0,
) -> SparseRun:
    """S, these documents and Q by the sparse layer loop. `sketches` of the non-empty documents,
    default their own."""
    decoder = model.decoder
    facts = ModelFacts(decoder.layers, decoder.heads, decoder.kv_heads, {}, stable_layers)
    layout = PromptLayout.of(
        system,
        documents,
        Q,
        uncached=[not ids for ids in (system, *documents)],
        prefixes=[Prefix(prefix)] * len(documents),
    )
    texts = [ids for ids in documents if ids]
    starts = [segment.start for segment in layout.documents if segment.tokens]
    grids = [BlockGrid(len(ids), block) for ids in texts]
    if sketches is None:
        sketches = [sketch(model, ids, prefix, block) for ids in texts]
    stored = [model.precompute(ids, prefix) for ids in texts]
    layers = range(decoder.layers)
    sources: list[TokenSource] = [
        SomeTokens(kv, grid, {layer: grid.fixed for layer in layers})
        for kv, grid in zip(stored, grids, strict=True)
    ]
    sketched = [SketchedDocument(*parts) for parts in zip(starts, grids, sketches, strict=True)]
    prompt = SketchedPrompt(layout, sketched, facts)
    stored_system = model.precompute(system) if system else None
    read: BlockSets = []

    def fetch(wanted: BlockSets) -> Steps[list[TokenSource | None]]:
        read.extend(wanted)
        yield None
        return [
            SomeTokens(kv, grid, blocks) if any(blocks.values()) else None
            for kv, grid, blocks in zip(stored, grids, wanted, strict=True)
        ]

    pool = _pool(model, layout.tokens + room)
    for store in (*pool.k, *pool.v):
        store.fill_(float("nan"))  # what nobody wrote must not be read
    sequence = pool.reserve(layout.tokens + room)
    assert sequence is not None
    loop = SparseLayerLoop(decoder, prompt, stored_system, sources, sequence, fetch)
    queries = finished(loop.question_pass())
    selection, plan = method.selected(prompt, queries), method.plan(prompt, queries)
    result: PrefillResult = finished(loop.layers(plan, method.merge))
    assert result.entries_per_head is not None
    sequence.set_length(result.entries_per_head)
    done = SparseRun(layout, result, sequence, selection, plan, queries, read)
    for layer in layers:
        k, v = sequence.prompt_layer(layer, result.entries_per_head)
        done.k.append(k.transpose(0, 1).clone())
        done.v.append(v.transpose(0, 1).clone())
    return done


def finished(steps: Steps[Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _pool(model: Tiny, tokens: int) -> KVPool:
    decoder = model.decoder
    return KVPool(
        decoder.layers,
        decoder.kv_heads,
        decoder.head_dim,
        tokens,
        dtype=decoder.dtype,
        device=decoder.device,
    )
