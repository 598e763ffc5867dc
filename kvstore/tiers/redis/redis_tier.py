"""Keeps chunks in Redis, on one server or on a cluster, shared by several processes or machines.

A chunk is a header, one value per layer, and a hash of extra tensors (`chunk_values.py`), all on
one server. One MULTI/EXEC writes them. The header is written last, and a chunk is present only if
its header is; so a writer that dies or runs out of memory leaves nothing behind. Redis may evict
single values. A chunk with a missing layer is a miss, and the rest of it is deleted.

Time is bounded per socket operation and per call.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from kvstitch.kvstore.errors import TierError
from kvstitch.kvstore.format.buffers import BufferPool, ByteRange, view_bytes
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader
from kvstitch.kvstore.format.chunk_identity import require_extra_name
from kvstitch.kvstore.tiers.base import ChunkProgress, Tier, TierKind, TierUsage
from kvstitch.kvstore.tiers.redis.chunk_values import ChunkNames, ChunkRead, RangePlan, delete_keys
from kvstitch.kvstore.tiers.redis.redis_server import RedisServer, Words
from kvstitch.kvstore.tiers.redis.servers import Cluster, OneServer, Servers, SlotMoving, call_each

T = TypeVar("T")

CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")
_BATCH_KEYS = 512  # per pipeline


class RedisTier(Tier):
    """Redis, holding chunks.

    Args:
        url: `redis://host:port/db`, `rediss://` or `unix://` of one server;
            `redis+cluster://host:port,host:port` or `rediss+cluster://` of some of a cluster.
        timeout_s: longest wait for one socket operation, connecting included.
        deadline_s: longest duration of one read.
        ttl_s: until a chunk expires, renewed by every read of its data. None: never, so only
            Redis' own limit (maxmemory) removes chunks.
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
        settings = partial(_settings, timeout_s)
        self._servers: Servers = (
            Cluster(url, settings, name)
            if url.startswith(CLUSTER_SCHEMES)
            else OneServer(url, settings, name)
        )
        self._deadline = deadline_s
        self._ttl = ttl_s
        self._buffers = BufferPool()
        self._allocate = partial(self._buffers.allocate, pin=pin)
        self._names = ChunkNames(prefix)

    def start(self) -> None:
        """Prepare the clients; they connect at first use."""
        self._servers.start()

    def close(self) -> None:
        self._servers.close()
        self._buffers.clear()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        head = self._names.head(key)
        layers = range(chunk.spec.layers)
        values = [
            (self._names.layer(key, n), view_bytes(chunk.layer_bytes(n))) for n in layers
        ]  # the header is not among them: it comes last

        def write(client: Any) -> None:
            # Two workers may compute the same chunk with different low bits. The first one stays:
            # otherwise a reader could get the header of one and the layers of the other.
            if client.exists(head):
                return
            pipeline = client.pipeline(transaction=True)
            for name, value in values:
                pipeline.set(name, value, ex=self._ttl)
            pipeline.set(head, chunk.header_bytes, ex=self._ttl)
            pipeline.execute()

        self._execute(key, write)

    def read_header(self, key: str) -> ChunkHeader | None:
        read = self._read_of(key, None, None)
        return read.header if self._servers.on_server(key, read.on_server) else None

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        def plan(header: ChunkHeader) -> RangePlan:
            layers = range(header.spec.layers)
            ranges = [ByteRange(layer, *header.layer_range(layer)) for layer in layers]
            commands = [("GET", self._names.layer(key, layer)) for layer in layers]
            return RangePlan(ranges, commands, (None,), self._renewals(key, header.spec.layers))

        read = self._read_of(key, plan, on_progress)
        if self._servers.on_server(key, read.on_server):
            assert read.header is not None and read.data is not None
            return EncodedChunk(read.header, read.data)
        if read.header is not None:  # a layer is missing
            self.delete([key])
        return None

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None = None,
    ) -> Tensor | None:
        if not ranges:
            return torch.empty(0, dtype=torch.uint8) if self.contains([key]) else None

        def plan(header: ChunkHeader) -> RangePlan:
            layers = {one.layer for one in ranges}
            places = {n: (self._names.layer(key, n), header.layer_range(n)[0]) for n in layers}
            commands: list[Words] = []
            for layer, start, end in ranges:
                name, base = places[layer]
                commands.append(("GETRANGE", name, start - base, end - base - 1))
            # The range of a missing value has length 0, and no requested range is empty.
            renewals = self._renewals(key, header.spec.layers)
            return RangePlan(ranges, commands, (None, 0), renewals)

        read = self._read_of(key, plan, on_progress, header)
        if self._servers.on_server(key, read.on_server):
            return read.data
        self.delete([key])
        return None

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        require_extra_name(name)
        head, extras, value = self._names.head(key), self._names.extras(key), view_bytes(raw)

        def write(pipeline: Any) -> bool:
            present = bool(pipeline.exists(head))
            blocked = pipeline.type(extras) not in (b"none", b"hash")
            pipeline.multi()
            if present:
                if blocked:  # somebody else's: otherwise extra tensors could never be written again
                    pipeline.unlink(extras)
                pipeline.hset(extras, name, value)
                if self._ttl is not None:
                    pipeline.expire(extras, self._ttl)
            return present

        # Watching the header: a delete in between would leave the extra tensors behind.
        return self._execute(
            key, lambda client: bool(client.transaction(write, head, value_from_callable=True))
        )

    def read_extra(self, key: str, name: str) -> Tensor | None:
        extras = self._names.extras(key)
        field = require_extra_name(name)

        def read(client: Any) -> bytes | None:
            value: bytes | None = client.hget(extras, field)
            return value

        value = self._execute(key, read)
        return torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else None

    def contains(self, keys: Collection[str]) -> set[str]:
        """Return which chunks there are; if a server fails, its error carries what others hold."""

        def present(server: RedisServer, of_server: list[str]) -> set[str]:
            return _union(
                [self._present(server, some) for some in _batches(of_server, _BATCH_KEYS)]
            )

        calls = (partial(present, *part) for part in self._servers.split(keys))
        return call_each(calls, _union)

    def delete(self, keys: Collection[str]) -> int:
        """Delete every name a chunk can have, so also layers whose header was evicted.

        In a cluster the replicas must have it too, because one of them may take over at any time.
        If a server fails, the keys of the others are deleted all the same.
        """

        def removed(server: RedisServer, of_server: list[str]) -> int:
            batches = _batches(of_server, _BATCH_KEYS)
            return sum(delete_keys(self._servers, server, self._names, some) for some in batches)

        calls = (partial(removed, *part) for part in self._servers.split(set(keys)))
        return call_each(calls, lambda counts: sum(counts))

    def keys(self) -> Iterable[str]:
        """Return the keys of all headers, found by SCAN; complete only while nothing is written."""

        def scan(server: RedisServer) -> set[str]:
            with server.session() as client:
                heads = client.scan_iter(match=self._names.heads, count=1000)
                return set(self._names.keys(heads))

        # A chunk that is moving may be on two servers.
        return call_each((partial(scan, server) for server in self._servers.all()), _union)

    @property
    def usage_is_asked(self) -> bool:
        return True

    def usage(self) -> TierUsage:
        """Return memory and limits of whole servers, other users included; no entry count."""

        def ask(server: RedisServer) -> tuple[int, int, int]:
            with server.session() as client:
                memory = client.info("memory")
                evicted = client.info("stats")["evicted_keys"]
            return int(memory["used_memory"]), int(memory["maxmemory"]), int(evicted)

        servers = self._servers.all()

        def joined(answers: list[tuple[int, int, int]]) -> TierUsage:
            used, bounds, evicted = zip(*answers, strict=True) if answers else ((), (), ())
            bound = sum(bounds) if bounds and all(bounds) else None
            down = len(servers) - len(answers)
            return TierUsage(None, sum(used), bound, sum(evicted), len(servers), down)

        return call_each((partial(ask, server) for server in servers), joined)

    def _present(self, server: RedisServer, keys: list[str]) -> set[str]:
        with server.session() as client:
            pipeline = client.pipeline(transaction=False)
            for key in keys:
                pipeline.exists(self._names.head(key))
            counts = pipeline.execute(raise_on_error=False)
        return {k for k, n in zip(keys, counts, strict=True) if self._is_there(k, n)}

    def _is_there(self, key: str, count: int | Exception) -> bool:
        """Interpret the reply to EXISTS; ask again where it was redirected."""
        if isinstance(count, int):
            return count > 0
        with suppress(SlotMoving):
            return self._execute(key, lambda client: bool(client.exists(self._names.head(key))))
        return False

    def _execute(self, key: str, work: Callable[[Any], T]) -> T:
        """Do the work with redis-py's client of the key's server."""

        def on_server(server: RedisServer) -> T:
            with server.session() as client:
                return work(client)

        return self._servers.on_server(key, on_server)

    def _read_of(
        self,
        key: str,
        plan: Callable[[ChunkHeader], RangePlan] | None,
        on_progress: ChunkProgress | None,
        header: ChunkHeader | None = None,
    ) -> ChunkRead:
        give_up_at = time.monotonic() + self._deadline
        head = self._names.head(key)
        return ChunkRead(head, plan, self._allocate, on_progress, give_up_at, header)

    def _renewals(self, key: str, layers: int) -> list[Words]:
        """Return EXPIRE commands for every value, also of layers not read: all belong together."""
        if self._ttl is None:
            return []
        names = self._names.layers(key, layers)
        names += self._names.head(key), self._names.extras(key)
        return [("EXPIRE", name, self._ttl) for name in names]


def _settings(timeout_s: float) -> dict[str, Any]:
    """Return redis-py's settings, the same for every connection."""
    try:
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise TierError("the Redis tier needs the redis package: pip install redis") from error
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "socket_keepalive": True,
        # With RESP3 the server may send messages that were not requested.
        "protocol": 2,
        # redis-py would retry three times with back-off, so a dead server would cost seconds.
        "retry": Retry(NoBackoff(), 0),
    }


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _union(found: list[set[str]]) -> set[str]:
    return set().union(*found)
