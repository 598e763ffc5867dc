"""Layers of few rows over a prompt's KV, recorded on a GPU and replayed: a launch for many layers.

    numbers     ids [M] ‖ positions [M] ‖ per layer where the prompt lies in the pool   one upload
    groups      layers │ 0 │ 1 2 3 │ 4 .. 15 │ 16 .. │        a recording each, x kept between them

Launching the operations of a layer takes longer than computing few rows. Which rows they are and
where their prompt lies only stands in `numbers`, so a recording serves every prompt. It is for a
number of rows, its *bucket*: rows behind those given see nothing and write nothing. Layers are
placed in the cache before the group that reads them is replayed.

Nothing is recorded while a request waits: what a prompt would have used is recorded in spare time
(this is a job of `service.worker.engine.idle_work`), and compared there with the layer loop's own
functions. If one differs or cannot be recorded, all prefills run unrecorded from then on, and a
warning is logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.worker.forward.kv_placement import write_and_rotate
from service.worker.forward.recording import CudaGraphs, Play, Record
from service.worker.forward.transfers import GROUPS
from service.worker.kernels.gpu import (
    attention_scores_gpu,
    index_causal_attention,
    rotation_gpu,
)
from service.worker.kernels.gpu.index_causal_attention import EXTENT
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.model.attention import attend_rows, attend_with_scores
from service.worker.model.attention_rule import PLAIN
from service.worker.model.decoder import DecoderModel

log = logging.getLogger("kvstitch.prefill")

MAX_ROWS = 512
"""More rows take longer to compute than to launch."""
MIN_KEYS = 2048
"""Smallest number of keys that scores are recorded for; larger ones are powers of two."""
SPARE_KEYS = 100
"""Keys before the rows of the prompt that a recording is compared on."""
TOLERANCE = 2**-5
"""Allowed difference as a share of the largest number: the same products by other kernels, rounded
to bfloat16 in up to a group's layers."""


@dataclass(frozen=True)
class Shape:
    """What a recording is for.

    Attributes:
        rows: that are computed, padding included.
        first: the first layer.
        stop: the layer after the last.
        scored: layers whose attention is scored. Of the last of them nothing but the scores is
            computed. Empty: no scores.
        keys: that are scored, padding included.
    """

    rows: int
    first: int
    stop: int
    scored: range = range(0)
    keys: int = 0

    @property
    def groups(self) -> list[range]:
        """The layers that are replayed at once."""
        return [
            range(max(group.start, self.first), min(group.stop, self.stop))
            for group in layer_groups(self.stop)
            if group.stop > self.first
        ]


@dataclass(frozen=True)
class Tensors:
    """What a shape's recordings read and write, on the device; named as in `Shape`.

    Attributes:
        numbers: the file's header says what stands where, int64.
        x: hidden states before the group that is replayed next `[rows, hidden]`.
        weights: of the rows' attention in scores `[rows]` fp32.
        scores: by scored layer and KV head `[layers, kv_heads, keys]` fp32.
    """

    numbers: Tensor
    x: Tensor
    weights: Tensor
    scores: Tensor

    @property
    def ids(self) -> Tensor:
        return self.numbers[: len(self.x)]

    @property
    def positions(self) -> Tensor:
        return self.numbers[len(self.x) : 2 * len(self.x)]

    def extent(self, layer: int) -> Tensor:
        return self.numbers[2 * len(self.x) :][EXTENT * layer : EXTENT * (layer + 1)]


@dataclass
class _Recorded:
    """The recordings of a shape, of its first groups.

    Attributes:
        taken: whether a prefill is between two groups.
    """

    tensors: Tensors
    groups: dict[range, Play] = field(default_factory=dict)
    taken: bool = False


