"""Computes the KV of chunks, and what methods need beside it, behind what their addresses name.

    S ‖ other chunks │ chunk 1
    ─── parts ───────┤ chunk 2
                     │ chunk 3
                     └── their rows are computed, over the parts' KV

Many chunks stand behind the same parts, so the KV of these is computed once: it is kept in memory
for the next chunks, and in the store. Several such chunks are computed together: short ones by
themselves leave cores, or a GPU, idle. Their rows share the products with the weights; each chunk
attends to the parts and to itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from kvstitch.kvstore import EncodedChunk, encode_chunk
from kvstitch.service.worker.forward.kv_placement import kv_placer, write_rows
from kvstitch.service.worker.forward.layer_ops import attend, finish, qkv, tile_rows
from kvstitch.service.worker.forward.mixing import stored_states
from kvstitch.service.worker.kv.pool import SequenceStates
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import (
    CachedSegment,
    ChunkExtra,
    ChunkLayer,
    ExtraBuilder,
)
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.mixer_state import State, StoredState, mean
from kvstitch.service.worker.model.model_facts import chunk_prefill
from kvstitch.service.worker.steps import Steps

# Parts whose KV is kept in memory. More than one, because chunks of several groups, collections or
# tenants take turns; few, because each holds as much memory as a chunk of its length.
MAX_PARTS = 8


Read = Callable[[Address], "Future[EncodedChunk | None]"]
Write = Callable[[Address, "ComputedChunk"], None]


class ScratchKV:
    """A KV cache with memory for one layer, because a full prefill never reads an earlier layer,
    but for those that other blocks borrow."""

    def __init__(self, decoder: DecoderModel, tokens: int) -> None:
        shape = (decoder.kv_heads, tokens, decoder.head_dim)
        self.tokens = tokens
        self.states = SequenceStates()
        empty = partial(torch.empty, shape, dtype=decoder.dtype, device=decoder.device)
        self._layers = {layer: (empty(), empty()) for layer in (-1, *set(decoder.borrowed))}

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        k, v = self._layers.get(layer) or self._layers[-1]
        return k[:, :tokens], v[:, :tokens]


@dataclass(frozen=True)
class ComputedChunk:
    """A chunk that was computed here, encoded for the store."""

    chunk: EncodedChunk
    flops: float  # operations that this took, with those of its prefix if that was not at hand
    # what was asked for beside it, with its tensors as they are stored
    extra: ChunkExtra | None = None
    extra_tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass
class Rows:
    """A chunk while its rows are computed."""

    cut: slice
    positions: Tensor
    end: int
    k: list[Tensor]
    v: list[Tensor]
    extra: ExtraBuilder | None
    states: list[list[StoredState]] = field(default_factory=list)  # of the mixers of each layer


class ChunkPrefill:
    """Computes chunks, and remembers what they stood behind; without `read` there is no store."""

    def __init__(self, decoder: DecoderModel, read: Read | None = None) -> None:
        self._decoder = decoder
        self._read = read
        # stores what other chunks stand behind; None: nothing is stored here
        self.write: Write | None = None
        self._parts: OrderedDict[str, tuple[tuple[int, ...], EncodedChunk]] = OrderedDict()

    def compute(self, address: Address, *, extra: ChunkExtra | None = None) -> Steps[ComputedChunk]:
        """Compute the chunk at `address`, and what is wanted beside it."""
        [computed] = yield from self.compute_together([address], extra=extra)
        return computed

    def compute_together(
        self, addresses: Sequence[Address], *, extra: ChunkExtra | None = None
    ) -> Steps[list[ComputedChunk]]:
        """Compute chunks of one LoRA adapter behind the same parts; pauses after every layer or
        earlier."""
        decoder = self._decoder.with_lora(addresses[0].lora)
        before = 0.0
        runs: list[list[Rows]] = []
        for needed in addresses[0].all_parts:
            parts: list[EncodedChunk] = []
            for part in needed:
                stored, cost = yield from self._part(part)
                parts.append(stored)
                before += cost
            # Extra tensors say how a chunk's tokens look at it, which the first prefix shows.
            first = extra if not runs else None
            rows = yield from chunk_rows(decoder, addresses, needed, parts, extra=first)
            runs.append(rows)
        pin = decoder.device.type == "cuda"
        computed = []
        for address, chunk in zip(addresses, _means(runs), strict=True):
            states = _packed(decoder, address, chunk)
            encoded = encode_chunk(address.spec, chunk.k, chunk.v, states=states, pin=pin)
            flops = sum(
                chunk_prefill(decoder, len(address.ids), behind=prefix)
                for prefix in address.prefix_lengths
            )
            tensors = {} if chunk.extra is None else chunk.extra.tensors()
            computed.append(ComputedChunk(encoded, before + flops, extra, tensors))
            before = 0.0  # counted once
            # S, and pieces with the next piece of their document behind them; others are read.
            if len(address.parts) != 1 and not address.stitched and not address.other_parts:
                self._keep(address.key, address, encoded)
        return computed

    @property
    def rows_together(self) -> int:
        """As many rows as keep the device busy; more chunks together gain nothing."""
        return tile_rows(self._decoder.device)

    def forget(self, ids: tuple[int, ...]) -> None:
        """Drop parts that contain or have seen these tokens, because their text was deleted."""
        for key in [key for key, (kept, _) in self._parts.items() if _contains(kept, ids)]:
            del self._parts[key]

    def forget_all(self) -> None:
        """Drop all parts."""
        self._parts.clear()

    def _part(self, part: Address) -> Steps[tuple[EncodedChunk, float]]:
        """Return KV of a part, and the operations that computing it took now."""
        kept = self._parts.get(part.key)
        if kept is not None:
            self._parts.move_to_end(part.key)
            return kept[1], 0.0
        found = (yield from self._read_stored(part)) if part.parts else None
        if found is not None:
            self._keep(part.key, part, found)
            return found, 0.0
        computed = yield from self.compute(part)
        self._keep(part.key, part, computed.chunk)
        if self.write is not None and part.parts:  # S alone is short
            self.write(part, computed)
        return computed.chunk, computed.flops

    def _keep(self, key: str, part: Address, stored: EncodedChunk) -> None:
        seen = (*part.prefix_ids, *part.ids)  # all that is to be deleted with any of it
        self._parts[key] = (seen, stored)
        while len(self._parts) > MAX_PARTS:
            self._parts.popitem(last=False)

    def _read_stored(self, address: Address) -> Steps[EncodedChunk | None]:
        if self._read is None:
            return None
        reading = self._read(address)
        while not reading.done():
            yield reading
        return reading.result()


def chunk_rows(
    decoder: DecoderModel,
    addresses: Sequence[Address],
    behind: Sequence[Address],
    parts: Sequence[CachedSegment],
    *,
    extra: ChunkExtra | None = None,
) -> Steps[list[Rows]]:
    """Compute keys before RoPE and values of chunks at every layer."""
    device = decoder.device
    before = PromptLayout.of(
        (), [part.ids for part in behind], [],
        uncached=[False] * (1 + len(parts)), device=device,
    )  # fmt: skip
    chunks: list[Rows] = []
    end = 0
    for address in addresses:
        start, end = end, end + len(address.ids)
        stop = before.tokens + end - start
        positions = torch.arange(before.tokens, stop, device=device)
        builder = None if extra is None else extra.builder()
        chunks.append(Rows(slice(start, end), positions, stop, [], [], builder))
    # One after the other, the chunks attend in the same place behind the parts.
    longest = max(len(address.ids) for address in addresses)
    scratch = ScratchKV(decoder, before.tokens + longest)
    ids = [token for address in addresses for token in address.ids]
    positions = torch.cat([chunk.positions for chunk in chunks])
    x = decoder.embed(torch.tensor(ids, device=device))
    # Where no mixers follow, nothing reads the last layer's output.
    ends = decoder.layers - (not decoder.ends_with_mixers)
    with kv_placer(decoder, before, [None, *parts], before.all_rows, scratch) as placer:
        for layer in range(decoder.layers):
            if before.tokens:
                placer.place(layer)
            if decoder.mixers:
                x = yield from _mix(decoder, layer, x, chunks, behind, parts)
            q, k, v = yield from qkv(decoder, layer, x)
            # For all chunks at once: with short ones each call costs more than its work.
            rotated = decoder.ropes[layer].rotate(q, positions)
            kept = k.clone(), v.clone()  # without the queries, in whose memory they lie
            attended = []
            for chunk in chunks:
                queries = q[chunk.cut], rotated[chunk.cut]
                kv = _write(decoder, layer, chunk, queries, kept, scratch)
                if layer < ends:
                    rows = attend(decoder, layer, queries[1], chunk.positions, *kv)
                    attended.append((yield from rows))
            if layer < ends:
                x = yield from finish(decoder, layer, x, torch.cat(attended))
            yield None
        if decoder.ends_with_mixers:
            yield from _mix(decoder, decoder.layers, x, chunks, behind, parts)
    return chunks


def _mix(
    decoder: DecoderModel,
    layer: int,
    x: Tensor,
    chunks: Sequence[Rows],
    behind: Sequence[Address],
    parts: Sequence[CachedSegment],
) -> Steps[Tensor]:
    """Run the chunks through the mixers before a layer, each behind the parts."""
    stored_parts = [
        stored_states(decoder, part, layer, len(address.ids))
        for part, address in zip(parts, behind, strict=True)
    ]
    for chunk in chunks:
        chunk.states.append([])
    for number, index in enumerate(decoder.mixers[layer]):
        state: State | None = None
        for part in stored_parts:
            state = part[number].behind(state)
        out: list[Tensor] = []
        for chunk in chunks:
            stored = chunk.states[-1]
            rows, _ = yield from decoder.mix(index, x[chunk.cut], state, stored=stored)
            out.append(rows)
        x = torch.cat(out)
    return x


def _packed(decoder: DecoderModel, address: Address, chunk: Rows) -> list[Tensor] | None:
    """Return the bytes of what a chunk stores for its mixers, by layer."""
    shape = decoder.mixer
    if shape is None:
        return None
    packed = [
        shape.packed(state, decoder.dtype, address.spec.codec)
        for states in chunk.states for state in states
    ]  # fmt: skip
    each, nothing = decoder.mixers_per_layer, torch.empty(0, dtype=torch.uint8)
    starts = range(0, decoder.layers * each, each)
    return [torch.cat([nothing, *packed[start : start + each]]) for start in starts]


def _write(
    decoder: DecoderModel,
    layer: int,
    chunk: Rows,
    queries: tuple[Tensor, Tensor],
    kept: tuple[Tensor, Tensor],
    scratch: ScratchKV,
) -> tuple[Tensor, Tensor]:
    """Keep a layer's KV of a chunk, and write it behind that of the parts."""
    k, v = kept[0][chunk.cut], kept[1][chunk.cut]
    kv = scratch.prompt_layer(layer, chunk.end)
    write_rows(decoder.ropes[layer], *kv, k, v, chunk.positions)
    chunk.k.append(k)
    chunk.v.append(v)
    if chunk.extra is not None:
        fresh, rotated = queries
        rule = decoder.rules[layer]
        chunk.extra.add(ChunkLayer(rotated, kv[0], fresh, k, decoder.scale, rule))
    return kv


def _means(runs: Sequence[Sequence[Rows]]) -> Sequence[Rows]:
    """Return the chunks of the first run with the mean KV of all runs."""
    first, *others = runs
    for number, chunk in enumerate(first if others else ()):
        for name in ("k", "v"):
            layers = getattr(chunk, name)
            for layer, own in enumerate(layers):
                every = [own, *(getattr(run[number], name)[layer] for run in others)]
                layers[layer] = torch.stack(every).float().mean(0).to(own.dtype)
        for layer, of_layer in enumerate(chunk.states):
            for place in range(len(of_layer)):
                of_layer[place] = mean([run[number].states[layer][place] for run in runs])
    return first


def _contains(prefix: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return any(
        prefix[start : start + len(ids)] == ids for start in range(len(prefix) - len(ids) + 1)
    )
