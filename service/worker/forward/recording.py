"""Records operations on a GPU, to replay them by one launch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Play = Callable[[], None]
Record = Callable[[Callable[[], Tensor]], tuple[Tensor, Play]]
"""Runs a function; returns its result, and a function that computes this result again in place."""


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
