"""One read of a chunk from Redis, which can go on at another server."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from kvstore.errors import TierTimeout
from kvstore.format.buffers import total_bytes
from kvstore.format.chunk_header import ChunkHeader, parse_header
from kvstore.tiers.base import ChunkProgress
from kvstore.tiers.redis.range_fetch import RangeFetch
from kvstore.tiers.redis.redis_errors import Redirected
from kvstore.tiers.redis.redis_server import RedisServer
from kvstore.tiers.redis.resp import Replies, command


class ChunkRead:
    """Reads ranges of one chunk, and its header first where that is not known.

    Args:
        head: name of the header.
        plan: the ranges to fetch, given the header; None if the header is all that is wanted.
        allocate: gives the buffer for so many bytes.
        on_progress: called while the data arrive.
        give_up_at: deadline of the whole read, by `time.monotonic` (seconds).
        header: if it is known.

    Attributes:
        header: once it is known.
        data: the bytes of the ranges, once the first is requested.
    """

    def __init__(
        self,
        head: str,
        plan: Callable[[ChunkHeader], RangeFetch] | None,
        allocate: Callable[[int], Tensor],
        on_progress: ChunkProgress | None,
        give_up_at: float,
        header: ChunkHeader | None = None,
    ) -> None:
        self._head = head
        self._plan = plan
        self._allocate = allocate
        self._on_progress = on_progress
        self._give_up_at = give_up_at
        self._fetch: RangeFetch | None = None
        self.header = header
        self.data: Tensor | None = None

    def on_server(self, server: RedisServer) -> bool:
        """Read from the server that has the slot; False when something is missing."""
        try:
            with server.values(self._give_up_at) as replies:
                return self._receive(replies)
        except Redirected:
            if self._fetch is not None and self._fetch.complete:
                return True  # only the times of expiry could not be renewed
            raise

    def singly(self, client: Any) -> bool:
        """Read value by value through a client that follows redirects."""

        def execute(*words: str | int) -> bytes | None:
            if time.monotonic() > self._give_up_at:
                raise TierTimeout("a read took over its deadline")
            value: bytes | None = client.execute_command(*words)
            return value

        if self.header is None:
            raw = execute("GET", self._head)
            if raw is None:
                return False
            self.header = parse_header(raw)
        if self._plan is None:
            return True
        fetch, data, progress = self._prepared(self.header, self._plan)
        if not fetch.fetch_singly(execute, data, progress):
            return False
        for words in fetch.last:
            execute(*words)
        return True

    def _receive(self, replies: Replies) -> bool:
        if self.header is None:
            replies.ask([command("GET", self._head)])
            raw = replies.value()
            if raw is None:
                return False
            self.header = parse_header(raw)
        if self._plan is None:
            return True
        fetch, data, progress = self._prepared(self.header, self._plan)
        return fetch.fetch(replies, data, progress)

    def _prepared(
        self, header: ChunkHeader, plan: Callable[[ChunkHeader], RangeFetch]
    ) -> tuple[RangeFetch, Tensor, Callable[[int], None] | None]:
        if self._fetch is None:
            self._fetch = plan(header)
        if self.data is None:
            self.data = self._allocate(total_bytes(self._fetch.ranges))
        listener = self._on_progress
        progress = partial(listener, header, self.data) if listener else None
        return self._fetch, self.data, progress
