"""One request's load of a document of which only some blocks are read (for sparse methods)."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from kvstore import BlocksOutcome
from service.worker.loading.chunk_stream import ChunkStream, stored_bytes
from service.worker.loading.segment_load import UNCACHED, SegmentRead
from service.worker.methods.sparse.sketch import Sketch
from service.worker.model.addressing import Address


@dataclass(frozen=True)
class EndsOutcome:
    """The result of the first read of a document.

    Attributes:
        sketch: the document's sketch; None if it is not stored or is damaged.
        read: the first and last blocks; None if they were not read, because there is no sketch.
        seconds: how long both reads took together.
        sketch_bytes: bytes of the stored sketch.
    """

    sketch: Sketch | None
    read: BlocksOutcome | None
    seconds: float
    sketch_bytes: int = 0

    @property
    def usable(self) -> bool:
        """Whether sketch and blocks were all read."""
        return self.read is not None and self.read.blocks is not None and not self.read.missing

    @property
    def tier(self) -> str | None:
        """The tier of the blocks."""
        return self.read.tier if self.read is not None else None

    @property
    def nbytes(self) -> int:
        """Bytes that were read."""
        return self.sketch_bytes + (self.read.nbytes if self.read is not None else 0)

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        return self.read.problems if self.read is not None else ()


@dataclass
class PartialLoad:
    """The load of a document's sketch, first and last blocks, and later of some middle blocks.

    Implements `Load`.

    Attributes:
        ends: the read of the sketch and of the first and last blocks, before the prompt starts.
        blocks: the result of reading middle blocks; None until then.
        computed_alone: the document was missing; it was computed by itself for the prompt, and is
            being stored.
        plan: always empty: these loads are not planned.
        why: always empty.
    """

    address: Address
    ends: Future[EndsOutcome]
    blocks: BlocksOutcome | None = None
    computed_alone: bool = False
    plan: str = field(default="", init=False)
    why: str = field(default="", init=False)

    @property
    def pending(self) -> Future[EndsOutcome] | None:
        return None if self.ends.done() else self.ends

    @property
    def usable(self) -> bool:
        return self.ends.done() and self.ends.result().usable and not self.computed_alone

    @property
    def missed(self) -> bool:
        return self.ends.done() and not self.ends.result().usable and not self.computed_alone

    def settle(self) -> ChunkStream | None:
        return None

    def so_far(self) -> SegmentRead:
        if not self.ends.done():
            return SegmentRead()
        ends, middle = self.ends.result(), self.blocks
        return SegmentRead(
            ends.tier or UNCACHED if self.usable else UNCACHED,
            ends.nbytes + (middle.nbytes if middle is not None else 0),
            stored_bytes(self.address),
            ends.seconds + (middle.seconds if middle is not None else 0.0),
            [*ends.problems, *(middle.problems if middle is not None else ())],
        )
