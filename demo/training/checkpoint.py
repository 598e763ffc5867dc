"""A run on disk: a folder of safetensors files below 16 MiB each and one of numbers.

Replaced as a whole: a run that dies while it writes leaves the folder before.
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
    """Tensors and numbers, or None where there is no checkpoint."""
    found = next((f for f in (folder, folder.with_suffix(".old")) if f.exists()), None)
    if found is None:
        return None
    return read_shards(found, STEM), json.loads((found / NUMBERS).read_text())
