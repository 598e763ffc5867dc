"""The indexes of an SSD tier: files by key, least recently used first, bounded in bytes.

They keep account and never change a file, and are not thread-safe.

`SharedDiskIndex` is for a directory that several processes use: the files are the index. Nothing is
remembered about a single file, so what another process has written, evicted or deleted is seen at
once. Only the account of bytes is kept beside the files, in `root/.used`, which every process maps
into its memory:

    int64: number of chunks │ bytes of all files │ bytes reserved by process 0, 1, 2, …

Every process changes its own reservation alone, so one that is killed leaves nothing behind: it
starts with a reservation of 0 again. The account changes under a lock between processes. It may
count too much (two processes wrote the same chunk at the same time), never too little; the next
eviction lists the directory and counts anew. The order of eviction is that of the modification
times, which every read of every process renews.
"""

import fcntl
import mmap
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvstitch.kvstore.errors import ChunkCorrupt, TierFull, TierUnavailable
from kvstitch.kvstore.format.safetensors_header import LENGTH_BYTES, header_bytes
from kvstitch.kvstore.tiers.ssd.directory_scan import EXTRA_SUFFIX, SUFFIX, StoredFile, chunk_path
from kvstitch.kvstore.tiers.ssd.file_io import FILE_MODE, is_regular, open_regular

ACCOUNT = ".used"
MAX_MEMBERS = 64
_ENTRIES, _USED, _RESERVED = 0, 1, 2  # places in the account
# Share of the files, oldest first, that one listing of the directory serves evictions with.
_LISTED = 0.25


class DiskIndex(OrderedDict[str, StoredFile]):
    """Which files a directory holds, and how many bytes they take."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__()
        self._capacity = capacity_bytes
        self.used = 0

    def open(self) -> None:
        return

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep no other process away: there is none."""
        yield

    def adopt(self, files: Iterable[tuple[str, StoredFile]]) -> None:
        """Replace the content by what a scan found, oldest first."""
        self.clear()
        self.update(files)
        self.used = sum(file.nbytes for file in self.values())

    def use(self, key: str) -> StoredFile | None:
        """Like `get`, and the key becomes the most recently used."""
        file = self.get(key)
        if file is not None:
            self.move_to_end(key)
        return file

    def oldest_beyond(self, nbytes: int) -> str | None:
        """Return the key to remove so that `nbytes` more bytes fit; None when they fit already."""
        if nbytes > self._capacity:
            raise TierFull(f"{nbytes} bytes do not fit {self._capacity}")
        if self.used + nbytes <= self._capacity:
            return None
        if not self:
            raise TierFull("every byte is reserved by chunks being written")
        return next(iter(self))

    def reserve(self, nbytes: int) -> None:
        """Count bytes of a file that is about to be written."""
        self.used += nbytes

    def release(self, nbytes: int) -> None:
        self.used -= nbytes

    def enter(self, key: str, file: StoredFile) -> None:
        """Add a chunk whose bytes are reserved; if it is there already, release them."""
        if key in self:
            self.release(file.nbytes)
        else:
            self[key] = file

    def enter_extra(self, file: StoredFile, name: str, nbytes: int) -> None:
        """Add extra tensors to a chunk, whose bytes are reserved, in place of older ones."""
        self.release(file.extras.get(name, 0))
        file.extras[name] = nbytes

    def remove_extra(self, key: str, name: str) -> None:
        self.release(self[key].extras.pop(name, 0))

    def remove(self, key: str, file: StoredFile) -> None:
        del self[key]
        self.release(file.nbytes)

    def clear(self) -> None:
        super().clear()
        self.used = 0


