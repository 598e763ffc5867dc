"""Triton kernels on CPU tensors, by Triton's interpreter, beside those tests that need a GPU.

It truncates where it should round to bfloat16, and multiplies matrices of bfloat16 wrongly: there
kernels are tried in fp16 and fp32, in bfloat16 only on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import torch

T = TypeVar("T")
ROOT = Path(__file__).parents[4]
MODULES = (
    "attention_scores_gpu", "index_causal_attention", "kv_placement_gpu", "ragged_attention_gpu",
    "rotation_gpu", "row_kernels", "shift_gpu",
)  # fmt: skip
FEW = "FEW_SHAPES"
needs_triton = pytest.mark.skipif(
    not importlib.util.find_spec("triton"), reason="triton is not installed"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


def shapes(cases: Sequence[T], few: int = 1) -> Sequence[T]:
    """The cases, of which the first few are part of `make test`."""
    return cases[:few] if os.environ.get(FEW) else cases


def run_interpreted(*names: str, few: bool) -> dict[str, str]:
    """What went wrong in checks by "module.function", all in one process of their own: Triton
    decides when it is imported how it runs."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "KVSTITCH_PLUGINS": "tests_gpu.on_cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-m", __name__, *names], cwd=ROOT, capture_output=True, text=True,
        env=environment | ({FEW: "1"} if few else {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    found = {}
    torch.set_grad_enabled(False)
    for name in sys.argv[1:]:
        module, _, function = name.partition(".")
        check = getattr(importlib.import_module(f"{__package__}.test_{module}"), function)
        started = time.monotonic()
        try:
            check("cpu")
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
