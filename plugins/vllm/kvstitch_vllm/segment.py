"""The KV of one prompt in shared memory: a file that the worker writes and vLLM maps.

    8 bytes   KVSTITCH
    4 bytes   length of the header
    header    JSON: the fields of `Header`
    at 4096   keys after RoPE, then values, of every layer: [layers, 2, kv_heads, tokens, head_dim]

The worker owns it: it makes the file and unlinks it. vLLM reads only what belongs to its own user.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import stat
import struct
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

MAGIC = b"KVSTITCH"
DATA_AT = 4096
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
PLACE = re.compile(r"kvstitch-[0-9a-f]{32}/[0-9a-f]{32}")


class NoSegment(Exception):
    """There is no such segment, or it is not what it says."""


@dataclass(frozen=True)
class Header:
    """What a segment holds."""

    weights: str  # of the model that computed it (`weights_of`)
    prompt: str  # `hash_of` the token ids
    dtype: str
    layers: int
    tokens: int
    kv_heads: int
    head_dim: int

    @property
    def nbytes(self) -> int:
        elements = 2 * self.layers * self.tokens * self.kv_heads * self.head_dim
        return elements * DTYPES[self.dtype].itemsize


def hash_of(ids: Sequence[int]) -> str:
    return blake2b(array("q", ids).tobytes(), digest_size=16).hexdigest()


def write(descriptor: int, header: Header, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Fill a new file with K and V `[kv_heads, tokens, head_dim]` of every layer; raises OSError
    where there is no room."""
    text = json.dumps(asdict(header)).encode()
    at = DATA_AT
    # Not by a mapping: where there is no room, writing to one ends the process.
    for layer in layers:
        heads = [head.cpu().contiguous().view(torch.uint8) for array in layer for head in array]
        at += _written(descriptor, [memoryview(head.numpy()).cast("B") for head in heads], at)
    _written(descriptor, [memoryview(struct.pack("<8sI", MAGIC, len(text)) + text)], 0)


def read(folder: str, place: str) -> tuple[Header, Tensor]:
    """Return header and data `[layers, 2, kv_heads, tokens, head_dim]`, which stays readable when
    the file is unlinked; raises NoSegment."""
    # The name comes over the network: it must lead nowhere but to a worker's file.
    if not PLACE.fullmatch(place):
        raise NoSegment(f"{place!r} names no segment")
    try:
        descriptor = os.open(Path(folder) / place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NoSegment(f"the segment cannot be opened: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise NoSegment("the segment is another user's: run kvstitch and vLLM as the same one")
        start = os.pread(descriptor, DATA_AT, 0)
        magic, length = struct.unpack_from("<8sI", start)
        header = Header(**json.loads(start[12:][:length]))
        if magic != MAGIC or found.st_size != DATA_AT + header.nbytes:
            raise NoSegment("the segment is not complete")
        mapped = mmap.mmap(descriptor, found.st_size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError, TypeError, KeyError, struct.error) as error:
        raise NoSegment(f"the segment cannot be read: {error}") from error
    finally:
        os.close(descriptor)
    flat = torch.frombuffer(mapped, dtype=DTYPES[header.dtype], offset=DATA_AT)
    shape = (header.layers, 2, header.kv_heads, header.tokens, header.head_dim)
    return header, flat.view(shape)


def _written(descriptor: int, parts: Sequence[memoryview], at: int) -> int:
    size = sum(len(part) for part in parts)
    if os.pwritev(descriptor, parts, at) != size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return size
