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
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate

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
from kvstitch.service.worker.model.mixer_state import State, StoredState
from kvstitch.service.worker.model.model_facts import chunk_prefill
from kvstitch.service.worker.steps import Steps

# Parts whose KV is kept in memory: S and three primers of three chunks, and as chunks of several
# collections or tenants take turns some others; few, because each holds the memory of a chunk.
MAX_PARTS = 12


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
        prefixes: list[list[tuple[Address, EncodedChunk]]] = []
        for needed in addresses[0].all_parts:
            prefixes.append([])
            for part in needed:
                stored, cost = yield from self._part(part)
                prefixes[-1].append((part, stored))
                before += cost
        chunks = yield from chunk_rows(decoder, addresses, prefixes, extra=extra)
        pin = decoder.device.type == "cuda"
        computed = []
        for address, chunk in zip(addresses, chunks, strict=True):
            states = packed_states(decoder, address.spec.codec, chunk.states)
            encoded = encode_chunk(address.spec, chunk.k, chunk.v, states=states, pin=pin)
            flops = chunk_prefill(decoder, len(address.ids), behind=address.prefix_lengths)
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


class _Prefix:
    """What chunks stand behind, and where they attend to it, one after the other."""

    def __init__(
        self,
        decoder: DecoderModel,
        parts: Sequence[tuple[Address, CachedSegment]],
        lengths: Sequence[int],
    ) -> None:
        device = decoder.device
        self.parts = parts
        self.layout = PromptLayout.of(
            (), [part.ids for part, _ in parts], [],
            uncached=[False] * (1 + len(parts)), device=device,
        )  # fmt: skip
        self.tokens = self.layout.tokens
        self.rows = [torch.arange(self.tokens, self.tokens + n, device=device) for n in lengths]
        self.positions = torch.cat(self.rows)
        self.scratch = ScratchKV(decoder, self.tokens + max(lengths))
        stored = [None, *(stored for _, stored in parts)]
        self.placer = kv_placer(decoder, self.layout, stored, self.layout.all_rows, self.scratch)


def chunk_rows(
    decoder: DecoderModel,
    addresses: Sequence[Address],
    prefixes: Sequence[Sequence[tuple[Address, CachedSegment]]],
    *,
    extra: ChunkExtra | None = None,
) -> Steps[list[Rows]]:
    """Compute keys before RoPE and values of chunks at every layer. Of several prefixes each row
    takes the mean of what it attends to behind each of them. Extra tensors, which say how a
    chunk's tokens look at it, are those behind the first."""
    lengths = [len(address.ids) for address in addresses]
    behind = [_Prefix(decoder, parts, lengths) for parts in prefixes]
    chunks: list[Rows] = []
    for end, tokens in zip(accumulate(lengths), lengths, strict=True):
        builder = None if extra is None else extra.builder()
        chunks.append(Rows(slice(end - tokens, end), [], [], builder))
    ids = [token for address in addresses for token in address.ids]
    x = decoder.embed(torch.tensor(ids, device=decoder.device))
    # Where no mixers follow, nothing reads the last layer's output.
    ends = decoder.layers - (not decoder.ends_with_mixers)
    with ExitStack() as stack:
        for prefix in behind:
            stack.enter_context(prefix.placer)
        for layer in range(decoder.layers):
            if decoder.mixers:
                x = yield from _mix(decoder, layer, x, chunks, behind)
            q, k, v = yield from qkv(decoder, layer, x)
            k, v = k.clone(), v.clone()  # without the queries, in whose memory they lie
            for chunk in chunks:
                chunk.k.append(k[chunk.cut])
                chunk.v.append(v[chunk.cut])
            attended = []
            for prefix in behind if layer < ends or extra is not None else ():
                first = prefix is behind[0]
                attended.append((yield from _attend(decoder, layer, q, chunks, prefix, first)))
            if layer < ends:
                x = yield from finish(decoder, layer, x, _mean(attended))
            yield None
        if decoder.ends_with_mixers:
            yield from _mix(decoder, decoder.layers, x, chunks, behind)
    return chunks


def _attend(
    decoder: DecoderModel,
    layer: int,
    q: Tensor,
    chunks: Sequence[Rows],
    prefix: _Prefix,
    first: bool,
) -> Steps[Tensor]:
    """Return what the chunks' rows attend to behind a prefix; extra tensors are of the `first`."""
    rope, rule, scratch = decoder.ropes[layer], decoder.rules[layer], prefix.scratch
    if prefix.tokens:
        prefix.placer.place(layer)
    # For all chunks at once: with short ones each call costs more than its work.
    rotated = rope.rotate(q, prefix.positions)
    out = []
    for chunk, rows in zip(chunks, prefix.rows, strict=True):
        k, v, queries = chunk.k[-1], chunk.v[-1], rotated[chunk.cut]
        kv = scratch.prompt_layer(layer, prefix.tokens + len(rows))
        write_rows(rope, *kv, k, v, rows)
        if first and chunk.extra is not None:
            view = ChunkLayer(queries, kv[0], q[chunk.cut], k, decoder.scale, rule)
            chunk.extra.add(view)
        out.append((yield from attend(decoder, layer, queries, rows, *kv)))
    return torch.cat(out)


def _mix(
    decoder: DecoderModel,
    layer: int,
    x: Tensor,
    chunks: Sequence[Rows],
    behind: Sequence[_Prefix],
) -> Steps[Tensor]:
    """Run the chunks through the mixers before a layer, behind the mean state of the prefixes."""
    stored = [
        [stored_states(decoder, part, layer, len(address.ids)) for address, part in prefix.parts]
        for prefix in behind
    ]
    for chunk in chunks:
        chunk.states.append([])
    for number, index in enumerate(decoder.mixers[layer]):
        states: list[State] = []
        for parts in stored:
            state: State | None = None
            for part in parts:
                state = part[number].behind(state)
            states += [] if state is None else [state]
        before = State(*map(_mean, zip(*states, strict=True))) if states else None
        out: list[Tensor] = []
        for chunk in chunks:
            rows, *_ = yield from decoder.mix(index, x[chunk.cut], before, stored=chunk.states[-1])
            out.append(rows)
        x = torch.cat(out)
    return x


def _mean(same: Sequence[Tensor]) -> Tensor:
    return same[0] if len(same) == 1 else torch.stack([*same]).float().mean(0).to(same[0].dtype)


def packed_states(
    decoder: DecoderModel, codec: str, layers: Sequence[Sequence[StoredState]]
) -> list[Tensor] | None:
    """Return the bytes of what a chunk stores for the mixers before each layer, by layer; None
    where there are none."""
    shape = decoder.mixer
    if shape is None:
        return None
    packed = [shape.packed(state, decoder.dtype, codec) for states in layers for state in states]
    each, nothing = decoder.mixers_per_layer, torch.empty(0, dtype=torch.uint8)
    starts = range(0, decoder.layers * each, each)
    return [torch.cat([nothing, *packed[start : start + each]]) for start in starts]


def _contains(prefix: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return any(
        prefix[start : start + len(ids)] == ids for start in range(len(prefix) - len(ids) + 1)
    )
