"""Decode steps of an engine. On a GPU a step's operations are recorded once as a CUDA graph and
played from then on: launching some thousand of them from Python takes longer than they do.

    sequences ──► Batch ──► numbers of a recording ──► play ──► its logits
                  rounded up to a size that was recorded; who is added belongs to nobody

A recording is of a number of rows (a power of two) and of the longest run it takes (a power of two
of keys). What it gives is held against the same step not recorded before it is used; if that fails
or differs, steps run unrecorded from then on, with a warning. Knows no scheduler and no sampler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from service.worker.forward.decode import Batch, Decodable, compute, stays_on_device
from service.worker.kv.pool import KVPool
from service.worker.model.adapters.base import DecoderAdapter

log = logging.getLogger("kvstitch.decode")

Play = Callable[[], None]
Record = Callable[[Callable[[], Tensor]], tuple[Tensor, Play]]
"""Runs something; its result, and what computes that again, in place."""

SHORTEST = 2048
"""Keys of the shortest runs for which a recording of its own would be worth it."""
TOLERANCE = 2**-6
"""Of the largest logit: what another choice of kernels for the same products may change."""


class Decoder:
    """Steps of sequences that hold their KV in `pool`. record: how steps are recorded; by default
    as CUDA graphs where the attention of a step needs nothing from the host, else not at all."""

    def __init__(self, adapter: DecoderAdapter, pool: KVPool, record: Record | None = None) -> None:
        self._adapter = adapter
        self._pool = pool
        self._record = record
        if record is None and stays_on_device(adapter, pool):
            self._record = CudaGraphs()
        self._recordings: dict[tuple[int, int], _Recording] = {}

    def step(self, sequences: Many[Decodable]) -> Tensor:
        """Feeds every sequence its last token: logits `[sequences, vocabulary]` fp32, to be read
        before the next step."""
        if self._record is None:
            return self._computed(Batch.of(sequences))
        batch = Batch.of(sequences, _power_of_two(len(sequences)))
        batch = replace(batch, longest=max(SHORTEST, _power_of_two(batch.longest)))
        key = batch.size, batch.longest
        try:
            recording = self._recordings.get(key) or self._recorded(batch, self._record)
        except Exception as error:
            log.warning("decode steps run unrecorded: %s", error)
            self._record = None
            self._recordings.clear()
            return self._computed(batch)[: len(sequences)]
        self._recordings[key] = recording
        return recording.play(batch.numbers)[: len(sequences)]

    def _computed(self, batch: Batch) -> Tensor:
        return compute(self._adapter, self._pool, batch.to(self._adapter.device))

    def _recorded(self, batch: Batch, record: Record) -> _Recording:
        """Raises RuntimeError if it does not give what the step gives."""
        expected = self._computed(batch)
        held = replace(batch, numbers=batch.numbers.to(self._adapter.device, copy=True))
        logits, play = record(lambda: compute(self._adapter, self._pool, held))
        recording = _Recording(held.numbers, _host_copy(batch.numbers), logits, play)
        found = recording.play(batch.numbers)
        off = float((found - expected).abs().max() / expected.abs().max())
        if not off <= TOLERANCE:
            raise RuntimeError(f"a recorded step of {batch.size} rows is off by {off:.3g}")
        return recording


@dataclass(frozen=True)
class _Recording:
    """numbers: what the recorded operations read, on the device; staged: the same in pinned host
    memory; logits: what they write."""

    numbers: Tensor
    staged: Tensor
    logits: Tensor
    run: Play

    def play(self, numbers: Tensor) -> Tensor:
        # The last step's copy is over: its logits were read.
        self.staged.copy_(numbers)
        self.numbers.copy_(self.staged, non_blocking=True)
        self.run()
        return self.logits


class CudaGraphs:
    """Records CUDA graphs, which share the memory of what they compute in between."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Play]:
        # First runs compile kernels and take workspaces; neither can be recorded.
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Loader threads may take pinned memory meanwhile: only this thread has to abstain.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            out = run()
        return out, graph.replay


def _power_of_two(number: int) -> int:
    """The smallest that is not below `number`."""
    return 1 << (number - 1).bit_length()


def _host_copy(numbers: Tensor) -> Tensor:
    """Memory like `numbers`, pinned where there is a GPU."""
    return torch.empty_like(numbers, pin_memory=torch.cuda.is_available())
