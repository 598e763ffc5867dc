"""One request's side of a document of which only some blocks are read (sparse methods)."""

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
    """What the first read of a document gave.

    Attributes:
        sketch: None if it is not stored or damaged.
        read: the first and last blocks; None if they were not asked for.
        seconds: of both reads together.
        sketch_bytes: bytes of the sketch.
    """

    sketch: Sketch | None
    read: BlocksOutcome | None
    seconds: float
    sketch_bytes: int = 0

    @property
    def usable(self) -> bool:
        return self.read is not None and self.read.blocks is not None and not self.read.missing

    @property
    def tier(self) -> str | None:
        return self.read.tier if self.read is not None else None

    @property
    def nbytes(self) -> int:
        return self.sketch_bytes + (self.read.nbytes if self.read is not None else 0)

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        return self.read.problems if self.read is not None else ()


@dataclass
class PartialLoad:
    """A document's sketch and ends, read before the prompt starts; the blocks that are read later
    add to its figures.

    Attributes:
        ends: the first read.
        blocks: the later read, once it is over.
        stored_again: it was missing; it was computed with the prompt, and is being stored.
    """

    address: Address
    ends: Future[EndsOutcome]
    blocks: BlocksOutcome | None = None
    stored_again: bool = False
    plan: str = field(default="", init=False)
    why: str = field(default="", init=False)

    @property
    def pending(self) -> Future[EndsOutcome] | None:
        return None if self.ends.done() else self.ends

    @property
    def usable(self) -> bool:
        return self.ends.done() and self.ends.result().usable and not self.stored_again

    @property
    def missed(self) -> bool:
        return self.ends.done() and not self.ends.result().usable and not self.stored_again

    def settle(self) -> ChunkStream | None:
        return None

    def so_far(self) -> SegmentRead:
        if not self.ends.done():
            return SegmentRead()
        found, later = self.ends.result(), self.blocks
        return SegmentRead(
            found.tier or UNCACHED if self.usable else UNCACHED,
            found.nbytes + (later.nbytes if later is not None else 0),
            stored_bytes(self.address),
            found.seconds + (later.seconds if later is not None else 0.0),
            [*found.problems, *(later.problems if later is not None else ())],
        )
