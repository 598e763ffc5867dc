"""What stands for `torch.cuda` and for the Triton kernels while a GPU is pretended.

Streams and events do nothing but be counted: everything is computed at once, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.launches import triton_work
from benchmarks.launches.gpu import PretendedGpu, host
from benchmarks.launches.tally import Tally
from kvstitch_gpu import (
    attention_scores_gpu,
    index_causal_attention,
    kv_placement_gpu,
    prefill_graphs,
    ragged_attention_gpu,
    rotation_gpu,
    row_kernels,
    shift_gpu,
    triton_support,
)

TRITON_KERNELS: dict[tuple[Any, str], Callable[..., None]] = {
    (rotation_gpu, "_rotate"): triton_work.rotate_rows,
    (rotation_gpu, "_write"): triton_work.write_rows,
    (kv_placement_gpu, "_kernel"): triton_work.place_rows,
    (row_kernels, "_multiply"): triton_work.multiply_gated,
    (row_kernels, "_normalise"): triton_work.add_and_normalise,
    (index_causal_attention, "_kernel"): triton_work.attend_tile,
    (index_causal_attention, "_join"): triton_work.join_spans,
    (attention_scores_gpu, "_kernel"): triton_work.score_block,
    (shift_gpu, "_kernel"): triton_work.shift_rows,
    (ragged_attention_gpu, "_attend"): triton_work.attend_block,
    (ragged_attention_gpu, "_join"): triton_work.join_blocks,
}
"""By module and attribute. A kernel that is not here is not used: torch's operations are."""

H100 = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=232_448)
"""What the worker asks of a device's properties."""


class Kernel:
    """Stands for a compiled Triton kernel."""

    def __init__(self, work: Callable[..., None], gpu: PretendedGpu) -> None:
        self._work = work
        self._gpu = gpu

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, GRID=grid)

    def _launch(self, *args: Any, **options: Any) -> None:
        self._gpu.tally.book("triton", self._work.__name__)
        numbers, named = host(list(args)), {name: host(x) for name, x in options.items()}

        def work() -> None:
            with _disable_current_modes():
                self._work(*numbers, **named)

        work()
        self._gpu.keep(work)


class Recorder:
    """Stands for `CudaGraphs`: what is faster is what asks for fewer operations."""

    def __init__(self, gpu: PretendedGpu) -> None:
        self._gpu = gpu

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        return self._gpu.record(run)

    def seconds(self, run: Callable[[], object]) -> float:
        before, self._gpu.tally = self._gpu.tally, Tally()
        try:
            self._gpu.tally.start()
            run()
            return float(self._gpu.tally.by_kind()["device operations"])
        finally:
            self._gpu.tally = before


class _Stream:
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def wait_stream(self, other: _Stream) -> None:
        self._tally.book("stream", "record")
        self._tally.book("stream", "wait")

    def synchronize(self) -> None:
        self._tally.book("wait", "end of a stream")


@contextmanager
def pretended_gpu(tally: Tally) -> Iterator[PretendedGpu]:
    """A context in which device "cuda" is a `PretendedGpu`, and the worker's kernels run on it."""
    gpu = PretendedGpu(tally)
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())  # else torch asks for the device too early
        stack.enter_context(driver_replaced(tally))
        # What is made on the device is made in host memory and moved, as in builds with CUDA.
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        stack.enter_context(kernels_replaced(lambda work: Kernel(work, gpu)))
        stack.enter_context(patch.object(prefill_graphs, "CudaGraphs", lambda: Recorder(gpu)))
        stack.enter_context(gpu)
        yield gpu


@contextmanager
def driver_replaced(tally: Tally) -> Iterator[None]:
    """A context in which `torch.cuda` does nothing but count streams, and no memory is pinned."""

    @contextmanager
    def on_stream(_: _Stream) -> Iterator[None]:
        tally.book("stream", "change of stream", 2)
        yield

    stands = {
        "Stream": lambda *_: _Stream(tally),
        "current_stream": lambda *_: _Stream(tally),
        "stream": on_stream,
        "synchronize": lambda *_: None,
        "_lazy_init": lambda: None,
        "graph_pool_handle": lambda: None,
        "get_device_properties": lambda *_: H100,
    }
    with ExitStack() as stack:
        for name, stand in stands.items():
            stack.enter_context(patch.object(torch.cuda, name, stand))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", lambda x, *_: x))
        yield


@contextmanager
def kernels_replaced(kind: Callable[[Callable[..., None]], Any]) -> Iterator[None]:
    """A context in which `kind` of what they compute stands for the Triton kernels."""
    with ExitStack() as stack:
        found = [value for module, _ in TRITON_KERNELS for value in vars(module).values()]
        checks = [value for value in found if hasattr(value, "cache_clear")]
        stack.enter_context(patch.object(triton_support, "matches_torch", lambda *_: True))
        for (module, attribute), work in TRITON_KERNELS.items():
            stack.enter_context(patch.object(module, attribute, kind(work)))
        for check in checks:  # what they found of a real device, and later of this one
            check.cache_clear()
            stack.callback(check.cache_clear)
        yield
