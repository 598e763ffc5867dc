"""Runs `gguf_conversion` as a process of its own, which takes torch and the weights along."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from service.errors import ModelRefused
from service.models.gguf_file import GgufHeader
from service.shared import openmp

BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
# Configuration and tokenizer; the largest tokenizer.json of the served families has 17 MiB.
_BESIDE_WEIGHTS = 64 * 1024 * 1024


def needed_bytes(header: GgufHeader, dtype: str) -> int:
    """Room that a conversion takes on the disk; its weights take as much memory meanwhile."""
    return sum(t.elements for t in header.tensors) * BYTES_OF[dtype] + _BESIDE_WEIGHTS


def convert(header: GgufHeader, folder: Path, dtype: str) -> None:
    """Write the model of a GGUF file into an empty folder.

    Raises:
        ModelRefused: It cannot be converted; the message says why.
    """
    needed, free = needed_bytes(header, dtype), shutil.disk_usage(folder).free
    if free < needed:
        raise ModelRefused(
            f"converting {header.path.name} takes {needed >> 20} MiB in {folder.parent}, and "
            f"{free >> 20} MiB are free: make room, or give another folder with --model-cache"
        )
    shown = sys.stderr.isatty()  # transformers' progress bar is for people
    done = subprocess.run(
        (sys.executable, "-m", "service.models.gguf_conversion", header.path, folder, dtype),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if shown else subprocess.PIPE,
        env={**openmp.ENVIRONMENT, **os.environ, **({} if shown else {"TQDM_DISABLE": "1"})},
        text=True,
    )
    if done.returncode == 0:
        return
    lines = done.stdout.splitlines()
    if lines and lines[-1].startswith('{"fault"'):
        raise ModelRefused(json.loads(lines[-1])["fault"])
    said = (done.stderr or "").strip().splitlines()
    raise ModelRefused(
        f"converting {header.path.name} ended with code {done.returncode}"
        f"{': ' + said[-1] if said else ''}; it takes about {needed >> 20} MiB of memory"
    )
