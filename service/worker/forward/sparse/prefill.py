"""The layer loop over a prompt of which only some tokens are held (METHODS §1.7, Q1–Q8).

    first pass   question rows over S and the documents' ends → queries → which blocks are needed
    wait         for these blocks (the only pause that lasts)
    second pass  per layer: place what is kept, compute the rows of the plan and the question, write
                 fresh KV over the stored, attend by global index

Slots of a layer are its kept tokens in ascending order, then the question; every layer has equally
many. Pauses after every layer. Knows no store: it asks `fetch` for blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.core.flops import FlopCount
from service.worker.core.layer_view import CachedSegment
from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.core.steps import Steps
from service.worker.forward.kv_placement import PromptKV
from service.worker.forward.prefill import PrefillResult
from service.worker.forward.sparse.kept_tokens import KeptTokens, TokenSource
from service.worker.methods.fusion.samkv import Method as SamKV
from service.worker.methods.sparse.plan import SparsePlan, fixed_tokens, make_plan
from service.worker.methods.sparse.selection import (
    Selection,
    SketchedDocument,
    outliers,
    personalised,
    select,
)
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.attention import attend_rows

# Per document, per layer: blocks to read.
BlockSets = list[dict[int, list[int]]]
Fetch = Callable[[BlockSets], Steps[list[TokenSource | None]]]


@dataclass(frozen=True)
class SparsePrompt:
    """The prompt's parts: S's whole KV (None if there is no S), the non-empty documents and their
    ends' KV, in order."""

    layout: PromptLayout
    system: CachedSegment | None
    documents: list[SketchedDocument]
    ends: list[TokenSource]


def sparse_prefill(
    adapter: DecoderAdapter,
    model: ModelFacts,
    prompt: SparsePrompt,
    method: SamKV,
    kv: PromptKV,
    fetch: Fetch,
    watch: Callable[[SparsePlan], None] | None = None,
) -> Steps[PrefillResult]:
    """Pauses after every layer, and while it waits for blocks. watch: told the plan."""
    flops = FlopCount(adapter)
    queries = yield from first_pass(adapter, prompt, flops)
    selection, plan = make_choice(adapter, model, prompt, method, queries)
    if watch is not None:
        watch(plan)
    found = yield from fetch(_blocks_to_read(prompt.documents, selection, plan))
    held = [
        KeptTokens((end,) if middle is None else (end, middle))
        for end, middle in zip(prompt.ends, found, strict=True)
    ]
    return (yield from _second_pass(adapter, prompt, plan, held, method, kv, flops))


def make_choice(
    adapter: DecoderAdapter,
    model: ModelFacts,
    prompt: SparsePrompt,
    method: SamKV,
    queries: Tensor,
) -> tuple[Selection, SparsePlan]:
    """From the question's mean queries `[L, heads, d]` to what every layer holds."""
    documents = prompt.documents
    asked = personalised(
        queries, [d.sketch.local_query for d in documents], bias=method.personalised_bias
    )
    chosen = select(
        documents,
        asked,
        stable_layers=method.stable_layers(model),
        normalise=method.normalise,
        limit=method.block_limit([d.grid for d in documents]),
    )
    marks = outliers(documents, pooled=method.outliers_of == "request")
    system = prompt.layout.segments[0].tokens
    blocks = chosen.blocks or [[] for _ in range(adapter.layers)]
    plan = make_plan(
        system,
        documents,
        Selection(blocks, chosen.need),
        marks,
        recompute=method.recompute,
        max_recomputed=method.max_recomputed,
    )
    return chosen, plan


def first_pass(adapter: DecoderAdapter, prompt: SparsePrompt, flops: FlopCount) -> Steps[Tensor]:
    """Mean query before RoPE of the question's rows, per layer: `[L, heads, d]` fp32."""
    layout = prompt.layout
    rows = layout.question_rows
    kept = [*range(layout.segments[0].tokens), *fixed_tokens(prompt.documents)]
    index = torch.tensor([*kept, *rows.tolist()], device=adapter.device)
    ends = [KeptTokens((end,)) for end in prompt.ends]
    x = adapter.embed(layout.ids[rows])
    queries = []
    for layer in range(adapter.layers):
        q, k, v = adapter.qkv(layer, x)
        flops.project(len(rows))
        queries.append(q.float().mean(0))
        if layer == adapter.layers - 1:
            break
        old_k, old_v = _stored(prompt, ends, layer, kept, adapter.device)
        keys = adapter.rope.rotate(torch.cat([old_k, k]), index).transpose(0, 1)
        values = torch.cat([old_v, v]).transpose(0, 1)
        q = adapter.rope.rotate(q, rows)
        attended = attend_rows(q, keys, values, rows, adapter.scale, key_rows=index)
        flops.attend(float(len(rows)) * len(index))
        x = adapter.finish(layer, x, attended)
        flops.finish(len(rows))
        yield None
    return torch.stack(queries)


