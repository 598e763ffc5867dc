"""What a tier is: it moves the bytes of chunks and knows neither tensors nor other tiers.

Tiers are synchronous and safe to call from several threads. Nothing is opened before `start`.
Checksums of the data are the store's business (it verifies what it reads); a tier checks only
what it needs to find the bytes: the header and the lengths.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from kvstore.format.byte_ranges import ByteRange
from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_header import ChunkHeader

# memory: holds the objects themselves, so whole chunks need no second verification.
# disk:   this machine's; written at once by put, in the background by promotion.
# shared: other processes see it; always written in the background.
TierKind = Literal["memory", "disk", "shared"]


ChunkProgress = Callable[[ChunkHeader, Tensor, int], None]
"""What a reader is told while its data come: the chunk's header, the data being filled, and how
many of its bytes are in place (those are not touched again). Called by the reading thread, never
with less than before; a tier may call it rarely or not at all. What it raises ends the read."""


@dataclass(frozen=True)
class TierUsage:
    """What a tier holds now. `None` where the tier cannot tell cheaply or has no bound.

    Attributes:
        entries: chunks; what stands beside them is counted in the bytes alone.
        used_bytes, capacity_bytes, evictions: chunks and their extra tensors.
    """

    entries: int | None
    used_bytes: int | None
    capacity_bytes: int | None
    evictions: int | None


class Tier(Protocol):
    """Any operation may raise a :class:`kvstore.errors.TierError` or an `OSError`."""

    @property
    def name(self) -> str:
        """Label in outcomes and metrics; unique in a store."""
        ...

    @property
    def kind(self) -> TierKind: ...

    def start(self) -> None:
        """Open files, sockets and the index. A tier may be started again after `close`."""
        ...

    def close(self) -> None:
        """Release everything; further operations raise :class:`TierUnavailable`."""
        ...

    def put(self, key: str, chunk: EncodedChunk) -> None:
        """Keep a chunk: afterwards it is visible whole, or not at all.

        Raises:
            TierFull: it does not fit.
        """
        ...

    def read_header(self, key: str) -> ChunkHeader | None:
        """The header alone; None when there is no such chunk.

        Raises:
            ChunkCorrupt, ChunkRefused: from parsing it. So do the other reads.
        """
        ...

    def read(self, key: str, arrived: ChunkProgress | None = None) -> EncodedChunk | None:
        """The whole chunk, data not verified; None when there is no such chunk."""
        ...

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        arrived: ChunkProgress | None = None,
    ) -> Tensor | None:
        """Some ranges of the data section (ascending, disjoint), one after the other.

        Host uint8, not verified; no other data are moved. None when there is no such chunk.

        Args:
            header: the chunk's, as it was when somebody read it. If another chunk has taken its
                place, :class:`ChunkCorrupt` or bytes that do not verify are the answer.
            ranges: which.
            arrived: told of the progress.
        """
        ...

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        """Keep extra bytes (host uint8) of a chunk under a name, in place of what has that name.

        They go when the chunk goes. Disk and shared tiers keep them only beside the chunk itself.

        Returns:
            Whether it kept them: False when the chunk is not there.

        Raises:
            TierFull: they do not fit.
        """
        ...

    def read_extra(self, key: str, name: str) -> Tensor | None:
        """Those bytes, not verified; None when there are none."""
        ...

    def contains(self, keys: Collection[str]) -> set[str]:
        """Which of these chunks it holds; reads no data and does not count as a use."""
        ...

    def delete(self, keys: Collection[str]) -> int:
        """Remove these, extra bytes included; the number of chunks that were there."""
        ...

    def keys(self) -> Iterable[str]:
        """Keys of all chunks, in no order."""
        ...

    def usage(self) -> TierUsage: ...
