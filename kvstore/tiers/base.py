"""The protocol of tiers, which move the bytes of chunks.

Tiers are synchronous and safe to call from several threads. Nothing is opened before `start`. The
store verifies the data that it reads; a tier checks only what it needs to find the bytes: the
header and the lengths.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from kvstitch.kvstore.format.buffers import ByteRange
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader

# memory: keeps the chunk objects themselves, so whole chunks need no second verification.
# disk:   on this machine; put writes at once, copies from slower tiers come in the background.
# shared: visible to other processes; always written in the background.
TierKind = Literal["memory", "disk", "shared"]


ChunkProgress = Callable[[ChunkHeader, Tensor, int], None]
"""Called by the reading thread, rarely or never: `(header, data, done)`. The first `done` bytes of
`data` are final; `done` never falls. An exception raised by it ends the read."""


@dataclass(frozen=True)
class TierUsage:
    """What a tier holds now: chunks, bytes of chunks and extra tensors, and both evicted since the
    start. None where the tier cannot tell cheaply or has no bound."""

    entries: int | None
    used_bytes: int | None
    capacity_bytes: int | None
    evictions: int | None
    servers: int = 0
    servers_down: int = 0


class Tier(Protocol):
    """One place that stores chunks. Any operation may raise a `TierError` or an `OSError`, any
    read `ChunkCorrupt` for a damaged header and `ChunkRefused` for an unknown format or codec.

    `name` is its label in outcomes and metrics, `kind` says how the store uses it.
    """

    name: str
    kind: TierKind

    def start(self) -> None:
        """Open files, sockets and the index. A tier can be started again after `close`."""
        return

    def close(self) -> None:
        """Release everything; further operations raise `TierUnavailable`."""

    def put(self, key: str, chunk: EncodedChunk) -> None:
        """Store a chunk, visible as a whole or not at all; raise TierFull if it does not fit."""

    def read_header(self, key: str) -> ChunkHeader | None:
        """Read only the header; return None if there is no such chunk."""

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        """Read the whole chunk, its data not verified; return None if there is no such chunk."""

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None = None,
    ) -> Tensor | None:
        """Read ascending ranges of the data section: host uint8, one after the other, not verified.

        If the chunk has been replaced since its header was read, the tier raises `ChunkCorrupt` or
        returns bytes that fail verification.
        """

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        """Store extra bytes (host uint8) of a chunk, in place of older ones with that name; they
        are deleted with it. Disk and shared tiers return False if they do not hold the chunk."""

    def read_extra(self, key: str, name: str) -> Tensor | None:
        """Read extra bytes without verifying them; return None if there are none."""

    def contains(self, keys: Collection[str]) -> set[str]:
        """Return which of these chunks the tier holds. Reads no data; not counted as a use."""

    def delete(self, keys: Collection[str]) -> int:
        """Delete these chunks and their extra bytes; return how many chunks were there."""

    def keys(self) -> Iterable[str]:
        """Return the keys of all chunks, in any order."""

    @property
    def usage_is_asked(self) -> bool:
        """Whether `usage` asks a server, so that an answer shows that the tier is well."""
        return False

    def usage(self) -> TierUsage:
        """Return what the tier holds now."""

    def scan_counts(self) -> Mapping[str, int]:
        """Return how many damaged copies the start found, by outcome; empty if it looks at none."""
        return {}
