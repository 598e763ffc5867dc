"""What a tier is: it moves the bytes of chunks and knows neither tensors nor other tiers.

Tiers are synchronous and safe to call from several threads. Nothing is opened before ``start``.
Checksums of the data are the store's business (it verifies what it reads); a tier checks only
what it needs to find the bytes: the header and the lengths.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from kvstore.chunk import EncodedChunk
from kvstore.header import ChunkHeader

# memory: holds the objects themselves, so its data need no second verification.
# disk:   this machine's; written at once by put, in the background by promotion.
# shared: other processes see it; always written in the background.
TierKind = Literal["memory", "disk", "shared"]


@dataclass(frozen=True)
class Usage:
    """What a tier holds now. ``None`` where the tier cannot tell cheaply or has no bound."""

    entries: int | None
    used_bytes: int | None
    capacity_bytes: int | None
    evictions: int | None


class Tier(Protocol):
    """Any operation may raise a :class:`kvstore.errors.TierError` or an ``OSError``."""

    @property
    def name(self) -> str:
        """Label in outcomes and metrics; unique in a store."""
        ...

    @property
    def kind(self) -> TierKind: ...

    def start(self) -> None:
        """Open files, sockets and the index. A tier may be started again after ``close``."""
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

    def read(self, key: str) -> EncodedChunk | None:
        """The whole chunk, data not verified; None when there is no such chunk."""
        ...

    def read_layers(
        self, key: str, header: ChunkHeader, layers: Sequence[int]
    ) -> dict[int, Tensor] | None:
        """Some layers' bytes (host uint8, not verified); ``header`` is the chunk's own."""
        ...

    def contains(self, keys: Collection[str]) -> set[str]:
        """Which of these it holds; reads no data and does not count as a use."""
        ...

    def delete(self, keys: Collection[str]) -> int:
        """Remove these; the number of chunks that were there."""
        ...

    def keys(self) -> Iterable[str]:
        """All keys, in no order."""
        ...

    def usage(self) -> Usage: ...
