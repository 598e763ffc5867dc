"""How close each tier's reads come to what the memory, disk or socket under it can do.

| row           | the store                                   | compared with                    |
|---------------|---------------------------------------------|----------------------------------|
| memory        | read, layers copied to another place        | memcpy of the same bytes         |
| memory blocks | every other block of every layer            | memcpy of the same bytes         |
| ssd           | read, page cache dropped                    | O_DIRECT, page cache dropped     |
| ssd warm      | read, file in the page cache                | preadv of the file               |
| redis         | read                                        | the same GETs, bare socket       |
| redis blocks  | every other block of every layer            | the same GETRANGEs, bare socket  |

The other side fills memory whose pages already exist, and does not look at the bytes. The store is
a `TieredStore` of this tier only, which parses headers and verifies checksums (of whole chunks in
memory, when they were put in).
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import redis
import torch

from benchmarks.common.redis import redis_url
from benchmarks.speed.paired import Work
from kvstitch import kvstore as kv
from kvstitch.kvstore.format.buffers import total_bytes, view_bytes
from kvstitch.kvstore.format.chunk import selection_ranges
from kvstitch.kvstore.tiers.base import Tier
from kvstitch.kvstore.tiers.ssd.directory_scan import chunk_path

DIRECT_BYTES = 4 << 20  # bytes per read without the store, like dd bs=4M iflag=direct
CAPACITY = 8 << 30
KEY = "0" * 32
FILES = 4  # files of the SSD rows, used in turn, because the place on the disk matters much


@dataclass(frozen=True)
class Row:
    """One comparison: the same bytes read with the store and without it."""

    name: str
    nbytes: int
    ours: Work
    bare: Work
    before: Work = lambda: None


def make_chunk(
    codec: str, *, layers: int, kv_heads: int, head_dim: int, tokens: int
) -> kv.EncodedChunk:
    """A chunk of random contents."""
    spec = kv.ChunkSpec("random", codec, "bfloat16", layers, kv_heads, head_dim, tokens)
    generator = torch.Generator().manual_seed(0)
    k, v = (
        [torch.randn(spec.shape, generator=generator).bfloat16() for _ in range(spec.layers)]
        for _ in "kv"
    )
    return kv.encode_chunk(spec, k, v)


@contextmanager
def holding(tier: Tier, chunk: kv.EncodedChunk) -> Iterator[kv.TieredStore]:
    """A store of this tier that contains the chunk."""
    with kv.TieredStore([tier]) as store:
        store.put(KEY, chunk)
        store.flush()
        yield store


def read(store: kv.TieredStore, spec: kv.ChunkSpec, key: str = KEY) -> kv.EncodedChunk:
    outcome = store.read(key, spec)
    assert outcome.chunk is not None, outcome.problems
    return outcome.chunk


def read_blocks(store: kv.TieredStore, spec: kv.ChunkSpec) -> None:
    outcome = store.read_blocks(KEY, half(spec), spec)
    assert outcome.blocks is not None and not outcome.missing, outcome.problems


def half(spec: kv.ChunkSpec) -> dict[int, tuple[int, ...]]:
    """Every other block of every layer."""
    return dict.fromkeys(range(spec.layers), tuple(range(0, spec.blocks, 2)))


def memory_rows(chunk: kv.EncodedChunk, store: kv.TieredStore) -> Iterator[Row]:
    nbytes, spec = chunk.header.nbytes, chunk.spec
    target, source = _memory(nbytes), _memory(nbytes)

    def placed() -> None:
        data = view_bytes(read(store, spec).data)
        for start, end in map(chunk.header.layer_range, range(spec.layers)):
            target[start:end] = data[start:end]

    def copied(nbytes: int) -> None:
        target[:nbytes] = source[:nbytes]

    yield Row("memory", nbytes, placed, lambda: copied(nbytes))
    some = total_bytes(selection_ranges(half(spec), spec))
    yield Row("memory blocks", some, lambda: read_blocks(store, spec), lambda: copied(some))


def ssd_rows(chunk: kv.EncodedChunk, store: kv.TieredStore, folder: Path) -> Iterator[Row]:
    target = _memory(-(-chunk.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    keys = [KEY[:-1] + str(number) for number in range(FILES)]
    for key in keys:
        store.put(key, chunk)
    paths = [chunk_path(folder, key) for key in keys]
    ours_next, bare_next = cycle(keys), cycle(paths)

    def bare(flags: int, step: int) -> None:
        fd = os.open(next(bare_next), os.O_RDONLY | flags)
        got = [os.preadv(fd, [target[at : at + step]], at) for at in range(0, chunk.nbytes, step)]
        os.close(fd)
        assert sum(got) == chunk.nbytes, got

    def ours() -> object:
        return read(store, chunk.spec, next(ours_next))

    def direct() -> None:
        bare(os.O_DIRECT, DIRECT_BYTES)

    def cached() -> None:
        bare(0, len(target))

    def cool() -> None:
        for path in paths:
            _cool(path)

    def warm() -> None:
        for _ in paths:
            cached()

    yield Row("ssd", chunk.nbytes, ours, direct, cool)
    yield Row("ssd warm", chunk.nbytes, ours, cached, warm)


def redis_rows(chunk: kv.EncodedChunk, store: kv.TieredStore, url: str) -> Iterator[Row]:
    spec, head = chunk.spec, f"kvstitch:{{{KEY}}}"
    where = urlsplit(url)
    with socket.create_connection((where.hostname or "", where.port or 0), 10) as connection:
        commands = [_packed("GET", f"{head}:{name}") for name in ("h", *range(spec.layers))]
        bare = _bare(connection, commands)
        yield Row("redis", chunk.nbytes, lambda: read(store, spec), bare)
        ranges = selection_ranges(half(spec), spec)
        commands.clear()
        for layer, start, end in ranges:
            base = chunk.header.layer_range(layer)[0]
            commands.append(_packed("GETRANGE", f"{head}:{layer}", start - base, end - base - 1))
        bare = _bare(connection, commands)
        yield Row("redis blocks", total_bytes(ranges), lambda: read_blocks(store, spec), bare)


def rows(chunk: kv.EncodedChunk) -> Iterator[Row]:
    """The rows of the table; what a row needs is freed before the next row."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(redis_url())
        near = stack.enter_context(holding(kv.MemoryTier(CAPACITY), chunk))
        yield from memory_rows(chunk, near)
        disk = stack.enter_context(holding(kv.SsdTier(folder, CAPACITY), chunk))
        yield from ssd_rows(chunk, disk, folder)
        tier = kv.RedisTier(url, timeout_s=10, deadline_s=60)
        yield from redis_rows(chunk, stack.enter_context(holding(tier, chunk)), url)


def _packed(*words: str | int) -> bytes:
    """The bytes of a command."""
    return b"".join(redis.Connection().pack_command(*words))


def _bare(connection: socket.socket, commands: Sequence[bytes]) -> Work:
    """Sends commands, receives the replies into existing memory, and returns their bytes."""
    request = b"".join(commands)
    connection.sendall(request)
    total = 0
    while select.select([connection], [], [], 0.5)[0]:
        total += len(connection.recv(1 << 20))
    target = _memory(total)

    def work() -> None:
        connection.sendall(request)
        got = 0
        while got < total:
            got += connection.recv_into(target[got:])

    return work


def _memory(nbytes: int) -> memoryview:
    """Memory whose pages already exist."""
    pages = mmap.mmap(-1, nbytes)
    pages.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(pages)
    view[:] = bytes(nbytes)
    return view


def _cool(path: Path) -> None:
    """Drops a file from the page cache, so that the next read goes to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
