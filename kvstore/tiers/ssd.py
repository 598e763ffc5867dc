"""Chunks as files in one directory, bounded in bytes, least recently used out first.

    root/.lock                    held while started: one owner per directory
    root/tmp/<key>.<n>            being written; swept at start
    root/ab/cd/<key>.safetensors  visible chunks, keys that start with "abcd"

A chunk is written to tmp, fsynced and renamed, and the directories are fsynced too: after a crash
at any moment a file is either whole or absent. The index is rebuilt at start from the files
themselves (header checked, size compared, data left to the check on read), in order of mtime,
which a read renews. Knows no other tier and verifies no data.
"""

import errno
import fcntl
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from kvstore.buffers import allocate, view_bytes
from kvstore.chunk import EncodedChunk
from kvstore.errors import ChunkCorrupt, TierFull, TierUnavailable
from kvstore.header import ChunkHeader, parse_header
from kvstore.keys import require_chunk_key
from kvstore.tiers.base import TierKind, Usage
from kvstore.tiers.files import read_fully, sync_directory, write_fully
from kvstore.tiers.scan import TEMPORARY, ScanReport, StoredFile, chunk_path, scan


class SsdTier:
    """A directory of chunks that survives restarts.

    Args:
        root: the directory; created at start. One process at a time may own it.
        capacity_bytes: bound on the sum of file sizes, files being written included.
        pin: read into pinned memory.
        fsync: off only where losing recent chunks in a power cut does not matter.
        name: label in outcomes and metrics.
    """

    kind: TierKind = "disk"

    def __init__(
        self,
        root: str | os.PathLike[str],
        capacity_bytes: int,
        *,
        pin: bool = False,
        fsync: bool = True,
        name: str = "ssd",
    ) -> None:
        self.name = name
        self.scan = ScanReport(0, 0, 0)
        self._root = Path(root)
        self._capacity = capacity_bytes
        self._pin = pin
        self._fsync = fsync
        self._lock = threading.Lock()
        self._index: OrderedDict[str, StoredFile] = OrderedDict()
        self._used = 0
        self._evictions = 0
        self._temporary = itertools.count()
        self._lock_fd: int | None = None

    def start(self) -> None:
        """Take the directory, sweep what a crash left, rebuild the index.

        Raises:
            TierUnavailable: another process owns the directory.
        """
        (self._root / TEMPORARY).mkdir(parents=True, exist_ok=True)
        self._lock_fd = self._take_lock()
        try:
            with self._lock:
                self._adopt()
                self._make_room(0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._index.clear()
            self._used = 0
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def put(self, key: str, chunk: EncodedChunk) -> None:
        target = self._path(key)
        with self._lock:
            self._require_started()
            if key in self._index:
                return
            if chunk.nbytes > self._capacity:
                raise TierFull(f"{chunk.nbytes} bytes do not fit {self._capacity}")
            # Reserved now, so that several writers together stay within the bound.
            self._make_room(chunk.nbytes)
            self._used += chunk.nbytes
        try:
            self._write(target, chunk)
        except BaseException as error:
            with self._lock:
                self._used -= chunk.nbytes
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise TierFull(f"no space left under the SSD tier: {error.strerror}") from error
            raise
        with self._lock:
            if key in self._index:  # another thread wrote the same chunk meanwhile
                self._used -= chunk.nbytes
            else:
                self._index[key] = StoredFile(chunk.header.data_start, chunk.nbytes)

    def read_header(self, key: str) -> ChunkHeader | None:
        opened = self._open(key)
        if opened is None:
            return None
        fd, file = opened
        try:
            header = bytearray(file.header_bytes)
            read_fully(fd, [memoryview(header)], 0)
            return self._parse(header, file)
        finally:
            os.close(fd)

    def read(self, key: str) -> EncodedChunk | None:
        opened = self._open(key)
        if opened is None:
            return None
        fd, file = opened
        try:
            header = bytearray(file.header_bytes)
            data = allocate(file.nbytes - file.header_bytes, pin=self._pin)
            read_fully(fd, [memoryview(header), view_bytes(data)], 0)
            return EncodedChunk(self._parse(header, file), data)
        finally:
            os.close(fd)

    def read_layers(
        self, key: str, header: ChunkHeader, layers: Sequence[int]
    ) -> dict[int, Tensor] | None:
        opened = self._open(key)
        if opened is None:
            return None
        fd, file = opened
        try:
            if (file.header_bytes, file.nbytes) != (header.data_start, header.file_bytes):
                raise ChunkCorrupt("the file is not the one this header came from")
            layers_read: dict[int, Tensor] = {}
            for first, last in _runs(layers):
                start, end = header.layer_range(first)[0], header.layer_range(last)[1]
                buffer = allocate(end - start, pin=self._pin)
                read_fully(fd, [view_bytes(buffer)], header.data_start + start)
                for layer in range(first, last + 1):
                    begin, stop = header.layer_range(layer)
                    layers_read[layer] = buffer[begin - start : stop - start]
            return layers_read
        finally:
            os.close(fd)

    def contains(self, keys: Collection[str]) -> set[str]:
        with self._lock:
            self._require_started()
            return {key for key in keys if key in self._index}

    def delete(self, keys: Collection[str]) -> int:
        with self._lock:
            self._require_started()
            return sum(self._remove(key) for key in set(keys))

    def keys(self) -> Iterable[str]:
        with self._lock:
            return list(self._index)

    def usage(self) -> Usage:
        with self._lock:
            return Usage(len(self._index), self._used, self._capacity, self._evictions)

    def _path(self, key: str) -> Path:
        return chunk_path(self._root, require_chunk_key(key))

    def _take_lock(self) -> int:
        fd = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise TierUnavailable(
                f"{self._root} is in use: give each process its own directory"
            ) from error
        return fd

    def _require_started(self) -> None:
        if self._lock_fd is None:
            raise TierUnavailable(f"tier {self.name} is not started")

    def _open(self, key: str) -> tuple[int, StoredFile] | None:
        """An open descriptor outlives eviction, so a reader never sees half a file."""
        with self._lock:
            self._require_started()
            file = self._index.get(key)
            if file is None:
                return None
            self._index.move_to_end(key)
        try:
            fd = os.open(self._path(key), os.O_RDONLY)
        except FileNotFoundError:  # removed behind our back
            with self._lock:
                self._forget(key, file)
            return None
        os.utime(fd)
        return fd, file

    def _parse(self, header: bytearray, file: StoredFile) -> ChunkHeader:
        parsed = parse_header(header)
        if parsed.file_bytes != file.nbytes:
            raise ChunkCorrupt(f"file has {file.nbytes} bytes, its header says {parsed.file_bytes}")
        return parsed

    def _write(self, target: Path, chunk: EncodedChunk) -> None:
        temporary = self._root / TEMPORARY / f"{target.stem}.{next(self._temporary)}"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                write_fully(fd, [memoryview(chunk.header_bytes), view_bytes(chunk.data)])
                if self._fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            new_directory = not target.parent.is_dir()
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, target)
            if self._fsync:
                sync_directory(target.parent)
                if new_directory:
                    sync_directory(target.parent.parent)
                    sync_directory(self._root)
        except BaseException:
            temporary.unlink(missing_ok=True)
            target.unlink(missing_ok=True)  # else a file the index does not count would stay
            raise

    def _make_room(self, nbytes: int) -> None:
        while self._used + nbytes > self._capacity and self._index:
            self._remove(next(iter(self._index)))
            self._evictions += 1
        if self._used + nbytes > self._capacity:
            raise TierFull("every byte is reserved by chunks being written")

    def _remove(self, key: str) -> bool:
        file = self._index.get(key)
        if file is None:
            return False
        self._path(key).unlink(missing_ok=True)
        self._forget(key, file)
        return True

    def _forget(self, key: str, file: StoredFile) -> None:
        if self._index.get(key) is file:
            del self._index[key]
            self._used -= file.nbytes

    def _adopt(self) -> None:
        """Rebuild the index from the directory."""
        self.scan, found = scan(self._root)
        for key, file in found:
            self._index[key] = file
            self._used += file.nbytes


def _runs(layers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive layers joined, each run ``(first, last)`` being one read."""
    ordered = sorted(set(layers))
    for _, group in itertools.groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        run = [layer for _, layer in group]
        yield run[0], run[-1]
