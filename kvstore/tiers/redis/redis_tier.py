"""Keeps chunks in a Redis server shared by several processes or machines.

    kvstitch:{<key>}:h      the header
    kvstitch:{<key>}:<l>    the data of layer l; ranges of it can be fetched alone
    kvstitch:{<key>}:x      a hash of extra tensors, one field per name

The braces are a hash tag: all values of a chunk share a cluster slot, so one MULTI/EXEC can write
them. (This client still talks to a single server only.) The header is written last, and a chunk is
present only if its header is; so a writer that dies or runs out of memory leaves nothing behind.
Redis may evict single values. A chunk with a missing layer is a miss, and the rest of it is
deleted.

Time is bounded per socket operation and per call.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from kvstore.format.buffers import BufferPool, view_bytes
from kvstore.format.byte_ranges import ByteRange, total_bytes
from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_header import ChunkHeader, parse_header
from kvstore.format.chunk_keys import is_chunk_key, require_chunk_key, require_extra_name
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
        timeout_s: longest wait for one socket operation, connecting included, in seconds.
        deadline_s: longest duration of one read in seconds; after it the read is a timeout.
        ttl_s: seconds until a chunk expires, renewed by every read of its data. None: never, so
            only Redis' own limit (maxmemory) removes chunks.
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
        """Prepare the client; it connects at first use.

        Raises:
            TierError: the redis package is missing or the URL is malformed.
        """
        self._client.start()

    def close(self) -> None:
        self._client.close()
        self._buffers.clear()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        with self._client.session() as client:
            # Two workers may compute the same chunk with different low bits. The first one stays:
            # otherwise a reader could get the header of one and the layers of the other.
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

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        with self._client.values(time.monotonic() + self._deadline) as replies:
            header = self._header(replies, key)
            if header is None:
                return None
            layers = range(header.spec.layers)
            ranges = [ByteRange(layer, *header.layer_range(layer)) for layer in layers]
            commands = [command("GET", self._layer(key, layer)) for layer in layers]
            renewals = self._renewals(key, header.spec.layers)
            request = RangeFetch(ranges, commands, (None,), renewals)
            data = self._receive(replies, header, request, on_progress)
        if data is None:
            self.delete([key])
            return None
        return EncodedChunk(header, data)

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None = None,
    ) -> Tensor | None:
        if not ranges:
            return torch.empty(0, dtype=torch.uint8) if self.contains([key]) else None
        layers = {one.layer for one in ranges}
        places = {n: (self._layer(key, n), header.layer_range(n)[0]) for n in layers}
        commands: list[bytes] = []
        for layer, start, end in ranges:
            name, base = places[layer]
            commands.append(command("GETRANGE", name, start - base, end - base - 1))
        # The range of a missing value has length 0, and no requested range is empty.
        renewals = self._renewals(key, header.spec.layers)
        request = RangeFetch(ranges, commands, (None, 0), renewals)
        with self._client.values(time.monotonic() + self._deadline) as replies:
            data = self._receive(replies, header, request, on_progress)
        if data is None:
            self.delete([key])
        return data

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        require_extra_name(name)

        def write(pipeline: Any) -> bool:
            present = bool(pipeline.exists(self._head(key)))
            blocked = pipeline.type(self._extras(key)) not in (b"none", b"hash")
            pipeline.multi()
            if present:
                if blocked:  # somebody else's: otherwise extra tensors could never be written again
                    pipeline.unlink(self._extras(key))
                pipeline.hset(self._extras(key), name, view_bytes(raw))
                if self._ttl is not None:
                    pipeline.expire(self._extras(key), self._ttl)
            return present

        with self._client.session() as client:
            # Watching the header: a delete in between would leave the extra tensors behind.
            return bool(client.transaction(write, self._head(key), value_from_callable=True))

    def read_extra(self, key: str, name: str) -> Tensor | None:
        with self._client.session() as client:
            value = client.hget(self._extras(key), require_extra_name(name))
        return torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else None

    def contains(self, keys: Collection[str]) -> set[str]:
        found: set[str] = set()
        with self._client.session() as client:
            for batch in _batches(list(keys), _BATCH_KEYS):
                pipeline = client.pipeline(transaction=False)
                for key in batch:
                    pipeline.exists(self._head(key))
                found.update(k for k, n in zip(batch, pipeline.execute(), strict=True) if n)
        return found

    def delete(self, keys: Collection[str]) -> int:
        """Delete every name a chunk can have, so also layers whose header was evicted."""
        removed = 0
        with self._client.session() as client:
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
        """The keys of all headers, found by SCAN; complete only while nothing is written."""
        start = len(self._prefix) + 2
        with self._client.session() as client:
            names = client.scan_iter(match=f"{self._prefix}:{{*}}:h", count=1000)
            found = [name.decode(errors="replace")[start:].removesuffix("}:h") for name in names]
        return list(filter(is_chunk_key, found))  # somebody else's names may look like ours

    def usage(self) -> TierUsage:
        """The memory and limit of the whole server, its other users included; no entry count."""
        with self._client.session() as client:
            memory = client.info("memory")
            evicted = client.info("stats")["evicted_keys"]
        bound = int(memory["maxmemory"]) or None
        return TierUsage(None, int(memory["used_memory"]), bound, int(evicted))

    def scan_counts(self) -> Mapping[str, int]:
        return {}

    def _header(self, replies: Replies, key: str) -> ChunkHeader | None:
        replies.ask([command("GET", self._head(key))])
        raw = replies.value()
        return None if raw is None else parse_header(raw)

    def _receive(
        self,
        replies: Replies,
        header: ChunkHeader,
        request: RangeFetch,
        on_progress: ChunkProgress | None,
    ) -> Tensor | None:
        """Receive the values one after the other; None when one is missing."""
        data = self._buffers.allocate(total_bytes(request.ranges), pin=self._pin)
        progress = partial(on_progress, header, data) if on_progress else None
        return data if fetch_ranges(replies, request, data, progress) else None

    def _renewals(self, key: str, layers: int) -> list[bytes]:
        """EXPIRE commands for every value, also of layers not read: all are needed together."""
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
