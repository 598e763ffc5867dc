"""Checksums, written as text.

    one buffer          "<algorithm>:<32 hex>", 128 bits
    blocks of a tensor  "<algorithm>:<base64>", 64 bits per block, in order

In place of digests a sealed chunk has the tags of its blocks, 128 bits each (sealed_chunk.py).

xxh3 runs at memory speed (about 10 GB/s on one core). blake2b (below 1 GB/s) is the fallback where
xxhash is not installed. The checksums detect accidents, not forgery: 64 bits miss one damaged block
in 2^64, and they keep the digests of a chunk below 1 % of its bytes.
"""

import hashlib
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from kvstore.errors import ChunkCorrupt, ChunkRefused

XXH3 = "xxh3"
BLAKE2B = "blake2b"
DIGEST_HEX = 32
BLOCK_DIGEST_BYTES = 8
GCM = "aes-256-gcm"
_TAG_BYTES = 16

Buffer = bytes | bytearray | memoryview


def checksum(buffer: Buffer) -> str:
    """Return the checksum of a buffer, by the fastest installed algorithm."""
    name = f"{default_algorithm()}_128"
    return f"{name}:{_hasher(name)(buffer).hex()}"


def matches(text: str, buffer: Buffer) -> bool:
    """Return whether `buffer` has the checksum `text`."""
    name, _, digest = text.partition(":")
    return _hasher(name)(buffer).hex() == digest


@dataclass(frozen=True)
class BlockDigests:
    """Digests of one tensor's blocks."""

    algorithm: str
    digests: bytes

    @classmethod
    def of(cls, blocks: Iterable[Buffer]) -> Self:
        """Compute the digests of these blocks with the fastest installed algorithm."""
        name = f"{default_algorithm()}_64"
        return cls(name, b"".join(map(_hasher(name), blocks)))

    @classmethod
    def parse(cls, text: str, blocks: int) -> Self:
        """Read what the property `text` wrote."""
        name, _, encoded = text.partition(":")
        try:
            digests = a2b_base64(encoded, strict_mode=True)
        except ValueError as error:
            raise ChunkCorrupt(f"digests are not base64: {error}") from error
        size = _TAG_BYTES if name == GCM else BLOCK_DIGEST_BYTES
        if len(digests) != blocks * size:
            raise ChunkCorrupt(f"{len(digests)} bytes of digests for {blocks} blocks")
        return cls(name, digests)

    @property
    def text(self) -> str:
        """The form that stands in a header: `<algorithm>:<base64>`."""
        return f"{self.algorithm}:{b64encode(self.digests).decode()}"

    def differing(self, blocks: Sequence[int], contents: Iterable[Buffer]) -> list[int]:
        """Return those blocks whose content does not match its digest."""
        # One C loop over all blocks: one Python call per block would cost as much as the hashing.
        found = list(map(_hasher(self.algorithm), contents))
        size = BLOCK_DIGEST_BYTES
        if len(blocks) * size == len(self.digests) and b"".join(found) == self.digests:
            return []
        return [
            block
            for block, digest in zip(blocks, found, strict=True)
            if digest != self.digests[block * size : (block + 1) * size]
        ]


@cache
def default_algorithm() -> str:
    """Return xxh3 if xxhash can be imported, else blake2b."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        return BLAKE2B
    return XXH3


@cache
def _hasher(name: str) -> Callable[[Buffer], bytes]:
    family, _, bits = name.partition("_")
    if bits not in ("64", "128") or family not in (XXH3, BLAKE2B):
        raise ChunkCorrupt(f"unknown checksum algorithm {name[:32]!r}")
    if family == BLAKE2B:
        size = int(bits) // 8
        return lambda buffer: hashlib.blake2b(buffer, digest_size=size).digest()
    try:
        from xxhash import xxh3_64_digest, xxh3_128_digest
    except ImportError as error:
        raise ChunkRefused("checksums are xxh3: install xxhash to read this chunk") from error
    hasher: Callable[[Buffer], bytes] = xxh3_64_digest if bits == "64" else xxh3_128_digest
    return hasher
