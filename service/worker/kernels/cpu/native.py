"""The kernels that are written in C: one extension module, `_native`, and what this CPU can do.

It is compiled when the package is installed where there is a C compiler, or in a checkout by
`python -m kvstitch.service.worker.kernels.cpu.build`. Which kernels run depends on what the CPU
has. Two choices are measured at their first use (`measured.py`), with a margin, so that two starts
on one machine give the same numbers: with AVX2 alone, where products are the only kernel
(`linear_fp32`), that of many rows; with AMX, attention of prompt rows, because torch has AMX.
Without the module, on another processor than x86-64 or without AVX-512, torch's operations are
used.
"""

from __future__ import annotations

import platform
from array import array
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor  # with torch's OpenMP, which the module needs

INTERFACE = 8
"""Of the C functions. It must change, here and in `src/kernels.h`, when their arguments do."""
_NAME = "kvstitch.service.worker.kernels.cpu._native"


@cache
def module() -> Any | None:
    """Return the module, if it is compiled from these sources and this CPU has AVX-512."""
    return None if why_missing() else import_module(_NAME)


@cache
def has_avx2_alone() -> bool:
    """Return whether the module is there, and this CPU runs no kernel but `linear_fp32`."""
    return _why_not_compiled() is None and import_module(_NAME).cpu()[::3] == (0, 1)


def call(kernel: str, *arguments: Tensor | array[int] | float | None) -> None:
    """Call a kernel, which must be there. It gets the addresses of tensors and arrays."""
    getattr(import_module(_NAME), kernel)(*arguments)


@cache
def why_missing() -> str | None:
    """Return why torch's operations are used instead; None where the kernels are there."""
    if reason := _why_not_compiled():
        return reason
    avx512, *_, avx2 = import_module(_NAME).cpu()
    only = "; products alone have one, for AVX2" if avx2 else ""
    return None if avx512 else f"this CPU has no AVX-512{only}"


def _why_not_compiled() -> str | None:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"there are kernels for x86-64 alone, and this is {platform.machine()}"
    try:
        found = import_module(_NAME)
    except ImportError as error:
        return f"they are not compiled ({error}): install gcc, Python's headers, kvstitch again"
    if found.INTERFACE != INTERFACE:
        return "they were compiled from other sources: install kvstitch again"
    return None


@cache
def has_bf16_dot() -> bool:
    """Return whether kernels use the CPU's bfloat16 dot products (AVX512-BF16): AMD's CPUs do
    twice as many of them as fp32 products, Intel's no more than those."""
    found = module()
    if found is None:
        return False
    _, there, amd, _ = found.cpu()
    return bool(there and amd)
