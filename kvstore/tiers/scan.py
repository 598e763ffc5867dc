"""What a directory of chunks holds, found by looking. Knows no bounds and no open tier."""

import os
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import ChunkError
from kvstore.header import LENGTH_BYTES, header_bytes, parse_header
from kvstore.keys import is_chunk_key
from kvstore.tiers.files import read_fully

SUFFIX = ".safetensors"
TEMPORARY = "tmp"


@dataclass(frozen=True)
class StoredFile:
    """Sizes of one whole chunk file."""

    header_bytes: int
    nbytes: int


@dataclass(frozen=True)
class ScanReport:
    """What the scan at start found."""

    kept: int
    removed_unreadable: int
    swept_temporary: int


def chunk_path(root: Path, key: str) -> Path:
    """``root/ab/cd/abcd....safetensors``: at most 256 entries per directory above the files."""
    return root / key[:2] / key[2:4] / (key + SUFFIX)


def scan(root: Path) -> tuple[ScanReport, list[tuple[str, StoredFile]]]:
    """Sweep temporary files, remove files that are no whole chunk, list the rest oldest first."""
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
    found.sort(key=lambda item: item[:2])
    report = ScanReport(kept=len(found), removed_unreadable=removed, swept_temporary=swept)
    return report, [(key, file) for _, key, file in found]


def _check_file(path: Path) -> StoredFile | None:
    """Size and header of a file, or None when it is not a whole chunk of ours."""
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
