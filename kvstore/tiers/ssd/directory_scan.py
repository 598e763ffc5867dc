"""Finds out at start what a directory of chunks holds, and removes what is not a whole chunk."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from kvstore.errors import ChunkError
from kvstore.format.chunk_header import parse_header
from kvstore.format.chunk_keys import is_chunk_key, is_extra_name
from kvstore.format.safetensors_header import LENGTH_BYTES, header_bytes
from kvstore.tiers.ssd.file_io import read_fully

SUFFIX = ".safetensors"
EXTRA_SUFFIX = ".extra"
TEMPORARY = "tmp"


@dataclass
class StoredFile:
    """One whole chunk file and its files of extra tensors.

    Attributes:
        header_bytes: bytes of the chunk's header.
        file_bytes: bytes of the chunk file, header included.
        extras: bytes of each file of extra tensors, by name.
    """

    header_bytes: int
    file_bytes: int
    extras: dict[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all its files."""
        return self.file_bytes + sum(self.extras.values())


@dataclass(frozen=True)
class ScanReport:
    """What the scan at start found.

    Attributes:
        kept: number of whole chunks.
        removed_unreadable: number of files removed because they are no whole chunk, or extra
            tensors without a chunk.
        swept_temporary: number of temporary files removed.
    """

    kept: int
    removed_unreadable: int
    swept_temporary: int


def chunk_path(root: Path, key: str) -> Path:
    """`root/ab/cd/abcd....safetensors`; each directory has at most 256 subdirectories."""
    return root / key[:2] / key[2:4] / (key + SUFFIX)


def extra_path(root: Path, key: str, name: str) -> Path:
    """`root/ab/cd/abcd....<name>.extra`, beside its chunk."""
    return root / key[:2] / key[2:4] / f"{key}.{name}{EXTRA_SUFFIX}"


def scan(root: Path) -> tuple[ScanReport, list[tuple[str, StoredFile]]]:
    """Remove temporary files and files that are no whole chunk; list the chunks oldest first."""
    swept = 0
    for path in (root / TEMPORARY).iterdir():
        path.unlink()
        swept += 1
    found: list[tuple[int, str, StoredFile]] = []
    removed = 0
    for path in root.glob(f"??/??/*{SUFFIX}"):
        ours = is_chunk_key(path.stem) and path == chunk_path(root, path.stem)
        file = _check_file(path) if ours else None
        if file is None:
            path.unlink()
            removed += 1
        else:
            found.append((path.stat().st_mtime_ns, path.stem, file))
    removed += _adopt_extras(root, {key: file for _, key, file in found})
    found.sort(key=lambda item: item[:2])
    report = ScanReport(kept=len(found), removed_unreadable=removed, swept_temporary=swept)
    return report, [(key, file) for _, key, file in found]


def _adopt_extras(root: Path, chunks: dict[str, StoredFile]) -> int:
    """Add extra tensor files to their chunks; returns how many were removed without a chunk."""
    removed = 0
    for path in root.glob(f"??/??/*{EXTRA_SUFFIX}"):
        key, _, name = path.stem.partition(".")
        if key in chunks and is_extra_name(name) and path == extra_path(root, key, name):
            chunks[key].extras[name] = path.stat().st_size
        else:
            path.unlink()
            removed += 1
    return removed


def _check_file(path: Path) -> StoredFile | None:
    """Sizes of a chunk file, or None when it is not a whole chunk of this format."""
    try:
        with path.open("rb", buffering=0) as handle:
            size = os.fstat(handle.fileno()).st_size
            start = header_bytes(os.pread(handle.fileno(), LENGTH_BYTES, 0))
            header = bytearray(start)
            read_fully(handle.fileno(), [memoryview(header)], 0)
            parsed = parse_header(header)
    except (ChunkError, OSError):
        return None
    return StoredFile(start, size) if parsed.file_bytes == size else None
