"""Computes one chunk's KV and sketch, behind the tokens that its address names.

    S ‖ other chunks │ the chunk
    ─── prefix ──────┤ its rows are computed, over the prefix's KV

Many chunks stand behind the same prefix, so its KV is computed once and kept for the next ones. It
is kept as it was computed, because another codec would change the chunks. A prefix of neighbours is
nobody else's: it is put together from S and the chunks that each of them is behind S, which are
read from the store, or computed too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstore import ChunkSpec, EncodedChunk, encode_chunk
from service.worker.core.flops import chunk_prefill
from service.worker.core.layer_view import CachedSegment, LayerView
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


Read = Callable[[Address], "Future[EncodedChunk | None]"]


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
    """Computes chunks, and remembers the prefixes that they stood behind.

    Args:
        read: reads a chunk from the store, None if it is not there; without it there is no store.
    """

    def __init__(self, adapter: DecoderAdapter, read: Read | None = None) -> None:
        self._adapter = adapter
        self._read = read
        self._prefixes: OrderedDict[tuple[int, ...], EncodedChunk] = OrderedDict()

    def compute(self, address: Address) -> Steps[ComputedChunk]:
        """Computes the chunk at `address`; pauses where the layer loop does."""
        adapter, around = self._adapter, sum(len(each.ids) for each in address.neighbours)
        before = address.prefix_ids[: len(address.prefix_ids) - around]
        flops = chunk_prefill(adapter, len(address.ids), behind=len(address.prefix_ids))
        prefix: list[tuple[tuple[int, ...], CachedSegment]] = []
        if before:
            flops += 0.0 if before in self._prefixes else chunk_prefill(adapter, len(before))
            prefix = [(before, (yield from self._prefix(before, address.spec)))]
        for neighbour in address.neighbours:
            stored = yield from self._stored(neighbour)
            if stored is None:
                computed = yield from self.compute(neighbour)
                stored, flops = computed.chunk, flops + computed.flops
            prefix.append((neighbour.ids, stored))
        k, v, sketch = yield from self._rows(prefix, address.ids)
        if not address.prefix_ids:  # S, and the documents are computed behind it
            self._keep(address.spec, address.ids, k, v)
        # Encoded and decoded as the store would do it, so that this prompt selects the same blocks
        # as a later one that reads the stored sketch.
        as_stored = Sketch.of(sketch.sketch().tensors()).to(adapter.device)
        pin = adapter.device.type == "cuda"
        return ComputedChunk(encode_chunk(address.spec, k, v, pin=pin), as_stored, flops)

    def forget(self, ids: tuple[int, ...]) -> None:
        """Drops prefixes that contain these tokens, because their text was deleted."""
        for prefix in [p for p in self._prefixes if _contains(p, ids)]:
            del self._prefixes[prefix]

    def _prefix(self, ids: tuple[int, ...], spec: ChunkSpec) -> Steps[EncodedChunk]:
        """KV of the tokens before the chunk, computed as a whole."""
        found = self._prefixes.get(ids)
        if found is None:
            k, v, _ = yield from self._rows([], ids)
            found = self._keep(spec, ids, k, v)
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

    def _stored(self, address: Address) -> Steps[EncodedChunk | None]:
        if self._read is None:
            return None
        reading = self._read(address)
        while not reading.done():
            yield reading
        return reading.result()

    def _rows(
        self, prefix: Sequence[tuple[tuple[int, ...], CachedSegment]], ids: tuple[int, ...]
    ) -> Steps[tuple[list[Tensor], list[Tensor], SketchBuilder]]:
        """Keys before RoPE and values of `ids` at every layer, and what their sketch is made of.

        Args:
            prefix: ids and KV of what stands before them.
        """
        adapter = self._adapter
        before, stored = [ids for ids, _ in prefix], [kv for _, kv in prefix]
        layout = PromptLayout.of(
            (), [*before, ids], [], uncached=[False] * (1 + len(before)) + [True],
            device=adapter.device,
        )  # fmt: skip
        k: list[Tensor] = []
        v: list[Tensor] = []
        sketch = SketchBuilder(0)

        def capture(view: LayerView) -> None:
            k.append(view.fresh_k.clone())
            v.append(view.fresh_v.clone())
            sketch.add(view)

        scratch = ScratchKV(adapter, layout.tokens)
        cached = [None, *stored, None]
        for awaited in prefill(adapter, layout, cached, Pie(), scratch, capture=capture):
            yield awaited
            if len(k) == adapter.layers:
                break  # all KV is captured; the last layer's output is not needed
        return k, v, sketch


def _contains(prefix: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return any(
        prefix[start : start + len(ids)] == ids for start in range(len(prefix) - len(ids) + 1)
    )
