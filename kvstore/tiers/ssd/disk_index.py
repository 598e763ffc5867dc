"""The index of an SSD tier: files by key, least recently used first, bounded in bytes.

It only keeps account; it never touches a file. It is not thread-safe.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kvstore.errors import TierFull
from kvstore.tiers.ssd.directory_scan import StoredFile


class DiskIndex:
    """Which files a directory holds, and how many bytes they take."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self.used = 0

    def open(self) -> None:
        """Do nothing: there is nothing to open."""

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Do nothing: there is no other process."""
        yield

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def adopt(self, files: Iterable[tuple[str, StoredFile]]) -> None:
        """Replace the content by what a scan found, oldest first."""
        self._files = OrderedDict(files)
        self.used = sum(file.nbytes for file in self._files.values())

    def get(self, key: str) -> StoredFile | None:
        return self._files.get(key)

    def use(self, key: str) -> StoredFile | None:
        """Like `get`, and the key becomes the most recently used."""
        file = self._files.get(key)
        if file is not None:
            self._files.move_to_end(key)
        return file

    def oldest_beyond(self, nbytes: int) -> str | None:
        """Return the key to remove so that `nbytes` more bytes fit; None when they fit already."""
        if nbytes > self._capacity:
            raise TierFull(f"{nbytes} bytes do not fit {self._capacity}")
        if self.used + nbytes <= self._capacity:
            return None
        if not self._files:
            raise TierFull("every byte is reserved by chunks being written")
        return next(iter(self._files))

    def reserve(self, nbytes: int) -> None:
        """Count bytes of a file that is about to be written."""
        self.used += nbytes

    def release(self, nbytes: int) -> None:
        """Take back a reservation, or the bytes of a removed file."""
        self.used -= nbytes

    def enter(self, key: str, file: StoredFile) -> None:
        """Add a chunk whose bytes are reserved; if it is there already, release them."""
        if key in self._files:
            self.release(file.nbytes)
        else:
            self._files[key] = file

    def enter_extra(self, file: StoredFile, name: str, nbytes: int) -> None:
        """Add extra tensors to a chunk, whose bytes are reserved, in place of older ones."""
        self.release(file.extras.get(name, 0))
        file.extras[name] = nbytes

    def remove_extra(self, key: str, name: str) -> None:
        self.release(self._files[key].extras.pop(name, 0))

    def remove(self, key: str, file: StoredFile) -> None:
        """Remove a chunk and its extra tensors from the index."""
        del self._files[key]
        self.release(file.nbytes)

    def clear(self) -> None:
        self._files.clear()
        self.used = 0
