"""Chunks in a Redis shared by several processes or machines.

    kvstitch:{<key>}:h      the header
    kvstitch:{<key>}:<l>    the data of layer l, so that a layer can be fetched alone

The braces are a hash tag: all values of a chunk share a cluster slot (the client here is still for
a single server), so one MULTI/EXEC writes them. Inside it the header comes last, and a chunk counts
as present only by its header; a writer that dies, or runs out of memory, leaves nothing behind.
Redis may evict values one by one: a chunk with a missing layer is a miss, and what remains of it is
deleted.

Time is bounded per socket operation and per call. Retries, back-off and the circuit breaker are
the store's business. The redis package is imported by ``start``.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from kvstore.buffers import allocate, view_bytes
from kvstore.chunk import EncodedChunk
from kvstore.errors import ChunkCorrupt, TierError, TierFull, TierTimeout, TierUnavailable
from kvstore.header import ChunkHeader, parse_header
from kvstore.keys import require_chunk_key
from kvstore.spec import MAX_LAYERS
from kvstore.tiers.base import TierKind, Usage

T = TypeVar("T")

_BATCH_BYTES = 2 << 20  # per MGET: redis-py gets slower with larger replies
_BATCH_KEYS = 512  # per pipeline


class RedisTier:
    """A Redis server that holds chunks.

    Args:
        url: ``redis://host:port/db``, ``rediss://`` or ``unix://``.
        timeout_s: longest wait for one socket operation, connecting included.
        deadline_s: longest one read may take before it is given up as a timeout.
        ttl_s: seconds a chunk stays, renewed by a whole read; None leaves it to maxmemory.
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
        self._url = url
        self._timeout = timeout_s
        self._deadline = deadline_s
        self._ttl = ttl_s
        self._pin = pin
        self._prefix = prefix
        # redis-py's types are too loose for strict checking; results are checked where used.
        self._client: Any = None
        self._errors: Any = None

    def start(self) -> None:
        """Prepare the client. Connects at first use, so a Redis that is down delays nothing.

        Raises:
            TierError: the redis package is missing or the URL is malformed.
        """
        try:
            import redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise TierError("the Redis tier needs the redis package: pip install redis") from error
        self._errors = redis.exceptions
        try:
            self._client = redis.Redis.from_url(
                self._url,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                socket_keepalive=True,
                # redis-py would retry three times with back-off: a dead server would cost seconds.
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise TierError(f"bad Redis URL: {error}") from error

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        with self._guard() as client:
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
        with self._guard() as client:
            raw = client.get(self._head(key))
        return None if raw is None else parse_header(raw)

    def read(self, key: str) -> EncodedChunk | None:
        header = self.read_header(key)
        if header is None:
            return None
        data = allocate(header.nbytes, pin=self._pin)
        if not self._fetch(key, header, range(header.spec.layers), data):
            return None
        if self._ttl is not None:
            self._renew(key, header.spec.layers, self._ttl)
        return EncodedChunk(header, data)

    def read_layers(
        self, key: str, header: ChunkHeader, layers: Sequence[int]
    ) -> dict[int, Tensor] | None:
        ordered = sorted(set(layers))
        if not ordered:
            return {} if self.contains([key]) else None
        sizes = [end - start for start, end in map(header.layer_range, ordered)]
        data = allocate(sum(sizes), pin=self._pin)
        if not self._fetch(key, header, ordered, data):
            return None
        return dict(zip(ordered, torch.split(data, sizes), strict=True))

    def contains(self, keys: Collection[str]) -> set[str]:
        found: set[str] = set()
        with self._guard() as client:
            for batch in _batches(list(keys), _BATCH_KEYS):
                pipeline = client.pipeline(transaction=False)
                for key in batch:
                    pipeline.exists(self._head(key))
                found.update(k for k, n in zip(batch, pipeline.execute(), strict=True) if n)
        return found

    def delete(self, keys: Collection[str]) -> int:
        """Also removes layers whose header was evicted: every name a chunk can have is unlinked."""
        removed = 0
        with self._guard() as client:
            for batch in _batches(list(set(keys)), _BATCH_KEYS):
                pipeline = client.pipeline(transaction=False)
                for key in batch:
                    pipeline.unlink(self._head(key))
                    pipeline.unlink(*(self._layer(key, n) for n in range(MAX_LAYERS)))
                counts = pipeline.execute()
                removed += sum(bool(h + n) for h, n in zip(counts[::2], counts[1::2], strict=True))
        return removed

    def keys(self) -> Iterable[str]:
        """Keys of the headers, by SCAN: complete only while nobody writes."""
        start = len(self._prefix) + 2
        with self._guard() as client:
            names = client.scan_iter(match=f"{self._prefix}:{{*}}:h", count=1000)
            return [name.decode()[start : start + 32] for name in names]

    def usage(self) -> Usage:
        """The server's memory and bound, other users of it included; entries are not counted."""
        with self._guard() as client:
            memory = client.info("memory")
            evicted = client.info("stats")["evicted_keys"]
        bound = int(memory["maxmemory"]) or None
        return Usage(None, int(memory["used_memory"]), bound, int(evicted))

    def _fetch(self, key: str, header: ChunkHeader, layers: Sequence[int], into: Tensor) -> bool:
        """Copy the layers one after the other into ``into``; False when one is gone."""
        give_up_at = time.monotonic() + self._deadline
        target = view_bytes(into)
        offset = 0
        ranges = {layer: header.layer_range(layer) for layer in layers}
        largest = max(end - start for start, end in ranges.values())
        for batch in _batches(list(layers), max(1, _BATCH_BYTES // largest)):
            if time.monotonic() > give_up_at:
                raise TierTimeout(f"{self.name}: a read took over {self._deadline} s")
            with self._guard() as client:
                values = client.mget([self._layer(key, layer) for layer in batch])
            if any(value is None for value in values):
                self.delete([key])
                return False
            for layer, value in zip(batch, values, strict=True):
                start, end = ranges[layer]
                if len(value) != end - start:
                    raise ChunkCorrupt(f"layer {layer} has {len(value)} bytes, not {end - start}")
                target[offset : offset + len(value)] = value
                offset += len(value)
        return True

    def _renew(self, key: str, layers: int, ttl: int) -> None:
        with self._guard() as client:
            pipeline = client.pipeline(transaction=False)
            for layer in range(layers):
                pipeline.expire(self._layer(key, layer), ttl)
            pipeline.expire(self._head(key), ttl)
            pipeline.execute()

    def _head(self, key: str) -> str:
        return f"{self._prefix}:{{{require_chunk_key(key)}}}:h"

    def _layer(self, key: str, layer: int) -> str:
        return f"{self._prefix}:{{{require_chunk_key(key)}}}:{layer}"

    @contextmanager
    def _guard(self) -> Iterator[Any]:
        """The client; redis-py's errors come out as this package's."""
        client, errors = self._client, self._errors
        if client is None:
            raise TierUnavailable(f"tier {self.name} is not started")
        try:
            yield client
        except errors.TimeoutError as error:
            raise TierTimeout(f"{self.name}: {error}") from error
        except errors.ConnectionError as error:
            raise TierUnavailable(f"{self.name}: {error}") from error
        except errors.OutOfMemoryError as error:
            raise TierFull(f"{self.name}: {error}") from error
        except errors.RedisError as error:
            raise TierError(f"{self.name}: {error}") from error


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
