"""Records operations on a GPU, to replay them by one launch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

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
