"""Checksums (xxh3), written as text.

    one buffer          "xxh3_128:<32 hex>"
    blocks of a tensor  "xxh3_64:<base64>", 64 bits per block, in order

In place of digests a sealed chunk has the tags of its blocks, 128 bits each (sealed_chunk.py).

They run at memory speed (about 10 GB/s on one core), and detect accidents, not forgery: 64 bits
miss one damaged block in 2^64, and keep the digests of a chunk below 1 % of its bytes.
"""

from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from xxhash import xxh3_64_digest, xxh3_128_hexdigest

from kvstore.errors import ChunkCorrupt

XXH3_64, GCM = "xxh3_64", "aes-256-gcm"
BLOCK_DIGEST_BYTES = 8
_BYTES = {XXH3_64: BLOCK_DIGEST_BYTES, GCM: 16}
NO_CHECKSUM = f"xxh3_128:{'0' * 32}"
"""As long as a checksum."""

Buffer = bytes | bytearray | memoryview


def checksum(buffer: Buffer) -> str:
    """Return the checksum of a buffer."""
    return f"xxh3_128:{xxh3_128_hexdigest(buffer)}"


@dataclass(frozen=True)
class BlockDigests:
    """Digests of one tensor's blocks."""

    algorithm: str
    digests: bytes

    @classmethod
    def of(cls, blocks: Iterable[Buffer]) -> Self:
        """Compute the digests of these blocks."""
        return cls(XXH3_64, b"".join(map(xxh3_64_digest, blocks)))

    @classmethod
    def parse(cls, text: str, blocks: int) -> Self:
        """Read what the property `text` wrote."""
        name, _, encoded = text.partition(":")
        if name not in _BYTES:
            raise ChunkCorrupt(f"unknown algorithm of digests {name[:32]!r}")
        try:
            digests = a2b_base64(encoded, strict_mode=True)
        except ValueError as error:
            raise ChunkCorrupt(f"digests are not base64: {error}") from error
        if len(digests) != blocks * _BYTES[name]:
            raise ChunkCorrupt(f"{len(digests)} bytes of digests for {blocks} blocks")
        return cls(name, digests)

    @property
    def text(self) -> str:
        """The form that stands in a header: `<algorithm>:<base64>`."""
        return f"{self.algorithm}:{b64encode(self.digests).decode()}"

    def differing(self, blocks: Sequence[int], contents: Iterable[Buffer]) -> list[int]:
        """Return those blocks whose content does not match its digest."""
        # One C loop over all blocks: one Python call per block would cost as much as the hashing.
        found = list(map(xxh3_64_digest, contents))
        size = BLOCK_DIGEST_BYTES
        if len(blocks) * size == len(self.digests) and b"".join(found) == self.digests:
            return []
        return [
            block
            for block, digest in zip(blocks, found, strict=True)
            if digest != self.digests[block * size : (block + 1) * size]
        ]
