"""One request's side of a segment's load: what was planned for it, and what came of that."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from service.worker.loading.chunk_stream import ChunkStream, stored_bytes
from service.worker.model.addressing import Address

LOAD, RECOMPUTE = "load", "recompute"
UNCACHED = "cold"
"""The tier that a report names for KV that was computed with the prompt."""


@dataclass
class SegmentRead:
    """Where the KV of one segment came from.

    Attributes:
        tier: that it was read from, or `UNCACHED`.
        nbytes: bytes that were read.
        stored_bytes: bytes of the segment's whole stored KV.
        seconds: that reading took.
        problems: (tier, kind) of what went wrong on the way.
    """

    tier: str = UNCACHED
    nbytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    problems: list[tuple[str, str]] = field(default_factory=list)


class Load(Protocol):
    """The load of one segment, whole (`SegmentLoad`) or in part (`PartialLoad`).

    Attributes:
        plan: "load", "recompute", or empty where there was no choice.
        why: the reason of a plan that is not to load.
        stored_again: it was missing; it was computed with the prompt, and is being stored.
    """

    address: Address
    plan: str
    why: str
    stored_again: bool

    @property
    def pending(self) -> Future[Any] | None:
        """What to wait for until it is known what can be used; None: it is known."""
        ...

    @property
    def usable(self) -> bool:
        """It is there or on its way."""
        ...

    @property
    def missed(self) -> bool:
        """It was looked for and not found whole and sound, and has not been stored since."""
        ...

    def so_far(self) -> SegmentRead:
        """Where its KV came from."""
        ...

    def settle(self) -> ChunkStream | None:
        """The prompt is over: the stream to give back, if there is one; later calls give None."""
        ...


@dataclass
class SegmentLoad:
    """A whole segment, read while the prompt runs.

    Attributes:
        plan: "load" or "recompute"; empty for a method whose loads are not planned.
        stream: while it is read or used.
        read: what that took, once it is over.
        stored_again: it was missing; it was computed with the prompt, and is being stored.
    """

    address: Address
    stream: ChunkStream | None = None
    plan: str = LOAD
    why: str = ""
    read: SegmentRead | None = None
    lost: bool = False
    stored_again: bool = False
    _settling: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def pending(self) -> Future[None] | None:
        stream = self.stream
        return None if stream is None or stream.known else stream.part_futures[0]

    @property
    def known(self) -> bool:
        """Whether it is known what can be used of it."""
        return self.pending is None

    @property
    def usable(self) -> bool:
        return self.plan != RECOMPUTE and self.stream is not None and not self.stream.lost

    @property
    def missed(self) -> bool:
        stream_lost = self.stream is not None and self.stream.lost
        return self.plan != RECOMPUTE and (self.lost or stream_lost) and not self.stored_again

    def compute(self, why: str) -> None:
        """Compute it instead of loading it."""
        self.plan, self.why = RECOMPUTE, why

    def settle(self) -> ChunkStream | None:
        with self._settling:
            stream = self.stream
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
