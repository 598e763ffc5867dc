"""One request's load of one segment: the plan for it, and its result."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from kvstitch.kvstore import EncodedChunk
from kvstitch.service.worker.loading.chunk_stream import ChunkStream, stored_bytes
from kvstitch.service.worker.methods.layer_view import ChunkExtra
from kvstitch.service.worker.model.addressing import Address

LOAD, RECOMPUTE = "load", "recompute"
UNCACHED = "cold"
"""The tier named in reports for KV that was computed with the prompt."""


@dataclass
class SegmentRead:
    """Where the KV of one segment came from, for the request's report."""

    tier: str = UNCACHED  # the tier from which it was read, or `UNCACHED`
    nbytes: int = 0
    stored_bytes: int = 0  # bytes of the segment's whole stored KV
    seconds: float = 0.0
    # (tier, kind) of everything that went wrong
    problems: list[tuple[str, str]] = field(default_factory=list)


@dataclass(kw_only=True)
class Load(ABC):
    """The load of one segment, whole (`SegmentLoad`) or as a `PartialMethod` reads it."""

    address: Address
    plan: str = ""  # "load", "recompute", or empty where there is no choice
    why: str = ""
    # the chunk was missing; it was computed by itself for the prompt, and is being stored
    computed_alone: bool = False
    extra: ChunkExtra | None = None  # what is to be stored beside the chunk if it is missing

    @property
    @abstractmethod
    def pending(self) -> Future[Any] | None:
        """What to wait for until it is known whether it is stored; None if that is known."""

    @property
    @abstractmethod
    def usable(self) -> bool:
        """Whether it is loaded or being loaded."""

    @property
    @abstractmethod
    def missed(self) -> bool:
        """Whether it was not found or was damaged, and has not been stored since."""

    @abstractmethod
    def so_far(self) -> SegmentRead:
        """Return where its KV came from, as far as is known now."""

    @property
    def stored(self) -> EncodedChunk | ChunkStream | None:
        """KV to place in the prompt; None if the segment's rows must be computed with it."""
        return None

    def settle(self) -> ChunkStream | None:
        """End the load with its prompt; return the stream to release, if there is still one."""
        return None


@dataclass(kw_only=True)
class SegmentLoad(Load):
    """The load of a whole segment, which is read while the prompt runs."""

    plan: str = LOAD
    # the chunk that is being read or used; None before and after that
    stream: ChunkStream | None = None
    read: SegmentRead | None = None  # the result of the load, after it has ended
    lost: bool = False  # whether the chunk was lost, after the load has ended
    # the chunk, where it was computed by itself for the prompt; until the load ends
    computed: EncodedChunk | None = field(default=None, repr=False)
    _settling: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def pending(self) -> Future[None] | None:
        stream = self.stream
        return None if stream is None or stream.known else stream.part_futures[0]

    @property
    def usable(self) -> bool:
        return self.plan != RECOMPUTE and self.stream is not None and not self.stream.lost

    @property
    def whole(self) -> bool:
        """Whether it is loaded, all layers of it at once."""
        stream = self.stream
        return stream is not None and stream.chunk is not None and self.plan != RECOMPUTE

    @property
    def missed(self) -> bool:
        stream_lost = self.stream is not None and self.stream.lost
        return self.plan != RECOMPUTE and (self.lost or stream_lost) and not self.computed_alone

    @property
    def stored(self) -> EncodedChunk | ChunkStream | None:
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


@dataclass
class Loads:
    # of S, then of the documents, None for an empty one; [] if nothing is read
    segments: list[Load | None] = field(default_factory=list)
    # done when the chunks have been found and their loads have been started
    found: Future[None] | None = None
    decided_at: float = 0.0  # when it was last decided which segments are loaded, by time.monotonic
    # whether the planner computes all of the prompt, rather than use its method
    whole: bool = False
    # floating-point operations of chunks that were computed by themselves for it
    chunk_flops: float = 0.0
    ended: bool = False  # whether nothing of it is needed any more

    @property
    def known(self) -> bool:
        """Whether all chunks have been looked up, and first reads are finished."""
        if self.found is not None and not self.found.done():
            return False
        return all(load is None or load.pending is None for load in self.segments)

    @property
    def under_way(self) -> list[SegmentLoad]:
        """Loads of segments that are still being read."""
        return [
            load
            for load in self.segments
            if isinstance(load, SegmentLoad)
            and load.usable
            and load.stream
            and not load.stream.done
        ]
