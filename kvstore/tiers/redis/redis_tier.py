"""Chunks in a Redis shared by several processes or machines.

    kvstitch:{<key>}:h      the header
    kvstitch:{<key>}:<l>    the data of layer l; ranges of it are fetched alone
    kvstitch:{<key>}:x      a hash of extra tensors, one field per name

The braces are a hash tag: all values of a chunk share a cluster slot (the client here is still for
a single server), so one MULTI/EXEC writes them. Inside it the header comes last, and a chunk counts
as present only by its header; a writer that dies, or runs out of memory, leaves nothing behind.
Redis may evict values one by one: a chunk with a missing layer is a miss, and what remains of it is
deleted.

Time is bounded per socket operation and per call.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from kvstore.format.buffers import BufferPool, view_bytes
from kvstore.format.byte_ranges import ByteRange, total_bytes
from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_header import ChunkHeader, parse_header
from kvstore.format.chunk_keys import require_chunk_key, require_extra_name
from kvstore.format.chunk_spec import MAX_LAYERS
from kvstore.tiers.base import ChunkProgress, TierKind, TierUsage
from kvstore.tiers.redis.range_fetch import RangeFetch, fetch_ranges
from kvstore.tiers.redis.redis_client import RedisClient
from kvstore.tiers.redis.resp import Replies, command

T = TypeVar("T")

_BATCH_KEYS = 512  # per pipeline


class RedisTier:
    """A Redis server that holds chunks.

    Args:
        url: `redis://host:port/db`, `rediss://` or `unix://`.
        timeout_s: longest wait for one socket operation, connecting included.
        deadline_s: longest one read may take before it is given up as a timeout.
        ttl_s: seconds a chunk stays, renewed by every read of data; None leaves it to maxmemory.
        pin: read into pinned memory.
        prefix: first part of every Redis key.
        name: label in outcomes and metrics.
    """

    kind: TierKind = "shared"

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 0.5,
        deadline_s: float = 5.0,
        ttl_s: int | None = None,
        pin: bool = False,
        prefix: str = "kvstitch",
        name: str = "redis",
    ) -> None:
        self.name = name
        self._client = RedisClient(url, timeout_s, name)
        self._deadline = deadline_s
        self._ttl = ttl_s
        self._pin = pin
        self._buffers = BufferPool()
        self._prefix = prefix

    def start(self) -> None:
        """Prepare the client; connects at first use.

        Raises:
            TierError: the redis package is missing or the URL is malformed.
        """
        self._client.start()

    def close(self) -> None:
        self._client.close()
        self._buffers.clear()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        with self._client() as client:
            # Two workers may compute one chunk with different low bits: the first stays, so that
            # a reader between header and layers does not see two mixed.
            if client.exists(self._head(key)):
                return
            pipeline = client.pipeline(transaction=True)
            for layer in range(chunk.spec.layers):
                value = view_bytes(chunk.layer_bytes(layer))
                pipeline.set(self._layer(key, layer), value, ex=self._ttl)
            pipeline.set(self._head(key), chunk.header_bytes, ex=self._ttl)
            pipeline.execute()

    def read_header(self, key: str) -> ChunkHeader | None:
        with self._client.values(time.monotonic() + self._deadline) as replies:
            return self._header(replies, key)

    def read(self, key: str, arrived: ChunkProgress | None = None) -> EncodedChunk | None:
        with self._client.values(time.monotonic() + self._deadline) as replies:
            header = self._header(replies, key)
            if header is None:
                return None
            layers = range(header.spec.layers)
            ranges = [ByteRange(layer, *header.layer_range(layer)) for layer in layers]
            commands = [command("GET", self._layer(key, layer)) for layer in layers]
            renewals = self._renewals(key, header.spec.layers)
            request = RangeFetch(ranges, commands, (None,), renewals)
            data = self._receive(replies, header, request, arrived)
        if data is None:
            self.delete([key])
            return None
        return EncodedChunk(header, data)

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        arrived: ChunkProgress | None = None,
    ) -> Tensor | None:
        if not ranges:
            return torch.empty(0, dtype=torch.uint8) if self.contains([key]) else None
        layers = {one.layer for one in ranges}
        places = {n: (self._layer(key, n), header.layer_range(n)[0]) for n in layers}
        commands: list[bytes] = []
        for layer, start, end in ranges:
            name, base = places[layer]
            commands.append(command("GETRANGE", name, start - base, end - base - 1))
        # A range of a value that is not there is empty, and we ask for none that is.
        renewals = self._renewals(key, header.spec.layers)
        request = RangeFetch(ranges, commands, (None, 0), renewals)
        with self._client.values(time.monotonic() + self._deadline) as replies:
            data = self._receive(replies, header, request, arrived)
        if data is None:
            self.delete([key])
        return data

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        require_extra_name(name)

        def write(pipeline: Any) -> bool:
            present = bool(pipeline.exists(self._head(key)))
            pipeline.multi()
            if present:
                pipeline.hset(self._extras(key), name, view_bytes(raw))
                if self._ttl is not None:
                    pipeline.expire(self._extras(key), self._ttl)
            return present

        with self._client() as client:
            # Watching the header: no delete may come between and leave the extra behind.
            return bool(client.transaction(write, self._head(key), value_from_callable=True))

    def read_extra(self, key: str, name: str) -> Tensor | None:
        with self._client() as client:
            value = client.hget(self._extras(key), require_extra_name(name))
        return torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else None

    def contains(self, keys: Collection[str]) -> set[str]:
        found: set[str] = set()
        with self._client() as client:
            for batch in _batches(list(keys), _BATCH_KEYS):
                pipeline = client.pipeline(transaction=False)
                for key in batch:
                    pipeline.exists(self._head(key))
                found.update(k for k, n in zip(batch, pipeline.execute(), strict=True) if n)
        return found

    def delete(self, keys: Collection[str]) -> int:
        """Also removes layers whose header was evicted: every name a chunk can have is unlinked."""
        removed = 0
        with self._client() as client:
            for batch in _batches(list(set(keys)), _BATCH_KEYS):
                pipeline = client.pipeline(transaction=False)
                for key in batch:
                    pipeline.unlink(self._head(key))
                    pipeline.unlink(*(self._layer(key, n) for n in range(MAX_LAYERS)))
                    pipeline.unlink(self._extras(key))
                counts = pipeline.execute()
                removed += sum(bool(h + n) for h, n in zip(counts[::3], counts[1::3], strict=True))
        return removed

    def keys(self) -> Iterable[str]:
        """Keys of the headers, by SCAN: complete only while nobody writes."""
        start = len(self._prefix) + 2
        with self._client() as client:
            names = client.scan_iter(match=f"{self._prefix}:{{*}}:h", count=1000)
            return [name.decode()[start : start + 32] for name in names]

    def usage(self) -> TierUsage:
        """The server's memory and bound, other users of it included; entries are not counted."""
        with self._client() as client:
            memory = client.info("memory")
            evicted = client.info("stats")["evicted_keys"]
        bound = int(memory["maxmemory"]) or None
        return TierUsage(None, int(memory["used_memory"]), bound, int(evicted))

    def _header(self, replies: Replies, key: str) -> ChunkHeader | None:
        replies.ask([command("GET", self._head(key))])
        raw = replies.value()
        return None if raw is None else parse_header(raw)

    def _receive(
        self,
        replies: Replies,
        header: ChunkHeader,
        request: RangeFetch,
        arrived: ChunkProgress | None,
    ) -> Tensor | None:
        """The values one after the other; None when one is gone."""
        data = self._buffers.allocate(total_bytes(request.ranges), pin=self._pin)
        progress = partial(arrived, header, data) if arrived else None
        return data if fetch_ranges(replies, request, data, progress) else None

    def _renewals(self, key: str, layers: int) -> list[bytes]:
        """Every value, also of layers that are not read: they are of use only together."""
        if self._ttl is None:
            return []
        names = [self._layer(key, layer) for layer in range(layers)]
        names += self._head(key), self._extras(key)
        return [command("EXPIRE", name, self._ttl) for name in names]

    def _head(self, key: str) -> str:
        return f"{self._prefix}:{{{require_chunk_key(key)}}}:h"

    def _layer(self, key: str, layer: int) -> str:
        return f"{self._prefix}:{{{require_chunk_key(key)}}}:{layer}"

    def _extras(self, key: str) -> str:
        return f"{self._prefix}:{{{require_chunk_key(key)}}}:x"


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
