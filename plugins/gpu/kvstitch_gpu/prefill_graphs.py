"""Layers over a prompt's KV, recorded on a GPU and replayed: a launch for a group of layers.

Which rows they are and where their prompt lies only stands in one tensor (`recorded_tensors`), so a
recording serves every prompt of its *bucket*, a number of rows: those behind the rows given see
nothing and write nothing. Layers are placed in the cache before the group that reads them.

Nothing is recorded while a request waits: what a prompt would have used is recorded in spare time
(a job of `kvstitch.service.worker.engine.scheduler`), and compared there with the layer loop's own
functions. If one differs or cannot be recorded, all prefills run unrecorded from then on, and a
warning is logged. Recordings that take longer than the layer loop are not used.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kvstitch.service.worker.kv.pool import KVPool, SequenceKV
from kvstitch.service.worker.methods.stored_kv import Probed
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch_gpu.recorded_layers import compute, unrecorded
from kvstitch_gpu.recorded_steps import CudaGraphs, Play, Recorder
from kvstitch_gpu.recorded_tensors import (
    Given,
    Shape,
    Tensors,
    bucket,
    has_room,
    key_bucket,
)
from kvstitch_gpu.shift_gpu import KernelShift

log = logging.getLogger("kvstitch.prefill")

MAX_SHAPES = 64
"""Shapes whose recordings are kept; the one that was not used for longest is given up."""
SPARE_KEYS = 100
"""Keys before the rows of the prompt that a recording is compared on."""
TOLERANCE = 2**-5
"""Allowed difference as a share of the largest number: the same products by other kernels, rounded
to bfloat16 in up to a group's layers."""


@dataclass
class _Recorded:
    """The recordings of a shape, of its first groups."""

    tensors: Tensors
    groups: dict[range, Play] = field(default_factory=dict)
    taken: bool = False
    saved_s: float = 0.0


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

    @property
    def logits(self) -> Tensor:
        """Logits of the last row after the last group `[vocabulary]` fp32."""
        return self.tensors.logits[0].clone()

    def scores(self, tokens: int) -> Tensor:
        """Return the scores of the prompt's tokens, by layer `[scored layers, tokens]` fp32."""
        return self.tensors.scores[:, :, :tokens].sum(1)


