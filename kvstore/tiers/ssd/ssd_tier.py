"""Keeps chunks as files in one directory, bounded in bytes; the least recently used goes first.

    root/.lock                    locked while started: one owner per directory
    root/.used                    bytes of all files, where several processes share the directory
    root/tmp/<n>                  being written; removed at start
    root/ab/cd/<key>.safetensors  visible chunks whose keys start with "abcd"
    root/ab/cd/<key>.<name>.extra extra tensors of that chunk, deleted with it

A chunk is written to tmp, fsynced and renamed, and the directories are fsynced too. So after a
crash a file is either whole or absent. Extra tensors are not fsynced: if a crash damages them, they
fail their checksum and are computed again. At start the index is rebuilt from the files: headers
and sizes are checked, data are verified when they are read. The order is that of the modification
times, which every read renews.

Several processes can share a directory, each with a number (`member`). Then they hold `.lock`
together, the files themselves are the index (`disk_index.py`), and each writes in a temporary
directory of its own. The first to start scans the directory; the others find it scanned.

Files are readable by this user alone. What is not a regular file is not ours: it is never opened,
replaced or removed, the scan reports it, and a chunk whose place it takes is not stored.
"""

import errno
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from kvstitch.kvstore.errors import ChunkCorrupt, TierFull, TierUnavailable
from kvstitch.kvstore.format.buffers import ByteRange, allocate, view_bytes
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader
from kvstitch.kvstore.format.chunk_identity import require_chunk_key, require_extra_name
from kvstitch.kvstore.tiers.base import ChunkProgress, Tier, TierKind, TierUsage
from kvstitch.kvstore.tiers.ssd.chunk_file_reader import ChunkFileReader
from kvstitch.kvstore.tiers.ssd.directory_scan import ScanReport, StoredFile, chunk_path, extra_path
from kvstitch.kvstore.tiers.ssd.disk_index import DiskIndex, SharedDiskIndex
from kvstitch.kvstore.tiers.ssd.file_io import (
    open_regular,
    read_fully,
    remove_regular,
    require_free_name,
    write_atomically,
    write_file,
)
from kvstitch.kvstore.tiers.ssd.tier_directory import TierDirectory

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Something that is not ours has the name of a file or of a directory above it.
_IN_THE_WAY = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)


