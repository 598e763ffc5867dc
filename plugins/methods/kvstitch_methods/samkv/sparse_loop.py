"""The layer loop for prompts of which only some tokens are held (specification.md §1.7, Q1 to
Q8): the question's pass over S and the documents' ends, then the layers over the blocks of the
plan. A layer's KV cache holds its kept tokens in ascending order, then the question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from kvstitch.kvstore import EncodedChunk
from kvstitch.service.errors import WorkerFault
from kvstitch.service.worker.forward.kv_placement import PromptKV
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import CachedSegment, PrefillResult
from kvstitch.service.worker.model.attention import attend_rows
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import FlopCount
from kvstitch.service.worker.steps import Steps
from kvstitch_methods.samkv.selection import (
    SketchedDocument,
    SketchedPrompt,
    SparsePlan,
    fixed_tokens,
)


class TokenSource(Protocol):
    """KV of some tokens of a document; `kvstitch.kvstore.EncodedBlocks` is one."""

    def tokens(self, layer: int) -> Tensor:
        """Return indices of these tokens within the document, ascending."""

    def layer(
        self, layer: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return keys (before RoPE) and values of these tokens, each `[t, kv_heads, head_dim]`."""


@dataclass(frozen=True)
class WholeChunk:
    """All tokens of a chunk."""

    chunk: EncodedChunk

    def tokens(self, layer: int) -> Tensor:
        return torch.arange(self.chunk.spec.tokens)

    def layer(
        self, layer: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.chunk.layer(layer, device=device)


@dataclass(frozen=True)
class KeptTokens:
    """The tokens that were read of one document."""

    sources: tuple[TokenSource, ...]

    def rows(
        self, layer: int, tokens: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return KV of some tokens at a layer."""
        read = torch.cat([source.tokens(layer) for source in self.sources]).to(device)
        decoded = [source.layer(layer, device=device) for source in self.sources]
        k, v = (torch.cat(part) for part in zip(*decoded, strict=True))
        order = read.argsort()
        wanted = torch.tensor(tokens, dtype=torch.long, device=device)
        index = order[torch.searchsorted(read[order], wanted)]
        assert read[index].equal(wanted), "a token that was not read"
        return k[index], v[index]


BlockSets = list[dict[int, list[int]]]
"""Per document, the numbers of the blocks to read, by layer."""
Merge = Callable[[Tensor, Tensor], Tensor]
"""Makes one of keys, or values, that were computed anew and those that are stored."""
Fetch = Callable[[BlockSets], Steps[list[TokenSource | None]]]
"""Reads blocks of every document; returns None for a document of which no block is needed."""


@dataclass
class SparseLayerLoop:
    """The passes that a sparse method runs, over S and what is read of documents."""

    decoder: DecoderModel
    # its layout, its non-empty documents with their sketches, the model's facts
    prompt: SketchedPrompt
    system: CachedSegment | None  # stored KV of S; None if there is no S
    ends: list[TokenSource]  # KV of the documents' first and last blocks, in order
    kv: PromptKV
    fetch: Fetch
    on_plan: Callable[[SparsePlan], None] | None = None
    _flops: FlopCount = field(init=False)

    def __post_init__(self) -> None:
        self._flops = FlopCount(self.decoder)

    @property
    def _layout(self) -> PromptLayout:
        return self.prompt.layout

    def question_pass(self) -> Steps[Tensor]:
        """Return the mean query of the question before RoPE, `[layers, heads, head_dim]` fp32."""
        decoder, layout, flops = self.decoder, self._layout, self._flops
        rows = layout.question_rows
        kept = [*range(layout.segments[0].tokens), *fixed_tokens(self.prompt.documents)]
        key_rows = torch.tensor([*kept, *rows.tolist()], device=decoder.device)
        ends = [KeptTokens((end,)) for end in self.ends]
        x = decoder.embed(layout.ids[rows])
        queries = []
        for layer in range(decoder.layers):
            q, k, v = decoder.qkv(layer, x)
            flops.project(layer, len(rows))
            queries.append(q.float().mean(0))
            if layer == decoder.layers - 1:
                break
            stored_k, stored_v = self._stored(ends, layer, kept)
            keys = decoder.ropes[layer].rotate(torch.cat([stored_k, k]), key_rows).transpose(0, 1)
            values = torch.cat([stored_v, v]).transpose(0, 1)
            q = decoder.ropes[layer].rotate(q, rows)
            rule = decoder.rules[layer]
            attended = attend_rows(
                q, keys, values, rows, decoder.scale, key_rows=key_rows, rule=rule
            )
            flops.attend(float(len(rows)) * len(key_rows))
            x = decoder.finish(layer, x, attended)
            flops.finish(layer, len(rows))
            yield None
        return torch.stack(queries)

    def layers(self, plan: SparsePlan, merge: Merge) -> Steps[PrefillResult]:
        """Read the blocks that `plan` needs, then compute its rows and the question."""
        check_plan(self.prompt, plan, self.decoder.layers)
        if self.on_plan is not None:
            self.on_plan(plan)
        middle_blocks = yield from self.fetch(blocks_to_read(self.prompt.documents, plan))
        documents_kv = [
            KeptTokens((end,) if middle is None else (end, middle))
            for end, middle in zip(self.ends, middle_blocks, strict=True)
        ]
        return (yield from self._run_layers(plan, merge, documents_kv))

    def _run_layers(
        self, plan: SparsePlan, merge: Merge, documents_kv: Sequence[KeptTokens]
    ) -> Steps[PrefillResult]:
        decoder, layout, flops = self.decoder, self._layout, self._flops
        device, question = decoder.device, layout.question_rows
        rows = torch.tensor(plan.rows[0], dtype=torch.long, device=device)
        x = decoder.embed(layout.ids[torch.cat([rows, question])])
        rows_per_layer = []
        padding = plan.padding
        for layer in range(decoder.layers):
            kept = torch.tensor(plan.kept[layer], dtype=torch.long, device=device)
            fresh = torch.tensor(plan.fresh[layer], dtype=torch.long, device=device)
            key_rows = torch.cat([kept, question])
            k_all, v_all = self.kv.prompt_layer(layer, len(key_rows))
            stored_k, stored_v = self._stored(documents_kv, layer, plan.kept[layer])
            q, k, v = decoder.qkv(layer, x)
            flops.project(layer, len(x))
            computed, slot = torch.searchsorted(rows, fresh), torch.searchsorted(kept, fresh)
            new_k = merge(k[computed], stored_k[slot])
            new_v = merge(v[computed], stored_v[slot])
            # Not in place: stored tensors may be views of bytes that others read too.
            keys = torch.cat([stored_k.index_copy(0, slot, new_k), k[len(rows) :]])
            values = torch.cat([stored_v.index_copy(0, slot, new_v), v[len(rows) :]])
            decoder.ropes[layer].rotate(keys, key_rows, out=k_all.transpose(0, 1))
            v_all.copy_(values.transpose(0, 1))
            last = layer == decoder.layers - 1
            next_rows = torch.tensor(
                [] if last else plan.rows[layer + 1], dtype=torch.long, device=device
            )
            # After the last layer nothing reads rows but the question's last one.
            asking = question[-1:] if last else question
            index = torch.cat(
                [torch.searchsorted(rows, next_rows), len(rows) + asking - question[0]]
            )
            x, q = x[index], decoder.ropes[layer].rotate(q[index], torch.cat([next_rows, asking]))
            count = len(next_rows)
            rule = decoder.rules[layer]
            attended = [
                attend_rows(
                    q[count:], k_all, v_all, asking, decoder.scale, key_rows=key_rows, rule=rule
                )
            ]
            flops.attend(float(len(asking)) * len(key_rows))
            if count:
                seen, seen_k, seen_v = self._with_padding(
                    documents_kv, layer, kept, (k_all, v_all), padding[layer]
                )
                document_rows = attend_rows(
                    q[:count], seen_k, seen_v, next_rows, decoder.scale, key_rows=seen, rule=rule
                )
                attended.insert(0, document_rows)
                flops.attend(float(torch.searchsorted(seen, next_rows, right=True).sum()))
            x = decoder.finish(layer, x, torch.cat(attended))
            flops.finish(layer, len(x))
            rows_per_layer.append(len(x))
            rows = next_rows
            yield None
        flops.unembed(1)
        recomputed = torch.tensor(sorted(plan.recomputed), dtype=torch.long, device=device)
        return PrefillResult(
            logits=decoder.logits(x)[0],
            observed=[],
            rows_per_layer=rows_per_layer,
            rows=torch.cat([recomputed, question]),
            flops=flops.total,
            layout=layout,
            entries_per_head=len(plan.kept[0]) + len(question),
            held={
                layer: torch.cat([torch.tensor(plan.kept[layer], device=device), question])
                for layer, rule in enumerate(decoder.rules)
                if rule.window is not None
            },
            coverage=(len(set().union(*plan.kept)) + len(question)) / layout.tokens,
        )

    def _stored(
        self, documents_kv: Sequence[KeptTokens], layer: int, kept: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Return keys before RoPE and values of prompt rows, `[kept, kv_heads, head_dim]` each."""
        parts = [*self._of_documents(documents_kv, layer, kept)]
        if self._layout.segments[0].tokens:
            assert self.system is not None
            k, v = self.system.layer(layer)
            parts.insert(0, (k.to(self.decoder.device), v.to(self.decoder.device)))
        keys, values = zip(*parts, strict=True)
        return torch.cat(keys), torch.cat(values)

    def _of_documents(
        self, documents_kv: Sequence[KeptTokens], layer: int, rows: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield stored keys and values of those of the rows that are of a document, for each."""
        for document, document_kv in zip(self.prompt.documents, documents_kv, strict=True):
            span = range(document.start, document.start + document.grid.tokens)
            local = [row - document.start for row in rows if row in span]
            if local:
                yield document_kv.rows(layer, local, self.decoder.device)

    def _with_padding(
        self,
        documents_kv: Sequence[KeptTokens],
        layer: int,
        kept: Tensor,
        kv: tuple[Tensor, Tensor],
        padding: Sequence[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what document rows see at this layer: kept rows, and padding rows for it only."""
        k, v = (part[:, : len(kept)] for part in kv)
        if not padding:
            return kept, k, v
        extra = torch.tensor(padding, dtype=torch.long, device=kept.device)
        keys, values = zip(*self._of_documents(documents_kv, layer, padding), strict=True)
        pad_k = self.decoder.ropes[layer].rotate(torch.cat(keys), extra).transpose(0, 1)
        pad_v = torch.cat(values).transpose(0, 1)
        index, order = torch.cat([kept, extra]).sort()
        return index, torch.cat([k, pad_k], 1)[:, order], torch.cat([v, pad_v], 1)[:, order]


def check_plan(prompt: SketchedPrompt, plan: SparsePlan, layers: int) -> None:
    """Check that the loop can run a method's plan."""
    always = {*range(prompt.layout.segments[0].tokens), *fixed_tokens(prompt.documents)}
    if len(plan.kept) != layers or len({len(kept) for kept in plan.kept}) > 1:
        raise WorkerFault("the method's plan must keep equally many tokens in every layer")
    if any(not always <= set(kept) for kept in plan.kept):
        raise WorkerFault(
            "the method's plan must keep S and every document's first and last blocks"
        )


def blocks_to_read(documents: Sequence[SketchedDocument], plan: SparsePlan) -> BlockSets:
    """Return the middle blocks with tokens that a layer keeps or has as padding."""
    block_sets: BlockSets = []
    padding = plan.padding
    tokens = [torch.tensor([*kept, *padding[layer]]) for layer, kept in enumerate(plan.kept)]
    for document in documents:
        grid, start = document.grid, document.start
        middle, layers = set(grid.middle), {}
        for layer, needed in enumerate(tokens):
            local = needed[(needed >= start) & (needed < start + grid.tokens)] - start
            blocks = set((local // grid.block).tolist())
            layers[layer] = sorted(blocks & middle)
        block_sets.append(layers)
    return block_sets
