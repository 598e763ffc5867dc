"""Computes one chunk's KV and sketch, behind the tokens that its address names.

    S ‖ other chunks │ the chunk
    ─── prefix ──────┤ its rows are computed, over the prefix's KV

Many chunks stand behind the same prefix, so its KV is computed once and kept for the next ones. It
is kept as it was computed, because another codec would change the chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstore import ChunkSpec, EncodedChunk, encode_chunk
from service.worker.core.flops import chunk_prefill
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.steps import Steps
from service.worker.forward.prefill import prefill
from service.worker.methods.fusion.pie import Method as Pie
from service.worker.methods.sparse.sketch import Sketch, SketchBuilder
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address

# Prefixes whose KV is kept. More than one, because chunks of several collections or tenants may
# take turns; few, because each holds as much memory as a chunk of its length.
MAX_PREFIXES = 4


class ScratchKV:
    """A KV cache with memory for one layer, because a full prefill never reads an earlier layer."""

    def __init__(self, adapter: DecoderAdapter, tokens: int) -> None:
        shape = (adapter.kv_heads, tokens, adapter.head_dim)
        self._k = torch.empty(shape, dtype=adapter.dtype, device=adapter.device)
        self._v = torch.empty_like(self._k)

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        return self._k[:, :tokens], self._v[:, :tokens]


@dataclass(frozen=True)
class ComputedChunk:
    """A chunk that was computed here, encoded for the store.

    Attributes:
        chunk: its KV.
        sketch: its sketch, with the rounding that storing causes.
        flops: operations that this took, with those of its prefix if that was not at hand.
    """

    chunk: EncodedChunk
    sketch: Sketch
    flops: float


class ChunkPrefill:
    """Computes chunks, and remembers the prefixes that they stood behind."""

    def __init__(self, adapter: DecoderAdapter) -> None:
        self._adapter = adapter
        self._prefixes: OrderedDict[tuple[int, ...], EncodedChunk] = OrderedDict()

    def compute(self, address: Address) -> Steps[ComputedChunk]:
        """Computes the chunk at `address`; pauses where the layer loop does."""
        adapter, prefix_ids = self._adapter, address.prefix_ids
        known = prefix_ids in self._prefixes
        prefix = (yield from self._prefix(address)) if prefix_ids else None
        k, v, sketch = yield from self._rows(prefix_ids, prefix, address.ids)
        if not prefix_ids:  # S, and the documents are computed behind it
            self._keep(address.spec, address.ids, k, v)
        flops = chunk_prefill(adapter, len(address.ids), behind=len(prefix_ids))
        if prefix_ids and not known:
            flops += chunk_prefill(adapter, len(prefix_ids))
        # Encoded and decoded as the store would do it, so that this prompt selects the same blocks
        # as a later one that reads the stored sketch.
        stored = Sketch.of(sketch.sketch().tensors()).to(adapter.device)
        pin = adapter.device.type == "cuda"
        return ComputedChunk(encode_chunk(address.spec, k, v, pin=pin), stored, flops)

    def forget(self, ids: tuple[int, ...]) -> None:
        """Drops prefixes that contain these tokens, because their text was deleted."""
        for prefix in [p for p in self._prefixes if _contains(p, ids)]:
            del self._prefixes[prefix]

    def _prefix(self, address: Address) -> Steps[EncodedChunk]:
        """KV of the tokens before the chunk."""
        ids = address.prefix_ids
        found = self._prefixes.get(ids)
        if found is None:
            k, v, _ = yield from self._rows((), None, ids)
            found = self._keep(address.spec, ids, k, v)
        self._prefixes.move_to_end(ids)
        return found

    def _keep(
        self, spec: ChunkSpec, ids: tuple[int, ...], k: list[Tensor], v: list[Tensor]
    ) -> EncodedChunk:
        raw = replace(spec, codec="raw", tokens=len(ids))
        kept = encode_chunk(raw, k, v, pin=self._adapter.device.type == "cuda")
        self._prefixes[ids] = kept
        while len(self._prefixes) > MAX_PREFIXES:
            self._prefixes.popitem(last=False)
        return kept

    def _rows(
        self, before: tuple[int, ...], prefix: EncodedChunk | None, ids: tuple[int, ...]
    ) -> Steps[tuple[list[Tensor], list[Tensor], SketchBuilder]]:
        """Keys before RoPE and values of `ids` at every layer, and what their sketch is made of."""
        adapter = self._adapter
        layout = PromptLayout.of(
            before, [ids], [], uncached=[False, True], prefixes=[before], device=adapter.device
        )
        k: list[Tensor] = []
        v: list[Tensor] = []
        sketch = SketchBuilder(0)

        def capture(view: LayerView) -> None:
            k.append(view.fresh_k.clone())
            v.append(view.fresh_v.clone())
            sketch.add(view)

        scratch = ScratchKV(adapter, layout.tokens)
        steps = prefill(adapter, layout, [prefix, None], Pie(), scratch, capture=capture)
        for awaited in steps:
            yield awaited
            if len(k) == adapter.layers:
                break  # all KV is captured; the last layer's output is not needed
        return k, v, sketch


def _contains(prefix: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return any(
        prefix[start : start + len(ids)] == ids for start in range(len(prefix) - len(ids) + 1)
    )