class SsdTier(Tier):
    """A directory of chunks that survives restarts.

    Args:
        root: the directory; created at start. Only one process at a time may own it, unless all
            have a `member`.
        capacity_bytes: bound on the sum of file sizes, files being written included.
        pin: read into pinned memory.
        streams: number of disk reads at the same time.
        fsync: turn it off only where losing recent chunks in a power cut does not matter.
        name: label in outcomes and metrics.
        member: number of this process among those that share the directory, from 0; None if it
            has the directory for itself.
    """

    kind: TierKind = "disk"

    def __init__(
        self,
        root: str | os.PathLike[str],
        capacity_bytes: int,
        *,
        pin: bool = False,
        streams: int = 4,
        fsync: bool = True,
        name: str = "ssd",
        member: int | None = None,
    ) -> None:
        self.name = name
        self._root = Path(root)
        self._directory = TierDirectory(self._root, member)
        self._capacity = capacity_bytes
        self._files = ChunkFileReader(pin=pin, streams=streams)
        self._fsync = fsync
        self._lock = threading.Lock()
        self._index: DiskIndex | SharedDiskIndex = (
            DiskIndex(capacity_bytes)
            if member is None
            else SharedDiskIndex(self._root, capacity_bytes, member)
        )
        self._evictions = 0

    @property
    def scan(self) -> ScanReport:
        """What the scan at start found."""
        return self._directory.scan

    def start(self) -> None:
        """Lock the directory, remove what a crash left, rebuild the index."""
        found = self._directory.open()
        try:
            with self._lock:
                self._index.open()
                if found is not None:
                    self._index.adopt(found)
                    self._make_room(0)
            self._files.start()
            self._directory.share()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._index.clear()
            self._directory.close()
        self._files.close()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        target = chunk_path(self._root, require_chunk_key(key))
        with self._lock:
            self._require_started()
            if key in self._index:
                return
            self._reserve(chunk.nbytes)
        buffers = [memoryview(chunk.header_bytes), view_bytes(chunk.data)]
        with self._reserved(chunk.nbytes):
            write_atomically(
                self._directory.temporary_path(), target, self._root, buffers, sync=self._fsync
            )
        with self._lock:
            # Another thread may have written the same chunk in the meantime.
            self._index.enter(key, StoredFile(chunk.header.data_start, chunk.nbytes))

    def read_header(self, key: str) -> ChunkHeader | None:
        with self._open(key) as found:
            return self._files.header(*found) if found else None

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        with self._open(key) as found:
            return self._files.chunk(*found, on_progress) if found else None

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None = None,
    ) -> Tensor | None:
        with self._open(key) as found:
            return self._files.ranges(found[0], header, ranges, on_progress) if found else None

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        target = extra_path(self._root, require_chunk_key(key), require_extra_name(name))
        nbytes = raw.numel()
        with self._lock:
            self._require_started()
            if self._index.use(key) is None:
                return False
            self._reserve(nbytes)
        temporary = self._directory.temporary_path()
        try:
            with self._reserved(nbytes):
                write_file(temporary, [view_bytes(raw)], sync=False)
                with self._lock, self._index.exclusive():
                    # Under the locks, so that no delete in between can leave the file behind.
                    file = self._index.get(key)
                    if file is not None:
                        require_free_name(target)
                        os.replace(temporary, target)
                        self._index.enter_extra(file, name, nbytes)
                        return True
        finally:
            temporary.unlink(missing_ok=True)
        with self._lock:
            self._index.release(nbytes)
        return False

    def read_extra(self, key: str, name: str) -> Tensor | None:
        path = extra_path(self._root, require_chunk_key(key), require_extra_name(name))
        with self._lock:
            self._require_started()
            file = self._index.use(key)
            if file is None or name not in file.extras:
                return None
            # Under the lock, so that file and index are of the same write.
            nbytes = file.extras[name]
            try:
                fd = open_regular(path)
            except FileNotFoundError:  # removed by someone else
                self._index.remove_extra(key, name)
                return None
        try:
            size = os.fstat(fd).st_size
            if size > nbytes:  # perhaps beyond all memory
                raise ChunkCorrupt(f"{path} has {size} bytes, {nbytes} were written")
            raw = allocate(size)
            read_fully(fd, [view_bytes(raw)], 0)
            return raw
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

    def usage(self) -> TierUsage:
        with self._lock:
            return TierUsage(len(self._index), self._index.used, self._capacity, self._evictions)

    def scan_counts(self) -> Mapping[str, int]:
        return {
            "corrupt": self.scan.removed_unreadable,
            "refused": self.scan.removed_refused,
            "foreign": len(self.scan.foreign),
        }

    def _require_started(self) -> None:
        if not self._directory.locked:
            raise TierUnavailable(f"tier {self.name} is not started")

    @contextmanager
    def _open(self, key: str) -> Iterator[tuple[int, StoredFile] | None]:
        """Open a chunk file. The descriptor stays valid if the file is evicted meanwhile."""
        path = chunk_path(self._root, require_chunk_key(key))
        with self._lock:
            self._require_started()
            file = self._index.use(key)
        if file is None:
            yield None
            return
        try:
            fd = open_regular(path)
        except FileNotFoundError:  # removed by someone else
            with self._lock:
                if self._index.get(key) is file:
                    self._remove(key)
            yield None
            return
        try:
            os.utime(fd)
            yield fd, file
        finally:
            os.close(fd)

    def _reserve(self, nbytes: int) -> None:
        """Reserve the bytes before writing, so that several writers together keep the bound."""
        with self._index.exclusive():
            self._make_room(nbytes)
            self._index.reserve(nbytes)

    @contextmanager
    def _reserved(self, nbytes: int) -> Iterator[None]:
        """Release the reserved bytes if the block fails."""
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._index.release(nbytes)
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                raise TierFull(f"no space left under the SSD tier: {error.strerror}") from error
            if isinstance(error, OSError) and error.errno in _IN_THE_WAY:
                raise TierFull(f"{error.filename} is in the way: {error.strerror}") from error
            raise

    def _make_room(self, nbytes: int) -> None:
        while (key := self._index.oldest_beyond(nbytes)) is not None:
            self._remove(key)
            self._evictions += 1

    def _remove(self, key: str) -> bool:
        with self._index.exclusive():
            file = self._index.get(key)
            if file is None:
                return False
            # The index last: if an unlink fails, the chunk is still counted and can be deleted
            # again.
            for name in file.extras:
                remove_regular(extra_path(self._root, key, name))
            remove_regular(chunk_path(self._root, key))
            self._index.remove(key, file)
            return True
