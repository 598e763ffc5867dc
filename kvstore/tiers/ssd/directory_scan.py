"""The scan at start: what a directory of chunks holds; what is not a whole chunk is removed."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvstitch.kvstore.errors import ChunkCorrupt, ChunkError, ChunkRefused
from kvstitch.kvstore.format.chunk_header import parse_header
from kvstitch.kvstore.format.chunk_identity import is_chunk_key, is_extra_name
from kvstitch.kvstore.format.extra_tensors import extra_file_bytes
from kvstitch.kvstore.format.safetensors_header import LENGTH_BYTES, header_bytes
from kvstitch.kvstore.tiers.ssd.file_io import DIRECTORY_MODE, FILE_MODE, open_regular, read_fully

SUFFIX = ".safetensors"
EXTRA_SUFFIX = ".extra"
TEMPORARY = "tmp"
LOCK = ".lock"

_PREFIX = re.compile(r"[0-9a-f]{2}")
# Processes that share a directory write in one of their own each: tmp-w0, tmp-w1, …
_TEMPORARY_NAME = re.compile(rf"{TEMPORARY}(-[1-9]|-w[0-9]+)?")


@dataclass
class StoredFile:
    """One whole chunk file and its files of extra tensors."""

    header_bytes: int
    file_bytes: int
    extras: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all its files."""
        return self.file_bytes + sum(self.extras.values())


@dataclass
class ScanReport:
    """What the scan at start found."""

    kept: int = 0
    removed_unreadable: int = 0
    removed_refused: int = 0
    swept_temporary: int = 0
    foreign: list[Path] = field(default_factory=list)


def is_temporary_name(name: str) -> bool:
    """Return whether a directory for files being written may have that name."""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def chunk_path(root: Path, key: str) -> Path:
    """Return `root/ab/cd/abcd....safetensors`; a directory has at most 256 subdirectories."""
    return root / key[:2] / key[2:4] / (key + SUFFIX)


def extra_path(root: Path, key: str, name: str) -> Path:
    """Return `root/ab/cd/abcd....<name>.extra`, beside its chunk."""
    return root / key[:2] / key[2:4] / f"{key}.{name}{EXTRA_SUFFIX}"


class DirectoryScan:
    """A scan of a directory of chunks: removes what is not whole, skips what is not ours."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.report = ScanReport()

    def run(self) -> list[tuple[str, StoredFile]]:
        """Remove temporary files and what is no whole chunk; list the chunks oldest first."""
        chunks: list[Path] = []
        extras: list[Path] = []
        for path in self._files():
            if path.suffix == SUFFIX:
                chunks.append(path)
            elif path.suffix == EXTRA_SUFFIX:
                extras.append(path)
        found: list[tuple[int, str, StoredFile]] = []
        for path in chunks:
            ours = is_chunk_key(path.stem) and path == chunk_path(self._root, path.stem)
            try:
                file = _check_file(path) if ours else None
            except ChunkRefused:
                self.report.removed_refused += self._unlink(path)
                continue
            if file is None:
                self.report.removed_unreadable += self._unlink(path)
            else:
                found.append((path.stat().st_mtime_ns, path.stem, file))
        self._adopt_extras(extras, {key: file for _, key, file in found})
        found.sort(key=lambda item: item[:2])
        self.report.kept = len(found)
        return [(key, file) for _, key, file in found]

    def _files(self) -> Iterator[Path]:
        """Yield every regular file two directories down; note what else is not ours."""
        for first in self._entries(self._root):
            hidden = first.name.startswith(".") and first.name != LOCK
            if hidden and first.is_dir(follow_symlinks=False):
                continue
            if is_temporary_name(first.name) and first.is_dir(follow_symlinks=False):
                self._sweep(first)
                continue
            if not self._is_prefix(first):
                continue
            for second in self._entries(Path(first.path)):
                if not self._is_prefix(second):
                    continue
                for entry in self._entries(Path(second.path)):
                    if self._is_file(entry):
                        yield Path(entry.path)

    def sweep_only(self, folder: Path) -> None:
        """Remove the temporary files that a crash has left in one directory, and nothing else."""
        for entry in self._entries(folder):
            if self._is_file(entry):
                self.report.swept_temporary += self._unlink(Path(entry.path))

    def _sweep(self, folder: os.DirEntry[str]) -> None:
        _make_private(folder, DIRECTORY_MODE)
        self.sweep_only(Path(folder.path))

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError:  # not ours to read, or no directory
            self.report.foreign.append(folder)
            return []

    def _is_prefix(self, entry: os.DirEntry[str]) -> bool:
        """Return whether it is a directory named by two characters of keys."""
        try:
            if entry.is_dir() and _PREFIX.fullmatch(entry.name):
                _make_private(entry, DIRECTORY_MODE)
                return True
            if entry.is_file(follow_symlinks=False):
                if entry.name == LOCK:
                    _make_private(entry, FILE_MODE)
            else:
                self.report.foreign.append(Path(entry.path))
        except OSError:  # a loop of symbolic links
            self.report.foreign.append(Path(entry.path))
        return False

    def _is_file(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_file(follow_symlinks=False):
            _make_private(entry, FILE_MODE)
            return True
        self.report.foreign.append(Path(entry.path))
        return False

    def _unlink(self, path: Path) -> int:
        """Remove a file; return how many were removed."""
        try:
            path.unlink(missing_ok=True)
        except OSError:
            self.report.foreign.append(path)
            return 0
        return 1

    def _adopt_extras(self, paths: list[Path], chunks: dict[str, StoredFile]) -> None:
        """Add extra tensor files to their chunks; remove those without a chunk."""
        for path in paths:
            key, _, name = path.stem.partition(".")
            ours = is_extra_name(name) and path == extra_path(self._root, key, name)
            nbytes = _check_extra(path) if ours and key in chunks else None
            if nbytes is None:
                self.report.removed_unreadable += self._unlink(path)
            else:
                chunks[key].extras[name] = nbytes


def _make_private(entry: os.DirEntry[str], mode: int) -> None:
    """Close to other users what older versions wrote."""
    if entry.stat().st_mode & 0o077:
        with suppress(OSError):  # of another user: then it is theirs to protect
            os.chmod(entry.path, mode)


def _check_file(path: Path) -> StoredFile | None:
    """Return the sizes of a chunk file, or None when it is not a whole chunk."""
    try:
        header, size = _read_header(path)
        whole = parse_header(header).file_bytes == size
    except (ChunkCorrupt, OSError):
        return None
    return StoredFile(len(header), size) if whole else None


def _check_extra(path: Path) -> int | None:
    """Return the size of a file of extra tensors, or None when it is not a whole one."""
    try:
        header, size = _read_header(path)
        return size if extra_file_bytes(header) == size else None
    except (ChunkError, OSError):
        return None


def _read_header(path: Path) -> tuple[bytearray, int]:
    """Read the header of a file; return it, and the size of the file."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        header = bytearray(header_bytes(os.pread(fd, LENGTH_BYTES, 0)))
        read_fully(fd, [memoryview(header)], 0)
        return header, size
    finally:
        os.close(fd)
