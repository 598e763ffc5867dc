"""One read of a chunk from Redis: its header, and ranges of its values, into one buffer.

The next batch is requested before the current one has arrived. So the server never waits, and
never holds more than two batches of replies in its memory.

A read can go on where it stopped at another server of a cluster. Should the chunk have been
replaced in between, the bytes do not match the digests in its header, so a mixture is found.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kvstore.errors import ChunkCorrupt, TierTimeout
from kvstore.format.buffers import ByteRange, total_bytes, view_bytes
from kvstore.format.chunk_header import ChunkHeader, parse_header
from kvstore.tiers.base import ChunkProgress
from kvstore.tiers.redis.redis_server import Redirected, RedisServer, ValueReplies, Words

BATCH_BYTES = 2 << 20  # bytes of values requested at a time


@dataclass(frozen=True)
class RangePlan:
    """The ranges to read, the commands that fetch them, what lengths mean that a value is not
    there, and commands to end with."""

    ranges: Sequence[ByteRange]
    commands: Sequence[Words]
    absent: Sequence[int | None]
    last: Sequence[Words]


@dataclass
class ChunkRead:
    """Reads ranges of one chunk, and its header first where that is not known.

    Attributes:
        head: name of the header's value.
        plan_of: says what is read of a chunk with this header; None: only the header.
    """

    head: str
    plan_of: Callable[[ChunkHeader], RangePlan] | None
    allocate: Callable[[int], Tensor]
    on_progress: ChunkProgress | None
    give_up_at: float
    header: ChunkHeader | None = None
    data: Tensor | None = None
    _plan: RangePlan | None = None
    _done: int = 0  # ranges in place
    _filled: int = 0  # bytes in place

    def on_server(self, server: RedisServer) -> bool:
        """Read from the server that has the slot; False when something is missing."""
        try:
            with server.values(self.give_up_at) as replies:
                return self._receive(replies)
        except Redirected:
            if self._plan is not None and self._done == len(self._plan.ranges):
                return True  # only the times of expiry could not be renewed
            raise

    def value_by_value(self, client: Any) -> bool:
        """Read like `on_server`, but through a client that follows redirects."""
        return self._receive(_RepliesOneByOne(client, self.give_up_at))

    def _receive(self, replies: "ValueReplies | _RepliesOneByOne") -> bool:
        if self.header is None:
            replies.ask([("GET", self.head)])
            raw = replies.value()
            if raw is None:
                return False
            self.header = parse_header(raw)
        if self.plan_of is None:
            return True
        if self._plan is None or self.data is None:
            self._plan = self.plan_of(self.header)
            self.data = self.allocate(total_bytes(self._plan.ranges))
        plan, view = self._plan, view_bytes(self.data)
        batches = list(_batches(plan.ranges[self._done :]))
        asked = self._done
        for number, batch in enumerate(batches):
            for ahead in batches[number + bool(number) : number + 2]:
                replies.ask(plan.commands[asked : asked + len(ahead)])
                asked += len(ahead)
            if number + 1 == len(batches):
                replies.ask(plan.last)
            for one in batch:
                nbytes = replies.fill(view[self._filled : self._filled + one.nbytes])
                if nbytes in plan.absent:
                    return False
                if nbytes != one.nbytes:
                    raise ChunkCorrupt(f"layer {one.layer} gave {nbytes} bytes, not {one.nbytes}")
                self._done += 1
                self._filled += one.nbytes
                following = plan.ranges[self._done : self._done + 1]
                same_layer = following and following[0].layer == one.layer
                if self.on_progress is not None and not same_layer:
                    self.on_progress(self.header, self.data, self._filled)
        if batches:
            replies.flags(len(plan.last))
        return True


class _RepliesOneByOne:
    """What `ValueReplies` is, through a client of redis-py: it waits for each reply."""

    def __init__(self, client: Any, give_up_at: float) -> None:
        self._client = client
        self._give_up_at = give_up_at
        self._asked: deque[Words] = deque()

    def ask(self, commands: Sequence[Words]) -> None:
        self._asked.extend(commands)

    def value(self) -> bytes | None:
        if time.monotonic() > self._give_up_at:
            raise TierTimeout("a read took over its deadline")
        value: bytes | None = self._client.execute_command(*self._asked.popleft())
        return value

    def fill(self, target: memoryview) -> int | None:
        value = self.value()
        if value is not None and len(value) == len(target):
            target[:] = value
        return None if value is None else len(value)

    def flags(self, count: int) -> None:
        for _ in range(count):
            self.value()


def _batches(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Yield batches of at most `BATCH_BYTES` bytes, but at least one range each."""
    batch: list[ByteRange] = []
    held = 0
    for one in ranges:
        if batch and held + one.nbytes > BATCH_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(one)
        held += one.nbytes
    if batch:
        yield batch
