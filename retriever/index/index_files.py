"""The files of a saved vector index. A crash during a save leaves the old index or the new one.

index-<checksum>.faiss    one per scope; written, fsynced and renamed first
manifest.json             names them; the save takes effect when it is renamed
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvstitch.retriever.errors import IndexCorrupt, IndexMissing, InvalidQuery
from kvstitch.retriever.index.scope_index import DEPTHS, Reads, SavedScope, list_content
from kvstitch.retriever.scope import Scope

_MANIFEST = "manifest.json"
_FORMAT = 2


@dataclass(frozen=True)
class Manifest:
    name: str
    revision: str
    dim: int
    generation: int
    token: str
    scopes: tuple[SavedScope, ...]
    format: int = _FORMAT


def read_manifest(directory: Path) -> Manifest:
    try:
        fields = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        scopes = tuple(_saved_scope(**saved) for saved in fields.pop("scopes"))
        manifest = Manifest(**fields, scopes=scopes)
        whole = [Scope(saved.tenant, saved.collection) for saved in scopes]
    except FileNotFoundError as error:
        raise IndexMissing(f"no index is saved in {directory}") from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError, InvalidQuery) as error:
        raise IndexCorrupt(f"the manifest in {directory} cannot be read: {error}") from error
    inside = all(Path(saved.file).name == saved.file for saved in scopes)
    if manifest.format != _FORMAT or not inside or len(set(whole)) != len(whole):
        raise IndexCorrupt(f"the manifest in {directory} is of another format")
    return manifest


def _saved_scope(reads: dict[str, Any] | None = None, **fields: Any) -> SavedScope:
    if reads is None:
        return SavedScope(**fields)
    probes, recall = tuple(int(n) for n in reads["probes"]), float(reads["recall"])
    if len(probes) != len(DEPTHS):
        raise ValueError(f"probes for {len(probes)} depths")
    return SavedScope(**fields, reads=Reads(probes, recall))


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Make a save take effect, and delete the files that it does not name."""
    partial = directory / "manifest.tmp"
    partial.write_text(json.dumps(asdict(manifest), indent=1), encoding="utf-8")
    _publish(partial, directory / _MANIFEST)
    kept = {saved.file for saved in manifest.scopes}
    for old in directory.glob("index-*.faiss"):
        if old.name not in kept:
            old.unlink(missing_ok=True)


def write_scope(
    directory: Path, scope: Scope, index: Any, count: int, reads: Reads | None
) -> SavedScope:
    """Write the FAISS index of one scope, which has `count` vectors."""
    import faiss

    partial = directory / "index.tmp"
    faiss.write_index(index, str(partial))
    checksum = _checksum(partial)
    file = f"index-{checksum[:16]}.faiss"
    _publish(partial, directory / file)
    return SavedScope(scope.tenant, scope.collection, count, file, checksum, reads)


def read_scope(directory: Path, saved: SavedScope, dim: int) -> tuple[Any, set[int]]:
    """Read the FAISS index of one scope; returns it with the ids of its vectors."""
    import faiss

    path = directory / saved.file
    # The checksum comes before faiss parses the file, because faiss trusts the sizes it reads.
    if not path.is_file() or _checksum(path) != saved.sha256:
        raise IndexCorrupt(f"{path} is missing or its checksum does not hold")
    loaded: Any = faiss.read_index(str(path))
    lists = isinstance(loaded, faiss.IndexIVFFlat)
    ids = _ids_of(loaded) if lists is (saved.reads is not None) else set()
    if loaded.d != dim or len(ids) != saved.count or loaded.ntotal != saved.count:
        raise IndexCorrupt(f"{path} does not hold what its manifest says")
    return loaded, ids


def _ids_of(index: Any) -> set[int]:
    import faiss

    if isinstance(index, faiss.IndexIVF):
        return {int(i) for number in range(index.nlist) for i in list_content(index, number)[0]}
    return {int(i) for i in faiss.vector_to_array(index.id_map)}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(partial: Path, final: Path) -> None:
    """fsync, rename, fsync the folder: after a crash the name is the new file or the old one."""
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(final)
    with contextlib.suppress(OSError):  # not every file system lets a folder be fsynced
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
