"""Keeps chunks as objects in an S3 bucket: slow to start, large, and shared by everybody.

    <prefix>/<key>/chunk.safetensors     header and data, the same bytes as a file on SSD
    <prefix>/<key>/<name>.extra          extra tensors of that chunk

Keys are random hex digits, so requests spread over the bucket's partitions. An object appears as a
whole or not at all. The first writer of a chunk stays (If-None-Match).

A request takes tens of milliseconds before its first byte, whatever its size. So a chunk is read in
parts, several at a time, the first of which brings the header along. Parts of a chunk whose gap is
smaller than `_GAP` are one request: the gap's bytes come sooner than another answer would.
"""

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import torch
from torch import Tensor

from kvstitch.kvstore.errors import ChunkCorrupt, TierTimeout, TierUnavailable
from kvstitch.kvstore.format.buffers import BufferPool, ByteRange, total_bytes, view_bytes
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader, parse_header
from kvstitch.kvstore.format.chunk_identity import (
    is_chunk_key,
    require_chunk_key,
    require_extra_name,
)
from kvstitch.kvstore.format.safetensors_header import header_bytes
from kvstitch.kvstore.tiers.base import ChunkProgress, Tier, TierKind, TierUsage
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch_s3.bucket import Bucket, Part, Place, Waits

T = TypeVar("T")
R = TypeVar("R")

_PART = 4 << 20  # bytes per request
_HEAD = 128 << 10  # bytes of a request for the header alone; most headers are shorter
_GAP = 64 << 10
_CHUNK = "chunk.safetensors"


def make(settings: WorkerSettings, pin: bool) -> Tier:
    """Return the tier that the settings name."""
    given = settings.plugins
    return S3Tier(Place(given["s3_url"], given["s3_endpoint"], given["s3_region"]), pin=pin)


