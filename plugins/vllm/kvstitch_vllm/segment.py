"""The KV of one prompt in shared memory: a safetensors file that the worker writes and vLLM maps.

    metadata    weights    of the model that computed it (`weights_of`)
                prompt     `hash_of` its token ids, of which there are `tokens`
                dtype      as torch names it
    "0", "1" …  by layer: keys after RoPE, then values, `[2, kv_heads, tokens, head_dim]`

The worker owns it: it makes the file and unlinks it. vLLM reads only what belongs to its own user.
"""

from __future__ import annotations

import errno
import os
import re
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

PLACE = re.compile(r"kvstitch-[0-9a-f]{32}/[0-9a-f]{32}")


class NoSegment(Exception):
    """There is no such segment, or it is not what it says."""


def hash_of(ids: Sequence[int]) -> str:
    return blake2b(array("q", ids).tobytes(), digest_size=16).hexdigest()


def write(
    path: Path, layers: Sequence[tuple[Tensor, Tensor]], *, weights: str, ids: Sequence[int]
) -> None:
    """Make the file from K and V `[kv_heads, tokens, head_dim]` of every layer; raises OSError
    where there is no room."""
    tensors = {str(number): torch.stack(layer).cpu() for number, layer in enumerate(layers)}
    dtype = str(tensors["0"].dtype).removeprefix("torch.")
    said = {"weights": weights, "prompt": hash_of(ids), "tokens": str(len(ids)), "dtype": dtype}
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        save_file(tensors, path, said)
    except (OSError, SafetensorError) as error:
        raise OSError(errno.ENOSPC, str(error)) from error


def read(folder: str, place: str) -> Any:
    """Return an open safetensors file, readable also when it is unlinked; raises NoSegment."""
    # The name comes over the network: it must lead nowhere but to a worker's file.
    if not PLACE.fullmatch(place):
        raise NoSegment(f"{place!r} names no segment")
    try:
        descriptor = os.open(Path(folder) / place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise NoSegment("it is another user's: run kvstitch and vLLM as the same one")
            return safe_open(f"/proc/self/fd/{descriptor}", "pt")
        finally:
            os.close(descriptor)
    except (OSError, SafetensorError) as error:
        raise NoSegment(f"the segment cannot be read: {error}") from error
