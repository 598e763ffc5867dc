"""Switches CPU kernels off, so that what would run without them can be timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from unittest.mock import patch

from service.worker.forward import decode
from service.worker.kernels.cpu import (
    attention_pass,
    linear_few_rows,
    linear_many_rows_bf16,
    linear_many_rows_fp32,
    native,
    prefill_attention,
    rotation,
    shift,
)
from service.worker.kernels.cpu.layer_parts import LayerParts

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
def _no_products(*modules: object) -> Iterator[None]:
    """No kernel for these products, and none that computes them among other things."""
    with _no_kernel(*modules), patch.object(LayerParts, "takes", lambda *_, **__: False):
        yield


@contextmanager
def _step_by_step() -> Iterator[None]:
    """Decode steps operation by operation."""
    with (
        patch.object(decode, "kernel_for", lambda *_: None),
        patch.object(decode, "_KERNELS", type(decode._KERNELS)()),
    ):
        yield


def switches() -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """By name: a context in which this kernel is not used, the first for all of them."""
    # Without them torch multiplies many rows, in bfloat16 where this CPU is fast at that.
    many = linear_many_rows_bf16, linear_many_rows_fp32
    fast = "linear_many_rows_bf16" if native.has_bf16_dot() else "linear_many_rows_fp32"
    return {
        EVERY: nullcontext,
        "decode_step": _step_by_step,
        "linear_few_rows": lambda: _no_products(linear_few_rows),
        fast: lambda: _no_products(*many),
        "prefill_attention": lambda: _no_kernel(prefill_attention, attention_pass),
        "rotation": lambda: _no_kernel(rotation, attention_pass, shift),
        "layer_parts": _no_products,
        "attention_pass": lambda: _no_kernel(attention_pass),
        "shift": lambda: _no_kernel(shift),
    }
