"""Computes one chunk's KV and sketch, behind the tokens that its address names.

    S ‖ other chunks │ the chunk
    ─── parts ───────┤ its rows are computed, over the parts' KV

Many chunks stand behind the same parts, so the KV of these is computed once: it is kept in memory
for the next chunks, and in the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstore import EncodedChunk, encode_chunk
from service.worker.core.flops import chunk_prefill
from service.worker.core.layer_view import CachedSegment, LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.steps import Steps
from service.worker.forward.prefill import prefill
from service.worker.methods.fusion.pie import Method as Pie
from service.worker.methods.sparse.sketch import Sketch, SketchBuilder
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address

# Parts whose KV is kept in memory. More than one, because chunks of several groups, collections or
# tenants take turns; few, because each holds as much memory as a chunk of its length.
MAX_PARTS = 4


Read = Callable[[Address], "Future[EncodedChunk | None]"]
Write = Callable[[Address, "ComputedChunk"], None]


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
    """Computes chunks, and remembers what they stood behind.

    Args:
        read: reads a chunk from the store, None if it is not there; without it there is no store.

    Attributes:
        write: stores what other chunks stand behind; None: nothing is stored here.
    """

    def __init__(self, adapter: DecoderAdapter, read: Read | None = None) -> None:
        self._adapter = adapter
        self._read = read
        self.write: Write | None = None
        self._parts: OrderedDict[str, tuple[tuple[int, ...], EncodedChunk]] = OrderedDict()

    def compute(self, address: Address) -> Steps[ComputedChunk]:
        """Computes the chunk at `address`; pauses where the layer loop does."""
        adapter = self._adapter
        flops = chunk_prefill(adapter, len(address.ids), behind=len(address.prefix_ids))
        parts: list[EncodedChunk] = []
        for part in address.parts:
            stored, cost = yield from self._part(part)
            parts.append(stored)
            flops += cost
        k, v, sketch = yield from self._rows(address, parts)
        # Encoded and decoded as the store would do it, so that this prompt selects the same blocks
        # as a later one that reads the stored sketch.
        as_stored = Sketch.of(sketch.sketch().tensors()).to(adapter.device)
        pin = adapter.device.type == "cuda"
        computed = ComputedChunk(encode_chunk(address.spec, k, v, pin=pin), as_stored, flops)
        if address.part_key:  # S, and the documents are computed behind it
            raw = replace(address.spec, codec="raw")
            self._keep(address.part_key, address.ids, encode_chunk(raw, k, v, pin=pin))
        return computed

    def forget(self, ids: tuple[int, ...]) -> None:
        """Drops parts that contain these tokens, because their text was deleted."""
        for key in [key for key, (kept, _) in self._parts.items() if _contains(kept, ids)]:
            del self._parts[key]

    def _part(self, part: Address) -> Steps[tuple[EncodedChunk, float]]:
        """KV of a part, and the operations that computing it took now."""
        kept = self._parts.get(part.key)
        if kept is not None:
            self._parts.move_to_end(part.key)
            return kept[1], 0.0
        found = (yield from self._stored(part)) if part.parts else None
        if found is not None:
            self._keep(part.key, part.ids, found)
            return found, 0.0
        computed = yield from self.compute(part)
        self._keep(part.key, part.ids, computed.chunk)
        if self.write is not None and part.parts:  # S alone is short
            self.write(part, computed)
        return computed.chunk, computed.flops

    def _keep(self, key: str, ids: tuple[int, ...], stored: EncodedChunk) -> None:
        self._parts[key] = (ids, stored)
        while len(self._parts) > MAX_PARTS:
            self._parts.popitem(last=False)

    def _stored(self, address: Address) -> Steps[EncodedChunk | None]:
        if self._read is None:
            return None
        reading = self._read(address)
        while not reading.done():
            yield reading
        return reading.result()

    def _rows(
        self, address: Address, parts: Sequence[CachedSegment]
    ) -> Steps[tuple[list[Tensor], list[Tensor], SketchBuilder]]:
        """Its keys before RoPE and values at every layer, and what its sketch is made of.

        Args:
            parts: KV of what stands before it.
        """
        adapter = self._adapter
        layout = PromptLayout.of(
            (), [*(part.ids for part in address.parts), address.ids], [],
            uncached=[False] * (1 + len(parts)) + [True], device=adapter.device,
        )  # fmt: skip
        k: list[Tensor] = []
        v: list[Tensor] = []
        sketch = SketchBuilder(0)

        def capture(view: LayerView) -> None:
            k.append(view.fresh_k.clone())
            v.append(view.fresh_v.clone())
            sketch.add(view)

        scratch = ScratchKV(adapter, layout.tokens)
        cached = [None, *parts, None]
        for awaited in prefill(adapter, layout, cached, Pie(), scratch, capture=capture):
            yield awaited
            if len(k) == adapter.layers:
                break  # all KV is captured; the last layer's output is not needed
        return k, v, sketch


def _contains(prefix: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return any(
        prefix[start : start + len(ids)] == ids for start in range(len(prefix) - len(ids) + 1)
    )
