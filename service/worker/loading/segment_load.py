"""One request's load of one segment, whole or in part: the plan for it, and its result."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvstore import BlocksOutcome, EncodedChunk
from service.worker.loading.chunk_stream import ChunkStream, stored_bytes
from service.worker.methods.sparse.sketch import Sketch
from service.worker.model.addressing import Address

LOAD, RECOMPUTE = "load", "recompute"
UNCACHED = "cold"
"""The tier named in reports for KV that was computed with the prompt."""


@dataclass
class SegmentRead:
    """Where the KV of one segment came from, for the request's report.

    Attributes:
        tier: the tier from which it was read, or `UNCACHED`.
        nbytes: bytes that were read.
        stored_bytes: bytes of the segment's whole stored KV.
        seconds: how long reading took.
        problems: (tier, kind) of everything that went wrong.
    """

    tier: str = UNCACHED
    nbytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    problems: list[tuple[str, str]] = field(default_factory=list)


class Load(Protocol):
    """The load of one segment, whole (`SegmentLoad`) or in part (`PartialLoad`).

    Attributes:
        address: of the segment's chunk.
        plan: "load", "recompute", or empty where there was no choice.
        why: the reason for a plan to recompute.
        computed_alone: the chunk was missing; it was computed by itself for the prompt, and is
            being stored.
    """

    address: Address
    plan: str
    why: str
    computed_alone: bool

    @property
    def pending(self) -> Future[Any] | None:
        """What to wait for until it is known whether it is stored; None if that is known."""

    @property
    def usable(self) -> bool:
        """Whether it is loaded or being loaded."""

    @property
    def missed(self) -> bool:
        """Whether it was not found or was damaged, and has not been stored since."""

    def so_far(self) -> SegmentRead:
        """Return where its KV came from, as far as is known now."""

    def settle(self) -> ChunkStream | None:
        """End the load with its prompt; return the stream to release, if there is one.

        Later calls return None.
        """


@dataclass
class SegmentLoad:
    """The load of a whole segment, which is read while the prompt runs. Implements `Load`.

    Attributes:
        plan: "load" or "recompute"; empty for a method whose loads are not planned.
        stream: the chunk that is being read or used; None before and after that.
        why: the reason for a plan to recompute.
        read: the result of the load, after it has ended.
        lost: whether the chunk was lost, after the load has ended.
        computed: the chunk, where it was computed by itself for the prompt; until the load ends.
        computed_alone: whether it was; it is being stored, if it was missing.
    """

    address: Address
    stream: ChunkStream | None = None
    plan: str = LOAD
    why: str = ""
    read: SegmentRead | None = None
    lost: bool = False
    computed: EncodedChunk | None = field(default=None, repr=False)
    computed_alone: bool = False
    _settling: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def pending(self) -> Future[None] | None:
        stream = self.stream
        return None if stream is None or stream.known else stream.part_futures[0]

    @property
    def known(self) -> bool:
        """Whether it is known if the segment is stored."""
        return self.pending is None

    @property
    def usable(self) -> bool:
        return self.plan != RECOMPUTE and self.stream is not None and not self.stream.lost

    @property
    def missed(self) -> bool:
        stream_lost = self.stream is not None and self.stream.lost
        return self.plan != RECOMPUTE and (self.lost or stream_lost) and not self.computed_alone

    @property
    def stored(self) -> EncodedChunk | ChunkStream | None:
        """KV to place in the prompt; None if the segment's rows must be computed with it."""
        if self.computed is not None or not self.usable:
            return self.computed
        assert self.stream is not None
        return self.stream.chunk or self.stream

    def compute(self, why: str) -> None:
        """Plan to compute the segment instead of loading it."""
        self.plan, self.why = RECOMPUTE, why

    def settle(self) -> ChunkStream | None:
        with self._settling:
            stream, self.computed = self.stream, None
            if stream is not None:
                self.read, self.lost, self.stream = self.so_far(), stream.lost, None
        return stream

    def so_far(self) -> SegmentRead:
        if self.read is not None:
            return self.read
        source, _, text = self.why.partition(": ")
        planned = [(source, text)] if self.plan == RECOMPUTE else []
        stream = self.stream
        if stream is None:
            return SegmentRead(problems=planned)
        return SegmentRead(
            stream.tier or UNCACHED if self.usable else UNCACHED,
            stream.nbytes,
            max(stream.nbytes, stored_bytes(self.address)) if self.usable else 0,
            stream.seconds,
            [*stream.problems, *planned],
        )


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
