"""Decode steps of the base model, replayed from CUDA graphs.

Only the numbers in one tensor change from step to step. A recording is for a number of rows and a
greatest length of runs, powers of two. It is compared with the same step without recording before
it is used; if that fails, all later steps run without recordings, and a warning is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from kvstitch.service.worker.forward.decode import Batch, Decodable, compute
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch_gpu import ragged_attention_gpu

Play = Callable[[], None]
Record = Callable[[Callable[[], Tensor]], tuple[Tensor, Play]]
"""Runs a function; returns its result, and a function that computes this result again in place."""

TIMED = 3
"""How often something is run to see how long it takes."""


class Recorder(Protocol):
    """Records, and tells whether that is worth it."""

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Play]:
        """`Record`."""

    def seconds(self, run: Callable[[], object]) -> float:
        """Return how long the device and the host take to run something, at best."""


class CudaGraphs:
    """Records CUDA graphs that share the memory of their intermediate results."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Play]:
        # The first run compiles kernels and allocates workspaces, neither of which can be recorded.
        side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            run()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": loader threads may allocate pinned memory during the recording.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            out = run()
        return out, graph.replay

    def seconds(self, run: Callable[[], object]) -> float:
        taken = []
        for _ in range(TIMED):
            torch.cuda.synchronize()
            started = time.perf_counter()
            run()
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
        return min(taken)


log = logging.getLogger("kvstitch.decode")

SHORTEST = 2048
"""Smallest length of runs, in keys, for which recordings are made; shorter ones are rounded up."""
TOLERANCE = 2**-6
"""Allowed difference as a share of the largest logit: the same products by other kernels."""


def supports(decoder: DecoderModel, pool: KVPool) -> bool:
    """Return whether a step runs entirely on the GPU, by operations that do not depend on
    numbers."""
    if not all(rule.plain_weights for rule in decoder.rules):
        return False
    q = torch.empty(1, decoder.heads, decoder.head_dim, dtype=decoder.dtype, device=decoder.device)
    return ragged_attention_gpu.supports(q, pool.k[0], decoder.heads // decoder.kv_heads)


class RecordedSteps:
    """Runs decode steps of the base model for sequences whose KV is in `pool`, recorded."""

    def __init__(self, decoder: DecoderModel, pool: KVPool, record: Record | None = None) -> None:
        self._decoder = decoder
        self._pool = pool
        self._record: Record | None = record or CudaGraphs()  # None: nothing is recorded any more
        self._recordings: dict[tuple[int, int], _Recording] = {}

    def step(
        self, sequences: Sequence[Decodable], drafts: Sequence[Sequence[int]] | None = None
    ) -> Tensor:
        """`decode_step` of the forward pass; the next step overwrites what it returns."""
        if self._record is None:
            return self._compute(Batch.of(sequences, drafts, windows=self._decoder.windows))
        rows = len(sequences) + sum(map(len, drafts or ()))
        batch = Batch.of(sequences, drafts, _power_of_two(rows), windows=self._decoder.windows)
        batch = replace(batch, longest=max(SHORTEST, _power_of_two(batch.longest)))
        key = batch.size, batch.longest
        try:
            recording = self._recordings.get(key)
            if recording is None:
                recording = self._record_step(batch, rows, self._record)
        except Exception as error:
            log.warning("decode steps run unrecorded: %s", error)
            self._record = None
            self._recordings.clear()
            return self._compute(batch)[:rows]
        self._recordings[key] = recording
        return recording.play(batch.numbers)[:rows]

    def _compute(self, batch: Batch) -> Tensor:
        return compute(self._decoder, self._pool, batch.to(self._decoder.device))

    def _record_step(self, batch: Batch, rows: int, record: Record) -> _Recording:
        """Record the step of a batch; raises RuntimeError if the recording gives other logits."""
        expected = self._compute(batch)[:rows]
        recorded = replace(batch, numbers=batch.numbers.to(self._decoder.device, copy=True))
        logits, play = record(lambda: compute(self._decoder, self._pool, recorded))
        staged = torch.empty_like(batch.numbers, pin_memory=torch.cuda.is_available())
        recording = _Recording(recorded.numbers, staged, logits, play)
        replayed = recording.play(batch.numbers)[:rows]
        off = float((replayed - expected).abs().max() / expected.abs().max())
        if not off <= TOLERANCE:
            raise RuntimeError(f"a recorded step of {batch.size} rows is off by {off:.3g}")
        return recording


@dataclass(frozen=True)
class _Recording:
    """One recorded step."""

    numbers: Tensor
    staged: Tensor
    logits: Tensor
    run: Play

    def play(self, numbers: Tensor) -> Tensor:
        # `staged` can be overwritten: the last step's logits were read, so its copy is complete.
        self.staged.copy_(numbers)
        self.numbers.copy_(self.staged, non_blocking=True)
        self.run()
        return self.logits


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
