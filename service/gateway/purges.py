"""KV that must go because its document was deleted or changed. Knows no HTTP and no tensors.

    note (before the change) ── the change ── due: the chunk is gone ── purge ── settled
                                          └── not due: it is still there ──────────┘

The notes are on disk, so that a crash in between forgets no KV of a deleted document.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

from service.gateway.job_records import OwedPurge
from service.gateway.jobs import JobStore
from service.gateway.library import Library
from service.gateway.prompts import Prompts
from service.gateway.worker import Worker
from service.messages import Chunk

CALL_CHUNKS = 64  # chunks in one call to the worker


class Purges:
    """Hold `changing` from the note of a purge to the end of the change it is about."""

    def __init__(self, jobs: JobStore, library: Library, worker: Worker, prompts: Prompts) -> None:
        self._jobs = jobs
        self._library = library
        self._worker = worker
        self._prompts = prompts
        self.changing = asyncio.Lock()

    async def note(self, doc_ids: Sequence[str]) -> None:
        """Before a change of these documents: the KV of all their chunks may have to go."""
        notes = [
            (doc_id, chunk.chunk_id, self._prompts.segment(chunk))
            for doc_id in doc_ids
            for chunk in await self._library.chunks_of(doc_id)
        ]
        if notes:
            await asyncio.to_thread(self._jobs.owe_purge, notes)

    async def note_gone(self, stored: Sequence[tuple[str, Chunk]]) -> None:
        """After KV was stored for (doc_id, chunk): what was deleted or replaced meanwhile has
        been stored for nobody."""
        alive = await self._library.alive([chunk.chunk_id for _, chunk in stored])
        gone = [(doc_id, c.chunk_id, c.ids) for doc_id, c in stored if c.chunk_id not in alive]
        if gone:
            await asyncio.to_thread(self._jobs.owe_purge, gone)

    async def make(self, doc_id: str | None = None) -> dict[str, int]:
        """Make the purges that are due (of one document); copies deleted per tier.

        Raises WorkerUnavailable and whatever the worker refuses it with; the notes then remain.
        """
        copies: Counter[str] = Counter()
        while due := await self._due(doc_id):
            chunks = [Chunk(note.chunk_id, note.ids) for note in due]
            mode = self._prompts.prefix_mode
            copies.update(await self._worker.purge(self._prompts.system, chunks, mode, ""))
            numbers = [note.number for note in due]
            await asyncio.to_thread(self._jobs.settle_purges, numbers)
        return dict(copies)

    async def _due(self, doc_id: str | None) -> list[OwedPurge]:
        """Purges to make now. Notes that turned out not to be due are settled.

        A chunk that is still there, or whose ids another chunk has (in the document's new revision
        or in another document), keeps its KV: the key is its content.
        """
        due: list[OwedPurge] = []
        while not due:
            async with self.changing:
                owed = await asyncio.to_thread(self._jobs.owed_purges, CALL_CHUNKS, doc_id)
                if not owed:
                    break
                alive = await self._library.alive([note.chunk_id for note in owed])
                kept: dict[str, set[tuple[int, ...]]] = {}
                for name in {note.doc_id for note in owed}:
                    chunks = await self._library.chunks_of(name)
                    kept[name] = {tuple(self._prompts.segment(chunk)) for chunk in chunks}
                due = [
                    note
                    for note in owed
                    if note.chunk_id not in alive
                    and tuple(note.ids) not in kept[note.doc_id]
                    and not await self._shared(note)
                ]
                gone = [note.chunk_id for note in owed if note.chunk_id not in alive]
                await asyncio.to_thread(self._jobs.forget_contents, gone)
                moot = [note.number for note in owed if note not in due]
                await asyncio.to_thread(partial(self._jobs.settle_purges, moot))
        return due

    async def _shared(self, note: OwedPurge) -> bool:
        """Whether a chunk that is still there, of whatever document, has the same content."""
        same = await asyncio.to_thread(self._jobs.same_content, note.ids)
        others = [chunk_id for chunk_id in same if chunk_id != note.chunk_id]
        return bool(others) and bool(await self._library.alive(others))