class PrefillGraphs:
    """Recordings for one decoder and the prompts in one pool, by default CUDA graphs; a `Job`
    that makes them."""

    def __init__(self, decoder: DecoderModel, pool: KVPool, record: Recorder | None = None) -> None:
        self._decoder = decoder
        self._pool = pool
        self._record = record or CudaGraphs()
        self._recorded: dict[Shape, _Recorded] = {}  # the one that was used last is the last
        self._wanted: deque[Shape] = deque()
        self._recording: Iterator[None] | None = None
        self._off = False

    @contextmanager
    def replay(self, shape: Shape | None, kv: object, given: Given) -> Iterator[Replay | None]:
        """Begin to compute rows of a prompt by recordings; None if they must be computed
        unrecorded."""
        known = None if shape is None else self._ready(shape)
        in_pool = isinstance(kv, SequenceKV) and kv.pool is self._pool
        if known is None or shape is None or not in_pool or known.taken:
            yield None
            return
        assert isinstance(kv, SequenceKV)
        known.taken = True
        try:
            known.tensors.fill(kv, given)
            yield Replay(shape, known.tensors, len(given.rows), known.groups)
        finally:
            known.taken = False

    def shape(
        self,
        rows: int,
        first: int,
        stop: int,
        *,
        tokens: int,
        scored: range = range(0),
        from_attention: bool = False,
        shift: KernelShift | None = None,
        copied_from: int = 0,
    ) -> Shape | None:
        """Return the shape that so many rows of a prompt of so many tokens fit best; None if
        none fits them well. The other arguments are as in `Shape`."""
        padded = bucket(rows)
        if self._off or padded is None:
            return None
        every = rows == tokens and not from_attention and not len(scored)
        shape = Shape(
            rows=padded,
            first=first,
            stop=stop,
            keys=padded if every else key_bucket(tokens),
            scored=scored,
            every=every,
            from_attention=from_attention,
            shifted=shift is not None,
            answers=stop == self._decoder.layers and not len(scored),
            copied_from=0 if every else copied_from,
        )
        return shape if shift is None or has_room(shape, shift) else None

    def _ready(self, shape: Shape) -> _Recorded | None:
        """Return a shape's recordings if they are complete and faster than the layer loop; where
        they are not complete, they are wanted from now on."""
        known = self._recorded.pop(shape, None)
        if known is not None:
            self._recorded[shape] = known
            if len(known.groups) == len(shape.groups):
                return known if known.saved_s >= 0 else None
        if shape not in self._wanted and not self._off:
            self._wanted.append(shape)
        return None

    # -- a job for spare time ---------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to record."""
        return not self._wanted and self._recording is None

    def advance(self) -> None:
        """Do one step of recording a wanted group, no longer than a few prefills of its layers."""
        if self._recording is None:
            self._recording = self._record_wanted()
        for _ in self._recording:
            return  # more of its steps are left
        self._recording = None

    def _record_wanted(self) -> Iterator[None]:
        """Record one group of the first shape, if the pool has room to try it."""
        shape = self._wanted[0]
        recorded = self._recorded.get(shape)
        if recorded is None:
            self._make_room()
            recorded = self._recorded[shape] = _Recorded(Tensors.of(shape, self._decoder))
        missing = [group for group in shape.groups if group not in recorded.groups]
        given = _example(self._decoder, shape)
        kv = self._pool.reserve(given.tokens) if missing else None
        if kv is None:  # done, or wanted again by the next such prompt
            self._wanted.popleft()
            return
        try:
            yield from self._record_group(shape, recorded, missing[0], kv, given)
        finally:
            kv.release()

    def fail_current(self, error: Exception) -> None:
        """Record and replay nothing any more."""
        log.warning("prefills run unrecorded: %s", error)
        self._off = True
        self._recording = None
        self._wanted.clear()
        self._recorded.clear()

    def _make_room(self) -> None:
        """Give up recordings, so that there is room for another shape's."""
        free = [shape for shape, known in self._recorded.items() if not known.taken]
        for shape in free[: max(0, len(self._recorded) + 1 - MAX_SHAPES)]:
            del self._recorded[shape]

    def _record_group(
        self, shape: Shape, recorded: _Recorded, group: range, kv: SequenceKV, given: Given
    ) -> Iterator[None]:
        """Record a group, step by step; raises RuntimeError if the layer loop gives another
        result."""
        decoder, tensors = self._decoder, recorded.tensors
        stored = [x for layer in group for x in kv.prompt_layer(layer, given.tokens)]
        random = torch.Generator().manual_seed(group.start)
        for x in stored:
            x.copy_(torch.randn(x.shape, generator=random).to(x.device, x.dtype))
        before = [x.clone() for x in stored]

        def by_loop() -> list[Tensor]:
            return unrecorded(decoder, shape, group, kv, given)

        wanted = by_loop()
        wanted += [x.clone() for x in stored]
        yield
        tensors.fill(kv, given)
        out, play = self._record(lambda: compute(decoder, self._pool, shape, tensors, group))
        yield
        for x, was in zip(stored, before, strict=True):
            x.copy_(was)
        tensors.fill(kv, given)
        play()
        count = len(wanted[0])
        scored = [layer - shape.scored.start for layer in group if layer in shape.scored]
        found = [out[:count], *(tensors.scores[i, :, : given.tokens].sum(0) for i in scored)]
        for ours, theirs in zip([*found, *stored], wanted, strict=True):
            off = _difference(ours, theirs)
            if not off <= TOLERANCE:  # also for NaN
                raise RuntimeError(f"recorded layers of {shape.rows} rows are off by {off:.3g}")
        yield
        by_loop_s = self._record.seconds(by_loop)
        yield
        recorded.groups[group] = play
        recorded.saved_s += by_loop_s - self._record.seconds(play)


def _example(decoder: DecoderModel, shape: Shape) -> Given:
    """Return rows of a made-up prompt, a fifth fewer than the shape's, so that some are padding."""
    count = shape.rows - shape.rows // 5
    start = 0 if shape.every else SPARE_KEYS
    tokens = start + count
    random = torch.Generator().manual_seed(shape.first)

    def some(*size: int) -> Tensor:
        return torch.randn(*size, generator=random).to(decoder.device, decoder.dtype)

    given = Given(
        rows=torch.arange(start, tokens),
        tokens=tokens,
        ids=torch.randint(decoder.vocabulary, (count,), generator=random),
        x=some(count, decoder.hidden),
        q=some(count, decoder.heads, decoder.head_dim) if shape.from_attention else None,
        weights=torch.rand(count, generator=random).to(decoder.device),
    )
    if not shape.shifted:
        return given
    # A document before the rows, the first of which are among its tokens.
    places = torch.arange(4)
    moved = torch.arange(tokens) < start
    document = Probed(0, slice(0, start + 4), start + places, places)
    return replace(given, shift=KernelShift([document], moved, 0.25))


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference as a share of the largest number."""
    return float((ours.float() - theirs.float()).abs().max() / theirs.abs().max())
