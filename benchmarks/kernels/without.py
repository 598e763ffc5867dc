"""Switches CPU kernels off, so that what would run without them can be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from unittest.mock import patch

from service.worker.forward import decode
from service.worker.kernels.cpu import (
    linear_few_rows,
    linear_many_rows_bf16,
    linear_many_rows_fp32,
    native,
    prefill_attention,
    rotation,
)

EVERY = "all kernels"


@contextmanager
def _no_kernel(*modules: object) -> Iterator[None]:
    with ExitStack() as stack:
        for module in modules:
            for name in vars(module):
                if name.startswith("supports"):
                    stack.enter_context(patch.object(module, name, lambda *_, **__: False))
        yield


@contextmanager
def _step_by_step() -> Iterator[None]:
    """Decode steps operation by operation."""
    with (
        patch.object(decode, "kernel_for", lambda *_: None),
        patch.object(decode, "_KERNELS", type(decode._KERNELS)()),
    ):
        yield


@contextmanager
def _no_products() -> Iterator[None]:
    """Products of many rows by torch, in bfloat16 where this CPU is fast at that."""
    with _no_kernel(linear_many_rows_bf16, linear_many_rows_fp32):
        yield


def switches() -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """By name: a context in which this kernel is not used, the first for all of them."""
    fast = "linear_many_rows_bf16" if native.has_bf16_dot() else "linear_many_rows_fp32"
    return {
        EVERY: nullcontext,
        "decode_step": _step_by_step,
        "linear_few_rows": lambda: _no_kernel(linear_few_rows),
        fast: _no_products,
        "prefill_attention": lambda: _no_kernel(prefill_attention),
        "rotation": lambda: _no_kernel(rotation),
    }
