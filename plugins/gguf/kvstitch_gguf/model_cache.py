"""Folders made of .gguf files, kept in the model cache.

    CACHE/NAME-DIGEST/        a whole conversion, of one content and one dtype; never changed
    CACHE/.NAME-DIGEST.new/   one that is being written, or was given up
    CACHE/.NAME-DIGEST.lock   held while it is written
    CACHE/.hashes/            content hashes of files that have been read before

A conversion is renamed into place when all of it is on the disk, so a half-written one is never
used. Two processes that want the same one make it once: the second waits for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstitch.service.errors import ModelRefused

PRIVATE = 0o700
SOURCE_FILE = "source.json"
# Raise it when the same file is to be converted in another way.
CONVERSION = 2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Conversion:
    """One conversion, before or after it was made."""

    name: str
    sha256: str
    dtype: str

    @property
    def folder_name(self) -> str:
        of = f"{CONVERSION} {self.sha256} {self.dtype}".encode()
        return f"{self.name}-{hashlib.blake2b(of, digest_size=6).hexdigest()}"


class ModelCache:
    """The folder with all conversions; it is made when the first one is."""

    def __init__(self, folder: Path, say: Say) -> None:
        """Name the folder; nothing is read or made. `say` takes sentences for people."""
        self.folder = folder
        self._say = say

    def find(self, wanted: Conversion) -> Path | None:
        """Return the folder of a whole conversion, None if there is none."""
        folder = self.folder / wanted.folder_name
        return folder if _is_whole(folder) else None

    def make(self, wanted: Conversion, write: Callable[[Path], dict[str, Any]]) -> Path:
        """Return the folder of a conversion, made by `write` unless it is there.

        Args:
            wanted: The conversion.
            write: Fills an empty folder; returns what to note about the source.

        Raises:
            ModelRefused: The cache cannot be written, or as `write` raises.
        """
        if found := self.find(wanted):
            return found
        folder = self.folder / wanted.folder_name
        new = self.folder / f".{wanted.folder_name}.new"
        with self._lock(wanted):
            if found := self.find(wanted):  # another process has made it
                return found
            try:
                for old in (new, folder):  # given up, or damaged since
                    if old.exists():
                        shutil.rmtree(old)
                new.mkdir(mode=PRIVATE)
                about = {**write(new), "sha256": wanted.sha256, "dtype": wanted.dtype}
                _seal(new, about)
                new.rename(folder)
            except OSError as error:
                raise self._unusable(error) from error
            finally:
                shutil.rmtree(new, ignore_errors=True)
        return folder

    def all(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield every whole conversion and what was noted about its source."""
        for folder in sorted(self.folder.glob("[!.]*/")):
            if _is_whole(folder):
                yield folder, _read(folder / SOURCE_FILE)

    def sha256(self, file: Path, *, remember: bool) -> str:
        """Return the hash of a file's content; of one that was remembered, until the file changes.

        A file is taken for unchanged if size, inode and both times are the same: its time of
        change cannot be set by those who copy or unpack files.

        Args:
            file: The file.
            remember: Whether to store the hash, so that the file is not read again.

        Raises:
            OSError: The file cannot be read.
        """
        status = file.stat()
        now = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
        place = hashlib.blake2b(os.fsencode(file.resolve()), digest_size=12).hexdigest()
        note = self.folder / ".hashes" / f"{place}.json"
        known = _read(note)
        if known.get("status") == now:
            return str(known["sha256"])
        found = file_sha256(file)
        if remember:
            with suppress(OSError):  # it is read again next time
                note.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
                write_private(note, _json({"status": now, "sha256": found}))
        return found

    @contextmanager
    def _lock(self, wanted: Conversion) -> Iterator[None]:
        try:
            self.folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            held = os.open(
                self.folder / f".{wanted.folder_name}.lock", os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as error:
            raise self._unusable(error) from error
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._say(f"another process prepares {wanted.name}; waiting for it")
                fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def _unusable(self, error: OSError) -> ModelRefused:
        return ModelRefused(
            f"the model cache {self.folder} cannot be used ({error.strerror or error}): make room, "
            "or give another folder with --model-cache (KVSTITCH_MODEL_CACHE)"
        )


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _is_whole(folder: Path) -> bool:
    """Return whether a folder holds every file that its conversion has written."""
    sizes = _read(folder / SOURCE_FILE).get("files", {})
    try:
        return bool(sizes) and all((folder / n).stat().st_size == s for n, s in sizes.items())
    except OSError:
        return False


def _seal(folder: Path, about: dict[str, Any]) -> None:
    """Note source and files of a conversion, and bring all of it onto the disk."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    sizes = {f.name: f.stat().st_size for f in files}
    write_private(folder / SOURCE_FILE, _json({**about, "files": sizes}))
    for path in (*files, folder / SOURCE_FILE, folder):
        held = os.open(path, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON object of ours; empty if it is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode()


def write_private(file: Path, content: bytes) -> None:
    """Write a file at once, readable by its owner alone; nobody sees half of it."""
    new = file.with_name(f"{file.name}.{os.getpid()}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)
    new.replace(file)