@dataclass(frozen=True)
class Replay:
    """One prompt's rows, computed by recordings group by group."""

    shape: Shape
    tensors: Tensors
    rows: int
    groups: dict[range, Play]

    def play(self, group: range) -> None:
        """Compute the layers of a group, which must be in place in the cache."""
        self.groups[group]()

    @property
    def x(self) -> Tensor:
        """Hidden states after the last group that was played `[rows, hidden]`."""
        return self.tensors.x[: self.rows].clone()

    def scores(self, tokens: int) -> Tensor:
        """Return the scores of the prompt's tokens, by layer `[scored layers, tokens]` fp32."""
        return self.tensors.scores[:, :, :tokens].sum(1)


class PrefillGraphs:
    """Recordings for one decoder and the prompts in one pool; a `Job` that makes them.

    Args:
        record: how layers are recorded; by default as CUDA graphs.
    """

    def __init__(self, decoder: DecoderModel, pool: KVPool, record: Record | None = None) -> None:
        self._decoder = decoder
        self._pool = pool
        self._record = record or CudaGraphs()
        self._recorded: dict[Shape, _Recorded] = {}
        self._wanted: deque[Shape] = deque()
        self._off = False

    @contextmanager
    def replay(
        self,
        shape: Shape | None,
        kv: object,
        *,
        rows: Tensor,
        tokens: int,
        ids: Tensor | None = None,
        x: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Iterator[Replay | None]:
        """Begin to compute rows of a prompt; None if they must be computed unrecorded.

        Args:
            shape: what `shape` returned.
            kv: the prompt's KV.
            rows: in host memory, ascending `[m]`.
            tokens: of the prompt.
            ids: of the rows, in host memory `[m]`, for shapes from layer 0 on.
            x: hidden states of the rows before `shape.first`, for all others.
            weights: of the rows' attention in scores, for shapes with any.
        """
        known = None if shape is None else self._ready(shape)
        in_pool = isinstance(kv, SequenceKV) and kv.pool is self._pool
        if known is None or shape is None or not in_pool or known.taken:
            yield None
            return
        assert isinstance(kv, SequenceKV)
        known.taken = True
        try:
            _fill(known.tensors, kv, rows, tokens, ids=ids, x=x, weights=weights)
            yield Replay(shape, known.tensors, len(rows), known.groups)
        finally:
            known.taken = False

    def first_recorded(self, first: int, stop: int) -> int | None:
        """Return the first layer from `first` on at which a recording can begin."""
        starts = (group.start for group in layer_groups(stop) if group.start >= first)
        return None if self._off else next(starts, None)

    def shape(
        self, rows: int, first: int, stop: int, *, scored: range = range(0), tokens: int = 0
    ) -> Shape | None:
        """Return the shape that so many rows fit best; None if none fits them well.

        Args:
            first: what `first_recorded` returned.
        """
        padded = bucket(rows)
        if self._off or padded is None:
            return None
        keys = max(MIN_KEYS, 1 << (tokens - 1).bit_length()) if len(scored) else 0
        return Shape(padded, first, stop, scored, keys)

    def _ready(self, shape: Shape) -> _Recorded | None:
        """Return a shape's recordings if they are complete; else they are wanted from now on."""
        known = self._recorded.get(shape)
        if known is not None and len(known.groups) == len(shape.groups):
            return known
        if shape not in self._wanted and not self._off:
            self._wanted.append(shape)
        return None

    # -- a job for spare time ---------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to record."""
        return not self._wanted

    def advance(self) -> None:
        """Record one group of a shape that was wanted, if the pool has room to try it."""
        shape = self._wanted[0]
        recorded = self._recorded.get(shape)
        if recorded is None:
            recorded = self._recorded[shape] = _Recorded(self._tensors(shape))
        missing = [group for group in shape.groups if group not in recorded.groups]
        kv = self._pool.reserve(shape.rows + SPARE_KEYS) if missing else None
        if kv is None:  # done, or wanted again by the next such prompt
            self._wanted.popleft()
            return
        try:
            recorded.groups[missing[0]] = self._record_group(
                shape, recorded.tensors, missing[0], kv
            )
        finally:
            kv.release()

    def fail_current(self, error: Exception) -> None:
        """Record and replay nothing any more."""
        log.warning("prefills run unrecorded: %s", error)
        self._off = True
        self._wanted.clear()
        self._recorded.clear()

    def _tensors(self, shape: Shape) -> Tensors:
        decoder, device = self._decoder, self._decoder.device
        numbers = 2 * shape.rows + EXTENT * decoder.layers
        scores = len(shape.scored), decoder.kv_heads, shape.keys
        return Tensors(
            torch.zeros(numbers, dtype=torch.int64, device=device),
            torch.zeros(shape.rows, decoder.hidden, dtype=decoder.dtype, device=device),
            torch.zeros(shape.rows, device=device),
            torch.zeros(scores, device=device),
        )

    def _record_group(self, shape: Shape, tensors: Tensors, group: range, kv: SequenceKV) -> Play:
        """Record a group; raises RuntimeError if it gives another result than the layer loop."""
        given = shape.rows - shape.rows // 5  # some rows are padding
        tokens = given + SPARE_KEYS
        random = torch.Generator().manual_seed(group.start)
        rows = torch.arange(SPARE_KEYS, tokens)
        ids = torch.randint(self._decoder.vocabulary, (given,), generator=random)
        hidden = torch.randn(given, self._decoder.hidden, generator=random)
        hidden = hidden.to(self._decoder.device, self._decoder.dtype)
        weights = torch.rand(given, generator=random).to(self._decoder.device)
        for layer in group:
            for x in kv.prompt_layer(layer, tokens):
                x.copy_(torch.randn(x.shape, generator=random).to(x.device, x.dtype))

        def fill() -> None:
            _fill(tensors, kv, rows, tokens, ids=ids, x=hidden, weights=weights)

        start = hidden if group.start else self._decoder.embed(ids.to(self._decoder.device))
        expected = self._unrecorded(shape, group, kv, rows, start, weights)
        fill()
        _, play = self._record(lambda: self._compute(shape, tensors, group))
        for layer in group:  # what the rows wrote before
            for x in kv.prompt_layer(layer, tokens):
                x[:, SPARE_KEYS:] = 0.0
        fill()
        play()
        found = [tensors.x[:given], *self._written(kv, group, tokens)]
        scores = [layer for layer in group if layer in shape.scored]
        found += [tensors.scores[layer - shape.scored.start, :, :tokens].sum(0) for layer in scores]
        for ours, theirs in zip(found, expected, strict=True):
            off = _difference(ours, theirs)
            if not off <= TOLERANCE:  # also for NaN
                raise RuntimeError(f"recorded layers of {shape.rows} rows are off by {off:.3g}")
        return play

    def _written(self, kv: SequenceKV, group: range, tokens: int) -> list[Tensor]:
        return [x.clone() for layer in group for x in kv.prompt_layer(layer, tokens)]

    def _unrecorded(
        self, shape: Shape, group: range, kv: SequenceKV, rows: Tensor, x: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """Return hidden states after the group, the KV of its layers, and the scores, all by what
        computes them where nothing is recorded."""
        decoder, tokens = self._decoder, int(rows[-1]) + 1
        there, scores = rows.to(decoder.device), []
        for layer in group:
            layer_kv = kv.prompt_layer(layer, tokens)
            q, k, v = decoder.qkv(layer, x)
            q = write_and_rotate(decoder.ropes[layer], layer_kv, q, k, v, there)
            if layer in shape.scored:
                attended, scored = attend_with_scores(q, *layer_kv, there, weights, decoder.scale)
                scores.append(scored)
            else:
                attended = attend_rows(q, *layer_kv, there, decoder.scale)
            if _goes_on(shape, layer):
                x = decoder.finish(layer, x, attended)
        return [x, *self._written(kv, group, tokens), *scores]

    def _compute(self, shape: Shape, tensors: Tensors, group: range) -> Tensor:
        """Compute the layers of a group from what stands in the tensors; this is recorded."""
        decoder, pool, kv_heads = self._decoder, self._pool, self._decoder.kv_heads
        x, positions = tensors.x, tensors.positions
        if not group.start:
            x = decoder.embed(tensors.ids)
        for layer in group:
            q, k, v = decoder.qkv(layer, x)
            rope, extent = decoder.ropes[layer], tensors.extent(layer)
            # The start of the layer's memory, for every head: `extent` says what lies where.
            k_all, v_all = (x[layer][:1].expand(kv_heads, -1, -1) for x in (pool.k, pool.v))
            q = rotation_gpu.write_with_queries(
                q,
                k,
                v,
                k_all,
                v_all,
                positions=positions,
                cos=rope.cos,
                sin=rope.sin,
                extent=extent,
            )
            if layer in shape.scored:
                attended = attention_scores_gpu.fill_scores(
                    q, k_all, v_all, positions, tensors.weights, decoder.scale,
                    tensors.scores[layer - shape.scored.start], extent=extent,
                )  # fmt: skip
            else:
                attended = index_causal_attention.attend(
                    q, k_all, v_all, positions, decoder.scale, extent=extent
                )
            if _goes_on(shape, layer):
                x = decoder.finish(layer, x, attended)
        tensors.x.copy_(x)
        return tensors.x


def supports(decoder: DecoderModel, pool: KVPool) -> bool:
    """Return whether layers of this decoder can be recorded: all they do is on a GPU, and does not
    depend on numbers."""
    if decoder.device.type != "cuda" or decoder.ranks is not None or decoder.lead is not None:
        return False
    if any(rule is not PLAIN for rule in decoder.rules):
        return False
    q = pool.all_k.new_empty(1, decoder.heads, decoder.head_dim)
    return rotation_gpu.supports(q) and attention_scores_gpu.supports(q, decoder.head_dim)


def bucket(rows: int) -> int | None:
    """Return how many rows are computed instead of so many: 8, 10, 12, 14, 16, 20, 24, 28, 32, ...

    None if there are too many, or if that is more than a third more.
    """
    if rows > MAX_ROWS:
        return None
    step = max(2, 1 << (max(rows, 1) - 1).bit_length() >> 3)
    padded = max(8, -(-rows // step) * step)
    return None if 3 * padded > 4 * rows else padded


def layer_groups(layers: int) -> list[range]:
    """Cut so many layers as they are copied to the device, if all have arrived."""
    groups: list[range] = []
    first = 0
    while first < layers:
        size = GROUPS[min(len(groups), len(GROUPS) - 1)]
        groups.append(range(first, min(first + size, layers)))
        first += size
    return groups


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference as a share of the largest number."""
    return float((ours.float() - theirs.float()).abs().max() / theirs.abs().max())


def _goes_on(shape: Shape, layer: int) -> bool:
    return not len(shape.scored) or layer + 1 < shape.stop


def _fill(
    tensors: Tensors,
    kv: SequenceKV,
    rows: Tensor,
    tokens: int,
    *,
    ids: Tensor | None,
    x: Tensor | None,
    weights: Tensor | None,
) -> None:
    """Write what a prompt's recordings read; the arguments are those of `PrefillGraphs.replay`."""
    given, padded = len(rows), len(tensors.x)
    start, capacity = kv.start[:, 0], kv.capacity[:, 0]
    d = kv.pool.k[0].shape[1]
    numbers = torch.zeros(len(tensors.numbers), dtype=torch.int64)
    if ids is not None:
        numbers[:given] = ids
    numbers[padded : padded + given] = rows
    extents = numbers[2 * padded :].view(-1, EXTENT)
    extents[:, 0], extents[:, 1] = start * d, capacity * d
    extents[:, 2], extents[:, 3] = tokens, given
    if numbers.device != tensors.numbers.device:
        numbers = numbers.pin_memory()
    tensors.numbers.copy_(numbers, non_blocking=True)
    if x is not None:
        tensors.x[:given].copy_(x)
    if weights is not None:
        tensors.weights[:given].copy_(weights)
