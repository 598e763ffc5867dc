"""Large uploads as files on disk, from the moment they come in until they are indexed.

    bytes ── written as they come ── synced ── named by a row of jobs.sqlite3 ── indexed: removed
              └── upload refused: removed        └── the process dies: the row names it still

A file without a row belongs to an upload that was never acknowledged; `sweep` removes it. Small
documents need no file: they are in the row itself.
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import aiofiles

from kvstitch.service.gateway.data_folder import DiskGuard
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile

INLINE_BYTES = 1 << 17  # shorter documents are kept in the database: a file costs two syncs
START_BYTES = 4096  # enough to tell a file's kind


class SpoolFolder:
    """Thread-safe, but for `upload`, whose result belongs to one request. `start` makes the
    folder."""

    def __init__(self, folder: Path, disk: DiskGuard | None = None) -> None:
        self.folder = folder
        self.disk = disk or DiskGuard(folder.parent)
        self.unclaimed: set[str] = set()  # files that no row names yet

    def start(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def upload(self) -> "Upload":
        """Return what takes the files of one request; it has to be closed."""
        return Upload(self)

    def path(self, name: str) -> Path:
        return self.folder / name

    def claim(self, names: Iterable[str]) -> None:
        """Note that rows name these files now."""
        self.unclaimed.difference_update(names)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are not there are gone already."""
        for name in names:
            self.path(name).unlink(missing_ok=True)
            self.unclaimed.discard(name)

    def sweep(self, named: Collection[str]) -> int:
        """Remove what no row names, before there are uploads; returns how many files that were."""
        files = [path.name for path in self.folder.iterdir() if path.is_file()]
        orphans = [name for name in files if name not in named]
        self.remove(orphans)
        return len(orphans)


class Upload:
    """The files of one request. Closing it removes those that no job has."""

    def __init__(self, spool: SpoolFolder) -> None:
        self._spool = spool
        self._writers: list[SpoolWriter] = []

    async def writer(self) -> "SpoolWriter":
        made = await SpoolWriter.open(self._spool)
        self._writers.append(made)
        return made

    async def receive(self, parts: AsyncIterator[bytes]) -> bytes | SpooledFile:
        """Return a whole body: in memory if it is short, else in a file."""
        buffer = bytearray()
        writer: SpoolWriter | None = None
        async for part in parts:
            buffer += part
            if len(buffer) >= INLINE_BYTES:
                writer = writer or await self.writer()
                await writer.write(bytes(buffer))
                buffer.clear()
        if writer is None:
            return bytes(buffer)
        await writer.write(bytes(buffer))
        return await writer.finish()

    async def hold(self, document: IngestDocument) -> IngestDocument:
        """Return the document, with its content in a file if that is long."""
        content = document.content
        if isinstance(content, SpooledFile) or len(content) < INLINE_BYTES:
            return document
        writer = await self.writer()
        await writer.write(content)
        return replace(document, content=await writer.finish())

    async def close(self) -> None:
        for writer in self._writers:
            with contextlib.suppress(OSError):  # no room for the rest of what is not needed
                await writer.close()
        names = {writer.name for writer in self._writers} & self._spool.unclaimed
        await asyncio.to_thread(self._spool.remove, names)


class SpoolWriter:
    """Writes one file as its bytes come in; raises DiskFull where there is no room."""

    def __init__(self, spool: SpoolFolder, name: str, file: Any) -> None:
        self._spool, self.name, self._file = spool, name, file
        self._start = b""
        self._size = 0

    @classmethod
    async def open(cls, spool: SpoolFolder) -> Self:
        name = uuid.uuid4().hex
        spool.unclaimed.add(name)
        with spool.disk.translated():
            return cls(spool, name, await aiofiles.open(spool.path(name), "xb"))

    async def write(self, data: bytes) -> None:
        with self._spool.disk.translated():
            await self._file.write(data)
        self._start = (self._start + data[:START_BYTES])[:START_BYTES]
        self._size += len(data)

    async def finish(self) -> SpooledFile:
        """Return when the file, and its name in the folder, survive a loss of power."""
        with self._spool.disk.translated():
            await self._file.flush()
            await asyncio.to_thread(_sync, self._file.fileno(), self._spool.folder)
        await self.close()
        return SpooledFile(self._spool.path(self.name), self._size, self._start)

    async def close(self) -> None:
        await self._file.close()


def _sync(descriptor: int, folder: Path) -> None:
    os.fsync(descriptor)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
