"""Whether two processes have the same weights: a hash over a model folder.

It covers what decides the KV of a token: shapes and types of all tensors, sampled bytes of each,
and the configuration, rotary settings among it. Needs nothing but Python: it runs in vLLM, too.
"""

from __future__ import annotations

import json
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Any

SAMPLES, SAMPLE_BYTES = 4, 512
"""Of every tensor: places in even distances, and bytes read at each."""

_NO_MATTER = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache",
              "architectures", "bos_token_id", "eos_token_id", "pad_token_id",
              "max_position_embeddings"}  # fmt: skip


def weights_of(folder: str | Path) -> str:
    """Return 32 hex characters for the weights in a Hugging Face folder; raises ValueError where
    there are no safetensors."""
    path, tensors = Path(folder), dict[str, tuple[Path, int, dict[str, Any]]]()
    for file in path.glob("*.safetensors"):
        with file.open("rb") as data:
            (length,) = struct.unpack("<Q", data.read(8))
            header = json.loads(data.read(length))
        header.pop("__metadata__", None)
        tensors |= {name: (file, 8 + length, entry) for name, entry in header.items()}
    if not tensors:
        raise ValueError(f"{path} has no *.safetensors, by which weights are compared")
    digest = blake2b(digest_size=16)
    config = json.loads((path / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in _NO_MATTER}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    for name in sorted(tensors):
        file, start, entry = tensors[name]
        first, end = entry["data_offsets"]
        digest.update(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
        with file.open("rb") as data:
            last = max(first, end - SAMPLE_BYTES)
            for number in range(SAMPLES):
                at = first + number * (last - first) // (SAMPLES - 1)
                data.seek(start + at)
                digest.update(data.read(min(SAMPLE_BYTES, end - at)))
    return digest.hexdigest()
