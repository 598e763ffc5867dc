"""What an SSD tier holds: files by key, least recently used first, within a bound in bytes.

Knows no paths and touches no files; not thread-safe.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from kvstore.errors import TierFull
from kvstore.tiers.ssd.directory_scan import StoredFile


class DiskIndex:
    """The books of a directory.

    Args:
        capacity_bytes: bound on the sum of file sizes, files being written included.

    Attributes:
        used: bytes of all files and reservations.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self.used = 0

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def adopt(self, files: Iterable[tuple[str, StoredFile]]) -> None:
        """Take over what a scan found, oldest first."""
        self._files = OrderedDict(files)
        self.used = sum(file.nbytes for file in self._files.values())

    def get(self, key: str) -> StoredFile | None:
        return self._files.get(key)

    def use(self, key: str) -> StoredFile | None:
        """The same, and the key becomes the most recently used."""
        file = self._files.get(key)
        if file is not None:
            self._files.move_to_end(key)
        return file

    def oldest_beyond(self, nbytes: int) -> str | None:
        """The key to remove before `nbytes` more fit; None when they fit.

        Raises:
            TierFull: nothing is left to remove.
        """
        if nbytes > self._capacity:
            raise TierFull(f"{nbytes} bytes do not fit {self._capacity}")
        if self.used + nbytes <= self._capacity:
            return None
        if not self._files:
            raise TierFull("every byte is reserved by chunks being written")
        return next(iter(self._files))

    def reserve(self, nbytes: int) -> None:
        self.used += nbytes

    def release(self, nbytes: int) -> None:
        self.used -= nbytes

    def enter(self, key: str, file: StoredFile) -> None:
        """Add a chunk whose bytes were reserved; if it is there already they are released."""
        if key in self._files:
            self.release(file.nbytes)
        else:
            self._files[key] = file

    def enter_extra(self, key: str, name: str, nbytes: int) -> None:
        """Note a file beside a chunk, whose bytes were reserved, in place of an older one."""
        extras = self._files[key].extras
        self.release(extras.get(name, 0))
        extras[name] = nbytes

    def remove_extra(self, key: str, name: str) -> None:
        self.release(self._files[key].extras.pop(name, 0))

    def remove(self, key: str) -> StoredFile | None:
        """Take a chunk and its extras out of the books."""
        file = self._files.pop(key, None)
        if file is not None:
            self.release(file.nbytes)
        return file

    def clear(self) -> None:
        self._files.clear()
        self.used = 0
