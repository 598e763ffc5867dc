"""Tensors in safetensors files of limited size, named and indexed as Hugging Face does.

It is one file `STEM.safetensors` where that is enough, else `STEM-00001-of-0000N.safetensors` and
an index. Exported weights and checkpoints are written this way.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

LIMIT = 15 * 2**20
"""Bytes of tensors in one file; with its header a file stays below 16 MiB."""


def write_shards(
    tensors: dict[str, Tensor], folder: Path, stem: str = "model", limit: int = LIMIT
) -> None:
    """Writes tensors in their order, and deletes older files of that stem.

    Raises:
        ValueError: A tensor is larger than `limit` bytes.
    """
    shards: list[dict[str, Tensor]] = [{}]
    room = limit
    for name, tensor in tensors.items():
        if tensor.nbytes > limit:
            raise ValueError(f"{name} has {tensor.nbytes} bytes, a file at most {limit}")
        if tensor.nbytes > room:
            shards.append({})
            room = limit
        room -= tensor.nbytes
        shards[-1][name] = tensor.detach().cpu().contiguous()
    for stale in folder.glob(f"{stem}*.safetensors*"):
        stale.unlink()
    if len(shards) == 1:
        _save(shards[0], folder / f"{stem}.safetensors")
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
        _save(shard, folder / file)
        where |= dict.fromkeys(shard, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    _index(folder, stem).write_text(json.dumps(index, indent=2) + "\n")


def read_shards(folder: Path, stem: str = "model") -> dict[str, Tensor]:
    """Reads what `write_shards` wrote."""
    if not _index(folder, stem).exists():
        return dict(load_file(folder / f"{stem}.safetensors"))
    where = json.loads(_index(folder, stem).read_text())["weight_map"]
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        tensors |= load_file(folder / file)
    return tensors


def _index(folder: Path, stem: str) -> Path:
    return folder / f"{stem}.safetensors.index.json"


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)  # save_file leaves it to the owner alone
