"""The layer loop over a prompt of which only some tokens are held (METHODS §1.7, Q1–Q8).

    question_pass   question rows over S and the documents' ends: the question's mean queries
    layers          wait for the blocks of the plan (the only pause that lasts); then, layer by
                    layer: place what is kept, compute the rows of the plan and the question,
                    write fresh KV over the stored, attend by index in the whole prompt

The slots of a layer are its kept tokens in ascending order, then the question; every layer has
equally many. The loop pauses after every layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.errors import WorkerFault
from service.worker.core.flops import FlopCount
from service.worker.core.layer_view import CachedSegment
from service.worker.core.layout import PromptLayout
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.steps import Steps
from service.worker.forward.kv_placement import PromptKV
from service.worker.forward.sparse.kept_tokens import KeptTokens, TokenSource
from service.worker.methods.bases.sparse import SketchedPrompt, SparseMethod
from service.worker.methods.sparse.plan import SparsePlan, fixed_tokens
from service.worker.methods.sparse.selection import SketchedDocument
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.attention import attend_rows

BlockSets = list[dict[int, list[int]]]
"""Per document, per layer: numbers of the blocks to read."""
Fetch = Callable[[BlockSets], Steps[list[TokenSource | None]]]
"""Reads blocks of every document; None for a document of which none were asked for."""


@dataclass
class SparseLayerLoop:
    """One prompt.

    Attributes:
        prompt: its layout, its non-empty documents with their sketches, the model's facts.
        system: S's stored KV; None if there is no S.
        ends: KV of the documents' first and last blocks, in order.
        kv: where the prompt's KV goes.
        fetch: reads blocks.
        on_plan: told what the method planned.
    """

    adapter: DecoderAdapter
    prompt: SketchedPrompt
    system: CachedSegment | None
    ends: list[TokenSource]
    kv: PromptKV
    fetch: Fetch
    on_plan: Callable[[SparsePlan], None] | None = None
    _flops: FlopCount = field(init=False)

    def __post_init__(self) -> None:
        self._flops = FlopCount(self.adapter)

    @property
    def _layout(self) -> PromptLayout:
        return self.prompt.layout

    @property
    def _documents(self) -> Sequence[SketchedDocument]:
        return self.prompt.documents

    def question_pass(self) -> Steps[Tensor]:
        """Mean query before RoPE of the question's rows, per layer: `[layers, heads, d]` fp32."""
        adapter, layout, flops = self.adapter, self._layout, self._flops
        rows = layout.question_rows
        kept = [*range(layout.segments[0].tokens), *fixed_tokens(self._documents)]
        index = torch.tensor([*kept, *rows.tolist()], device=adapter.device)
        ends = [KeptTokens((end,)) for end in self.ends]
        x = adapter.embed(layout.ids[rows])
        queries = []
        for layer in range(adapter.layers):
            q, k, v = adapter.qkv(layer, x)
            flops.project(len(rows))
            queries.append(q.float().mean(0))
            if layer == adapter.layers - 1:
                break
            old_k, old_v = self._stored(ends, layer, kept)
            keys = adapter.rope.rotate(torch.cat([old_k, k]), index).transpose(0, 1)
            values = torch.cat([old_v, v]).transpose(0, 1)
            q = adapter.rope.rotate(q, rows)
            attended = attend_rows(q, keys, values, rows, adapter.scale, key_rows=index)
            flops.attend(float(len(rows)) * len(index))
            x = adapter.finish(layer, x, attended)
            flops.finish(len(rows))
            yield None
        return torch.stack(queries)

    def layers(self, method: SparseMethod, plan: SparsePlan) -> Steps[PrefillResult]:
        """Read the blocks that `plan` needs, then compute its rows and the question."""
        check_plan(self.prompt, plan, self.adapter.layers)
        if self.on_plan is not None:
            self.on_plan(plan)
        found = yield from self.fetch(blocks_to_read(self._documents, plan))
        held = [
            KeptTokens((end,) if middle is None else (end, middle))
            for end, middle in zip(self.ends, found, strict=True)
        ]
        return (yield from self._run_layers(method, plan, held))

    def _run_layers(
        self, method: SparseMethod, plan: SparsePlan, held: Sequence[KeptTokens]
    ) -> Steps[PrefillResult]:
        adapter, layout, flops = self.adapter, self._layout, self._flops
        device, question = adapter.device, layout.question_rows
        rows = torch.tensor(plan.rows[0], dtype=torch.long, device=device)
        x = adapter.embed(layout.ids[torch.cat([rows, question])])
        rows_per_layer = []
        padding = plan.padding
        for layer in range(adapter.layers):
            kept = torch.tensor(plan.kept[layer], dtype=torch.long, device=device)
            fresh = torch.tensor(plan.fresh[layer], dtype=torch.long, device=device)
            index = torch.cat([kept, question])
            k_all, v_all = self.kv.prompt_layer(layer, len(index))
            old_k, old_v = self._stored(held, layer, plan.kept[layer])
            q, k, v = adapter.qkv(layer, x)
            flops.project(len(x))
            at, slot = torch.searchsorted(rows, fresh), torch.searchsorted(kept, fresh)
            new_k, new_v = method.merge(k[at], old_k[slot]), method.merge(v[at], old_v[slot])
            # A layer's stored tensors may be views of shared bytes: never written to.
            keys = torch.cat([old_k.index_copy(0, slot, new_k), k[len(rows) :]])
            values = torch.cat([old_v.index_copy(0, slot, new_v), v[len(rows) :]])
            adapter.rope.rotate(keys, index, out=k_all.transpose(0, 1))
            v_all.copy_(values.transpose(0, 1))
            last = layer == adapter.layers - 1
            go_on = [] if last else plan.rows[layer + 1]
            later = torch.tensor(go_on, dtype=torch.long, device=device)
            asking = question[-1:] if last else question
            at = torch.cat([torch.searchsorted(rows, later), len(rows) + asking - question[0]])
            x, q = x[at], adapter.rope.rotate(q[at], torch.cat([later, asking]))
            attended = [
                attend_rows(q[len(later) :], k_all, v_all, asking, adapter.scale, key_rows=index)
            ]
            flops.attend(float(len(asking)) * len(index))
            if go_on:
                seen, seen_k, seen_v = self._with_padding(
                    held, layer, kept, (k_all, v_all), padding[layer]
                )
                attended.insert(
                    0,
                    attend_rows(
                        q[: len(later)], seen_k, seen_v, later, adapter.scale, key_rows=seen
                    ),
                )
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
            entries_per_head=len(plan.kept[0]) + len(question),
            coverage=(len(set().union(*plan.kept)) + len(question)) / layout.tokens,
        )

    def _stored(
        self, held: Sequence[KeptTokens], layer: int, kept: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Stored k (before RoPE) and v `[len(kept), kv_heads, d]` of ascending prompt rows."""
        device = self.adapter.device
        parts_k, parts_v = [], []
        system = self._layout.segments[0].tokens
        if system:
            assert self.system is not None
            k, v = self.system.layer(layer)
            parts_k.append(k.to(device))
            parts_v.append(v.to(device))
        for document, own in zip(self._documents, held, strict=True):
            end = document.start + document.grid.tokens
            local = [t - document.start for t in kept if max(system, document.start) <= t < end]
            if local:
                k, v = own.rows(layer, local, device)
                parts_k.append(k)
                parts_v.append(v)
        return torch.cat(parts_k), torch.cat(parts_v)

    def _with_padding(
        self,
        held: Sequence[KeptTokens],
        layer: int,
        kept: Tensor,
        kv: tuple[Tensor, Tensor],
        padding: Sequence[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Indices, keys and values that document rows see: what is kept and, for this layer only,
        the padding, ascending."""
        k, v = (part[:, : len(kept)] for part in kv)
        if not padding:
            return kept, k, v
        extra = torch.tensor(padding, dtype=torch.long, device=kept.device)
        parts = []
        for document, own in zip(self._documents, held, strict=True):
            span = range(document.start, document.start + document.grid.tokens)
            local = [t - document.start for t in padding if t in span]
            if local:
                parts.append(own.rows(layer, local, kept.device))
        rope = self.adapter.rope
        pad_k = rope.rotate(torch.cat([k for k, _ in parts]), extra).transpose(0, 1)
        pad_v = torch.cat([v for _, v in parts]).transpose(0, 1)
        index, order = torch.cat([kept, extra]).sort()
        return index, torch.cat([k, pad_k], 1)[:, order], torch.cat([v, pad_v], 1)[:, order]


def check_plan(prompt: SketchedPrompt, plan: SparsePlan, layers: int) -> None:
    """A plan that the loop cannot run is the method's fault, and is said so.

    Raises:
        WorkerFault: layers keep unequally many tokens, or leave out S or some document's ends.
    """
    always = {*range(prompt.layout.segments[0].tokens), *fixed_tokens(prompt.documents)}
    if len(plan.kept) != layers or len({len(kept) for kept in plan.kept}) > 1:
        raise WorkerFault("the method's plan must keep equally many tokens in every layer")
    if any(not always <= set(kept) for kept in plan.kept):
        raise WorkerFault(
            "the method's plan must keep S and every document's first and last blocks"
        )


def blocks_to_read(documents: Sequence[SketchedDocument], plan: SparsePlan) -> BlockSets:
    """Blocks between the documents' ends, per document and layer (none is an empty list): those
    that are kept, and those that hold padding."""
    out: BlockSets = []
    padding = plan.padding
    tokens = [torch.tensor([*kept, *padding[layer]]) for layer, kept in enumerate(plan.kept)]
    for document in documents:
        grid, start = document.grid, document.start
        middle, layers = set(grid.middle), {}
        for layer, held in enumerate(tokens):
            local = held[(held >= start) & (held < start + grid.tokens)] - start
            found = set((local // grid.block).tolist())
            layers[layer] = sorted(found & middle)
        out.append(layers)
    return out