def _second_pass(
    adapter: DecoderAdapter,
    prompt: SparsePrompt,
    plan: SparsePlan,
    held: Sequence[KeptTokens],
    method: SamKV,
    kv: PromptKV,
    flops: FlopCount,
) -> Steps[PrefillResult]:
    layout, device = prompt.layout, adapter.device
    question = layout.question_rows
    rows = torch.tensor(plan.rows[0], dtype=torch.long, device=device)
    x = adapter.embed(layout.ids[torch.cat([rows, question])])
    rows_per_layer = []
    padding = plan.padding
    for layer in range(adapter.layers):
        kept = torch.tensor(plan.kept[layer], dtype=torch.long, device=device)
        fresh = torch.tensor(plan.fresh[layer], dtype=torch.long, device=device)
        index = torch.cat([kept, question])
        k_all, v_all = kv.prompt_layer(layer, len(index))
        old_k, old_v = _stored(prompt, held, layer, plan.kept[layer], device)
        q, k, v = adapter.qkv(layer, x)
        flops.project(len(x))
        at, slot = torch.searchsorted(rows, fresh), torch.searchsorted(kept, fresh)
        new_k, new_v = k[at], v[at]
        if method.update == "fusion":
            new_k, new_v = blend(new_k, old_k[slot]), blend(new_v, old_v[slot])
        # A layer's stored tensors may be views of shared bytes: never written to.
        keys = torch.cat([old_k.index_copy(0, slot, new_k), k[len(rows) :]])
        values = torch.cat([old_v.index_copy(0, slot, new_v), v[len(rows) :]])
        adapter.rope.rotate(keys, index, out=k_all.transpose(0, 1))
        v_all.copy_(values.transpose(0, 1))
        last = layer == adapter.layers - 1
        go_on = [] if last else plan.rows[layer + 1]
        later = torch.tensor(go_on, dtype=torch.long, device=device)
        asked = question[-1:] if last else question
        at = torch.cat([torch.searchsorted(rows, later), len(rows) + asked - question[0]])
        x, q = x[at], adapter.rope.rotate(q[at], torch.cat([later, asked]))
        attended = [
            attend_rows(q[len(later) :], k_all, v_all, asked, adapter.scale, key_rows=index)
        ]
        flops.attend(float(len(asked)) * len(index))
        if go_on:
            seen, seen_k, seen_v = _with_padding(
                adapter, prompt, held, layer, kept, k_all, v_all, padding[layer]
            )
            q = q[: len(later)]
            attended.insert(0, attend_rows(q, seen_k, seen_v, later, adapter.scale, key_rows=seen))
            flops.attend(float(torch.searchsorted(seen, later, right=True).sum()))
        x = adapter.finish(layer, x, torch.cat(attended))
        flops.finish(len(x))
        rows_per_layer.append(len(x))
        rows = later
        yield None
    flops.unembed(1)
    computed = torch.tensor(sorted(plan.recomputed), dtype=torch.long, device=device)
    return PrefillResult(
        logits=adapter.logits(x)[0],
        observed=[],
        rows_per_layer=rows_per_layer,
        rows=torch.cat([computed, question]),
        flops=flops.total,
        layout=layout,
        held_tokens=len(plan.kept[0]) + len(question),
        coverage=(len(set().union(*plan.kept)) + len(question)) / layout.tokens,
    )


def blend(new: Tensor, old: Tensor) -> Tensor:
    """θ·new + (1-θ)·old with θ the tokens' cosine over all heads, clamped to [0, 1] (Q7)."""
    a, b = new.float(), old.float()
    theta = torch.cosine_similarity(a.flatten(1), b.flatten(1), dim=1).clamp(0, 1)[:, None, None]
    return (theta * a + (1 - theta) * b).to(new.dtype)


def _stored(
    prompt: SparsePrompt,
    held: Sequence[KeptTokens],
    layer: int,
    kept: Sequence[int],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Stored k (before RoPE) and v `[len(kept), kv_heads, d]` of ascending global indices."""
    parts_k, parts_v = [], []
    system = prompt.layout.segments[0].tokens
    if system:
        assert prompt.system is not None
        k, v = prompt.system.layer(layer)
        parts_k.append(k.to(device))
        parts_v.append(v.to(device))
    for document, own in zip(prompt.documents, held, strict=True):
        end = document.start + document.grid.tokens
        local = [t - document.start for t in kept if max(system, document.start) <= t < end]
        if local:
            k, v = own.rows(layer, local, device)
            parts_k.append(k)
            parts_v.append(v)
    return torch.cat(parts_k), torch.cat(parts_v)


def _with_padding(
    adapter: DecoderAdapter,
    prompt: SparsePrompt,
    held: Sequence[KeptTokens],
    layer: int,
    kept: Tensor,
    k_all: Tensor,
    v_all: Tensor,
    padding: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices, keys and values that document rows see: what is kept and, for this layer only, the
    padding, ascending."""
    k, v = k_all[:, : len(kept)], v_all[:, : len(kept)]
    if not padding:
        return kept, k, v
    extra = torch.tensor(padding, dtype=torch.long, device=kept.device)
    parts = []
    for document, own in zip(prompt.documents, held, strict=True):
        span = range(document.start, document.start + document.grid.tokens)
        local = [t - document.start for t in padding if t in span]
        if local:
            parts.append(own.rows(layer, local, kept.device))
    pad_k = adapter.rope.rotate(torch.cat([k for k, _ in parts]), extra).transpose(0, 1)
    pad_v = torch.cat([v for _, v in parts]).transpose(0, 1)
    index, order = torch.cat([kept, extra]).sort()
    return index, torch.cat([k, pad_k], 1)[:, order], torch.cat([v, pad_v], 1)[:, order]


def _blocks_to_read(
    documents: Sequence[SketchedDocument], selection: Selection, plan: SparsePlan
) -> BlockSets:
    """Middle blocks per document and layer (none is an empty list): those kept, and those that hold
    padding."""
    out: BlockSets = [{layer: [] for layer in range(len(plan.kept))} for _ in documents]
    for layer, blocks in enumerate(selection.blocks):
        for number, block in blocks:
            out[number][layer].append(block)
    for layer, tokens in enumerate(plan.padding):
        for token in tokens:
            for number, document in enumerate(documents):
                local = token - document.start
                if 0 <= local < document.grid.tokens:
                    here = out[number][layer]
                    block = local // document.grid.block
                    if block not in here:
                        here.append(block)
                        here.sort()
    return out
