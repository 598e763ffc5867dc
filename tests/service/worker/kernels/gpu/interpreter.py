"""Triton kernels on CPU tensors: run by Triton's interpreter, which needs no GPU.

It truncates where it should round to bfloat16, and multiplies matrices of bfloat16 wrongly: there
kernels are tried in fp16 and fp32, in bfloat16 only on a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[5]
needs_triton = pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="triton is not installed"
)


def run_interpreted(module: str, function: str) -> None:
    """`function('cpu')` of a test module, in a process of its own: Triton decides when it is
    imported how it runs. Raises AssertionError with the end of its output if it fails."""
    code = f"from {module} import {function}; {function}('cpu')"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
