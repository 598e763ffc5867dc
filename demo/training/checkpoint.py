"""Checkpoints of a training run: a folder of safetensors files, and one JSON file of numbers.

Every file is smaller than 16 MiB. A checkpoint is replaced as a whole: if the process dies while it
writes, the previous one is still there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from demo.training.shards import read_shards, write_shards

STEM = "state"
NUMBERS = "numbers.json"


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    partial, old = folder.with_suffix(".partial"), folder.with_suffix(".old")
    for left in (partial, old):
        if left.exists() and (left == partial or folder.exists()):
            shutil.rmtree(left)
    partial.mkdir(parents=True)
    write_shards(tensors, partial, STEM)
    (partial / NUMBERS).write_text(json.dumps(numbers, indent=2) + "\n")
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    if old.exists():
        shutil.rmtree(old)


def read_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Reads a checkpoint.

    Returns:
        Tensors by name, and the numbers; None if there is no checkpoint.
    """
    found = next((f for f in (folder, folder.with_suffix(".old")) if f.exists()), None)
    if found is None:
        return None
    return read_shards(found, STEM), json.loads((found / NUMBERS).read_text())