class SharedDiskIndex:
    """What `DiskIndex` is for one process."""

    def __init__(self, root: Path, capacity_bytes: int, member: int) -> None:
        if not 0 <= member < MAX_MEMBERS:
            raise ValueError(f"{member} is no member: a directory has at most {MAX_MEMBERS}")
        self._root = root
        self._capacity = capacity_bytes
        self._own = _RESERVED + member
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._oldest: deque[tuple[int, str]] = deque()  # modification time and key
        self._depth = 0

    def open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        self._fd = os.open(self._root / ACCOUNT, flags, FILE_MODE)
        size = 8 * (_RESERVED + MAX_MEMBERS)
        with self.exclusive():
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
            self._account[self._own] = 0

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep the other processes from the account. It may be entered again inside."""
        if self._depth == 0:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    @property
    def used(self) -> int:
        return sum(self._account[_USED:])

    def __contains__(self, key: str) -> bool:
        return is_regular(chunk_path(self._root, key))

    def __len__(self) -> int:
        return int(self._account[_ENTRIES])

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path, _ in self._files() if path.suffix == SUFFIX)

    def adopt(self, files: Iterable[tuple[str, StoredFile]]) -> None:
        found = [file for _, file in files]
        account = self._account
        account[_ENTRIES] = len(found)
        account[_USED] = sum(file.nbytes for file in found)
        for member in range(MAX_MEMBERS):
            account[_RESERVED + member] = 0

    def get(self, key: str) -> StoredFile | None:
        path = chunk_path(self._root, key)
        try:
            fd = open_regular(path)
        except (FileNotFoundError, ChunkCorrupt):
            return None
        try:
            size = os.fstat(fd).st_size
            start = header_bytes(os.pread(fd, LENGTH_BYTES, 0))
        except ChunkCorrupt:
            start = 0  # whoever reads the header will find it damaged
        finally:
            os.close(fd)
        return StoredFile(start, size, self._extras(path))

    def use(self, key: str) -> StoredFile | None:
        return self.get(key)  # the tier renews the modification time of what it reads

    def oldest_beyond(self, nbytes: int) -> str | None:
        if nbytes > self._capacity:
            raise TierFull(f"{nbytes} bytes do not fit {self._capacity}")
        while self.used + nbytes > self._capacity:
            if not self._oldest:
                self._list()
                if not self._oldest:
                    raise TierFull("every byte is reserved by chunks being written")
                continue
            modified, key = self._oldest.popleft()
            with suppress(OSError):
                if chunk_path(self._root, key).stat().st_mtime_ns == modified:
                    return key  # unlike those that were read, or removed, since the listing
        return None

    def reserve(self, nbytes: int) -> None:
        self._add(self._own, nbytes)

    def release(self, nbytes: int) -> None:
        self._add(self._own, -nbytes)

    def enter(self, key: str, file: StoredFile) -> None:
        with self.exclusive():
            self.release(file.nbytes)
            self._add(_USED, file.nbytes)
            self._add(_ENTRIES, 1)

    def enter_extra(self, file: StoredFile, name: str, nbytes: int) -> None:
        with self.exclusive():
            self.release(nbytes)
            self._add(_USED, nbytes - file.extras.get(name, 0))

    def remove_extra(self, key: str, name: str) -> None:
        """Do nothing: whoever removed the file has counted it."""

    def remove(self, key: str, file: StoredFile) -> None:
        with self.exclusive():
            self._add(_USED, -file.nbytes)
            self._add(_ENTRIES, -1)

    def clear(self) -> None:
        self._oldest.clear()
        if self._map is not None:
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def _account(self) -> memoryview:
        if self._map is None:
            raise TierUnavailable("the SSD tier is not started")
        return memoryview(self._map).cast("q")

    def _add(self, place: int, count: int) -> None:
        with self.exclusive():
            account = self._account
            account[place] = max(0, account[place] + count)

    def _list(self) -> None:
        """Count what is there, and queue the oldest chunks for eviction."""
        with self.exclusive():
            found: list[tuple[int, str]] = []
            used = 0
            for path, status in self._files():
                used += status.st_size
                if path.suffix == SUFFIX:
                    found.append((status.st_mtime_ns, path.stem))
            self._account[_USED] = used
            self._account[_ENTRIES] = len(found)
        found.sort()
        self._oldest = deque(found[: max(1, int(len(found) * _LISTED))])

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield regular files two directories down, without those that go away meanwhile."""
        for name in (f"{byte:02x}" for byte in range(256)):
            for folder in _entries(self._root / name):
                if not folder.is_dir(follow_symlinks=False):
                    continue
                for entry in _entries(Path(folder.path)):
                    with suppress(OSError):
                        if entry.is_file(follow_symlinks=False):
                            yield Path(entry.path), entry.stat(follow_symlinks=False)

    def _extras(self, path: Path) -> dict[str, int]:
        """Return the bytes of each file of extra tensors beside a chunk, by name."""
        extras: dict[str, int] = {}
        for entry in _entries(path.parent):
            name = entry.name.removeprefix(f"{path.stem}.").removesuffix(EXTRA_SUFFIX)
            if entry.name == f"{path.stem}.{name}{EXTRA_SUFFIX}":
                with suppress(OSError):
                    if entry.is_file(follow_symlinks=False):
                        extras[name] = entry.stat(follow_symlinks=False).st_size
        return extras


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