class S3Tier(Tier):
    """A bucket that holds chunks.

    Args:
        place: bucket, prefix and server.
        waits: longest waits of single requests.
        deadline_s: longest duration of one read in seconds; after it the read is a timeout.
        streams: number of requests at the same time.
        pin: read into pinned memory.
        name: label in outcomes and metrics.
    """

    kind: TierKind = "shared"

    def __init__(
        self,
        place: Place,
        *,
        waits: Waits | None = None,
        deadline_s: float = 15.0,
        streams: int = 16,
        pin: bool = False,
        name: str = "s3",
    ) -> None:
        self.name = name
        self._bucket = Bucket(place, waits or Waits(), name)
        self._deadline = deadline_s
        self._streams = streams
        self._pin = pin
        self._buffers = BufferPool()
        self._threads: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Prepare the client; it connects at first use."""
        self._bucket.start()
        self._threads = ThreadPoolExecutor(self._streams, thread_name_prefix="kvstore-s3")

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        self._bucket.close()
        self._buffers.clear()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        self._bucket.create(_chunk(key), [chunk.header_bytes, view_bytes(chunk.data)])

    def read_header(self, key: str) -> ChunkHeader | None:
        path = _chunk(key)
        first = self._bucket.read(path, 0, _HEAD)
        return None if first is None else self._header(path, first)

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        give_up_at = time.monotonic() + self._deadline
        path = _chunk(key)
        first = self._bucket.read(path, 0, _PART)
        header = None if first is None else self._header(path, first)
        if first is None or header is None:
            return None
        if header.file_bytes != first.size:
            raise ChunkCorrupt(f"{path} has {first.size} bytes, not {header.file_bytes}")
        data = self._buffers.allocate(header.nbytes, pin=self._pin)
        view = view_bytes(data)
        start = header.data_start

        def fetch(begin: int) -> int | None:
            end = min(begin + _PART, first.size)
            part = self._bucket.read(path, begin, end, first.version)
            if part is None:  # deleted, or replaced, since the read began
                return None
            view[begin - start : end - start] = _whole(part, path, end - begin)
            return end - start

        done = max(len(first.content) - start, 0)
        view[:done] = first.content[start : start + done]
        if on_progress is not None and done:
            on_progress(header, data, done)
        rest = range(start + done, first.size, _PART)
        whole = self._fetch(fetch, rest, header, data, give_up_at, on_progress)
        return EncodedChunk(header, data) if whole else None

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None = None,
    ) -> Tensor | None:
        path = _chunk(key)
        if not ranges:
            return torch.empty(0, dtype=torch.uint8) if self._bucket.exists(path) else None
        give_up_at = time.monotonic() + self._deadline
        data = self._buffers.allocate(total_bytes(ranges), pin=self._pin)
        view = view_bytes(data)
        base = header.data_start

        def fetch(span: list[tuple[ByteRange, int]]) -> int | None:
            begin, end = span[0][0].start, span[-1][0].end
            part = self._bucket.read(path, base + begin, base + end)
            if part is None:
                return None
            content = _whole(part, path, end - begin)
            for one, place in span:
                view[place : place + one.nbytes] = content[one.start - begin : one.end - begin]
            return span[-1][1] + span[-1][0].nbytes

        whole = self._fetch(fetch, _spans(ranges), header, data, give_up_at, on_progress)
        return data if whole else None

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        chunk, extra = _chunk(key), _extra(key, name)
        if not self._bucket.exists(chunk):
            return False
        self._bucket.replace(extra, view_bytes(raw))
        if self._bucket.exists(chunk):
            return True
        self._bucket.delete([extra])  # the chunk was deleted in between
        return False

    def read_extra(self, key: str, name: str) -> Tensor | None:
        found = self._bucket.read(_extra(key, name))
        if found is None or not found.content:
            return None
        return torch.frombuffer(bytearray(found.content), dtype=torch.uint8)

    def contains(self, keys: Collection[str]) -> set[str]:
        asked = list(keys)
        there = self._each(self._bucket.exists, map(_chunk, asked), self._deadline)
        return {key for key, is_there in zip(asked, there, strict=True) if is_there}

    def delete(self, keys: Collection[str]) -> int:
        return sum(self._each(self._delete_folder, map(require_chunk_key, set(keys))))

    def keys(self) -> Iterable[str]:
        """List the whole bucket below the prefix: a request per 1,000 objects."""
        found = (path.rpartition("/") for path in self._bucket.list())
        return [key for key, _, name in found if name == _CHUNK and is_chunk_key(key)]

    def usage(self) -> TierUsage:
        """Return nothing known: S3 does not tell, other than by listing everything."""
        return TierUsage(None, None, None, None)

    def _delete_folder(self, key: str) -> bool:
        paths = list(self._bucket.list(key))
        if paths:
            self._bucket.delete(paths)
        return _chunk(key) in paths

    def _header(self, path: str, first: Part) -> ChunkHeader | None:
        """Complete the header, whose beginning was read; return None if the object has gone."""
        raw = first.content
        length = header_bytes(raw)
        if len(raw) < length <= first.size:
            whole = self._bucket.read(path, 0, length, first.version)
            if whole is None:
                return None
            raw = whole.content
        return parse_header(raw)

    def _fetch(
        self,
        fetch: Callable[[T], int | None],
        items: Iterable[T],
        header: ChunkHeader,
        data: Tensor,
        give_up_at: float,
        on_progress: ChunkProgress | None,
    ) -> bool:
        """Fill `data` in parallel: `fetch` returns how much is there then, None if all is lost."""
        left = max(give_up_at - time.monotonic(), 0)
        with closing(self._each(fetch, items, left)) as filled:
            for done in filled:
                if done is None:
                    return False
                if on_progress is not None:
                    on_progress(header, data, done)
        return True

    def _each(
        self, work: Callable[[T], R], items: Iterable[T], timeout_s: float | None = None
    ) -> Generator[R, None, None]:
        """Yield what work gives, in order, done in threads; closed, it begins nothing more."""
        if self._threads is None:
            raise TierUnavailable(f"tier {self.name} is not started")
        try:
            yield from self._threads.map(work, items, timeout=timeout_s)
        except TimeoutError as error:
            raise TierTimeout("a read took over its deadline") from error


def _spans(ranges: Sequence[ByteRange]) -> Iterator[list[tuple[ByteRange, int]]]:
    """Yield ranges to fetch together, each with its place in the result."""
    span: list[tuple[ByteRange, int]] = []
    place = 0
    for one in ranges:
        if span and (one.start - span[-1][0].end > _GAP or one.end - span[0][0].start > _PART):
            yield span
            span = []
        span.append((one, place))
        place += one.nbytes
    yield span


def _whole(part: Part, path: str, nbytes: int) -> memoryview:
    if len(part.content) != nbytes:
        raise ChunkCorrupt(f"{path} gave {len(part.content)} bytes, not {nbytes}")
    return part.content


def _chunk(key: str) -> str:
    return f"{require_chunk_key(key)}/{_CHUNK}"


def _extra(key: str, name: str) -> str:
    return f"{require_chunk_key(key)}/{require_extra_name(name)}.extra"
