"""Deletes stored KV of collections after a time; documents stay, and their KV is computed at need.

KV of a document is deleted when the document is one, two, three … times as old as its collection
allows. So KV that was computed again meanwhile goes at the next of these moments, and none is older
than that. Each gateway does so for its own workers and the tiers that all share, and notes in its
data folder up to when it has.

A document that is pinned is left alone: its KV is to be there.
"""

import asyncio
import json
import math
import time
import uuid
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path

from kvstitch.retriever import Scope
from kvstitch.service.errors import TierUnreached
from kvstitch.service.gateway.data_folder import write_whole
from kvstitch.service.gateway.documents.chunk_kv import COPIES_PER_CALL, ChunkKVs
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.messages.requests import ChunkTokens, Purge

DAY_S = 86_400.0
PAUSE_S = 900.0
DOCUMENTS_AT_A_TIME = 16
OTHERS = "*"


class KvExpiry:
    """Deletes what is too old, step by step."""

    def __init__(
        self,
        ttl_days: Mapping[str, float],  # by collection; `*`: all others
        chunks: ChunkKVs,
        worker: Worker,
        file: Path,  # where the end of the last complete step is noted
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._ttl_s = {name: days * DAY_S for name, days in ttl_days.items()}
        self._chunks = chunks
        self._worker = worker
        self._file = file
        self._now = now

    async def step(self) -> bool:
        """Delete what has become too old since the last step; the loop then waits. What a worker or
        tier that is away keeps (WorkerUnavailable, TierUnreached), the next step deletes."""
        if not self._ttl_s:
            return False
        before, now = await asyncio.to_thread(self._read_moment), self._now()
        catalog = self._chunks.retriever.catalog
        documents = await self._chunks.retriever.run(catalog.ages)
        due = [(scope, name) for scope, name, stored in documents
               if self._is_due(scope.collection, stored, before, now)]  # fmt: skip
        for scope, group in groupby(due, key=lambda each: each[0]):
            names = [name for _, name in group]
            for start in range(0, len(names), DOCUMENTS_AT_A_TIME):
                await self._delete(scope, names[start : start + DOCUMENTS_AT_A_TIME])
        await asyncio.to_thread(write_whole, self._file, json.dumps(now))
        return False

    def _is_due(self, collection: str, stored: float, before: float, now: float) -> bool:
        """Return whether a document has passed a multiple of its time between two moments."""
        ttl_s = self._ttl_s.get(collection, self._ttl_s.get(OTHERS))
        if ttl_s is None or now - stored < ttl_s:
            return False
        return (now - stored) // ttl_s > max(0.0, (before - stored) // ttl_s)

    async def _delete(self, scope: Scope, doc_ids: list[str]) -> None:
        found = await self._chunks.to_purge(scope, doc_ids, together=True)
        texts = [ChunkTokens(each.chunk_id, each.ids) for each in found if each.ids]
        texts += [copy for each in found for copy in each.copies]
        prompts = self._chunks.prompts
        unreached: set[str] = set()
        for start in range(0, len(texts), COPIES_PER_CALL):
            part = texts[start : start + COPIES_PER_CALL]
            done = await self._worker.purge(
                Purge(uuid.uuid4().hex, prompts.system, part, prompts.prefix_mode, scope.tenant)
            )
            unreached.update(done.unreached)
        if unreached:
            names = ", ".join(sorted(unreached))
            raise TierUnreached(f"KV that is too old may still be in {names}")

    def _read_moment(self) -> float:
        try:
            return float(json.loads(self._file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            return -math.inf
