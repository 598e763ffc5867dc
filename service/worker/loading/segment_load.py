"""One request's side of a segment's load: what was planned, what came of it. Knows no store."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from service.worker.loading.chunk_stream import ChunkStream, stored_bytes
from service.worker.model.addressing import Address
from service.worker.sequences.sparse_request import SegmentRead

LOAD, RECOMPUTE = "load", "recompute"


@dataclass
class SegmentLoad:
    """A segment that may be stored. plan: "load" or "recompute"; why: of the latter; stream: while
    it is read or used; read: what that took, once it is over."""

    address: Address
    stream: ChunkStream | None = None
    plan: str = LOAD
    why: str = ""
    read: SegmentRead | None = None
    lost: bool = False
    _settling: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def known(self) -> bool:
        """Whether it is known what can be used of it."""
        return self.stream is None or self.stream.known

    @property
    def usable(self) -> bool:
        """It is there or on its way."""
        return self.plan == LOAD and self.stream is not None and not self.stream.lost

    @property
    def missed(self) -> bool:
        """Looked for and not found whole and sound."""
        return self.plan == LOAD and (self.lost or (self.stream is not None and self.stream.lost))

    def compute(self, why: str) -> None:
        """It is not loaded after all."""
        self.plan, self.why = RECOMPUTE, why

    def settle(self) -> ChunkStream | None:
        """The prompt is over: keep what is to be reported, give back the stream, once."""
        with self._settling:
            stream = self.stream
            if stream is not None:
                self.read, self.lost, self.stream = self.so_far(), stream.lost, None
        return stream

    def so_far(self) -> SegmentRead:
        """Where its KV came from."""
        if self.read is not None:
            return self.read
        source, _, text = self.why.partition(": ")
        told = [(source, text)] if self.plan == RECOMPUTE else []
        stream = self.stream
        if stream is None:
            return SegmentRead(problems=told)
        return SegmentRead(
            stream.tier or "cold" if self.usable else "cold",
            stream.nbytes,
            max(stream.nbytes, stored_bytes(self.address)) if self.usable else 0,
            stream.seconds,
            [*stream.problems, *told],
        )
