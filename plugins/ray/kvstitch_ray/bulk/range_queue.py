"""The documents of one range on their way in: what the stages of ingestion work off in an actor."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from kvstitch_ray.bulk.ranges import Unread
from kvstitch_ray.bulk.records import Counts
from service.errors import InternalError, KvstitchError
from service.gateway.documents.jobs.job_records import IngestDocument
from service.messages.replies import Precomputed


class RangeQueue:
    """Satisfies `DocumentQueue`. Thread-safe; `pending` blocks while it reads."""

    def __init__(
        self,
        documents: Iterator[IngestDocument | Unread],
        counts: Counts,
        record_sizes: Callable[[Sequence[IngestDocument]], None],
        *,
        whole: bool = False,
    ) -> None:
        self._documents = documents
        self._counts = counts
        self._record_sizes = record_sizes
        self._lock = threading.Lock()
        self._held_back = whole
        self._whole = whole
        self._all_read = False
        self._pending: dict[int, IngestDocument] = {}
        self._indexed: dict[int, IngestDocument] = {}
        # Chunks that are counted, by LoRA adapter: those of a batch that is tried again come twice.
        self._counted: set[tuple[int, str]] = set()

    @property
    def ended(self) -> bool:
        """Whether every document is done or has failed."""
        return self._all_read and not self._pending and not self._indexed

    def pending(
        self,
        limit: int,
        max_bytes: int,
        *,
        without: Collection[int] = (),
        largest: int | None = None,
    ) -> list[IngestDocument]:
        size = sum(item.size for item in self._pending.values())
        while not self._all_read and len(self._pending) < limit and size < max_bytes:
            try:
                one = next(self._documents, None)
            except KvstitchError:
                raise
            except Exception as error:
                raise InternalError(f"the input cannot be read: {error}") from error
            with self._lock:
                if one is None:
                    self._all_read = True
                elif isinstance(one, IngestDocument):
                    self._pending[one.number] = one
                    size += one.size
                else:
                    self._counts.fail(*one)
        with self._lock:
            # The KV of an earlier revision is stored before a document is replaced.
            waiting = {item.key for item in self._indexed.values()}
            found: list[IngestDocument] = []
            for item in self._pending.values():
                if item.key in waiting:
                    break
                if item.number in without or item.size > (largest or item.size):
                    continue
                found.append(item)
            self._held_back = self._whole and bool(found)
            return found

    def indexed(self, limit: int) -> list[IngestDocument]:
        with self._lock:
            return [] if self._held_back else list(self._indexed.values())[:limit]

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        with self._lock:
            return set(numbers) & set(self._pending if state == "pending" else self._indexed)

    def set_indexed(self, indexed: Sequence[IngestDocument]) -> None:
        self._record_sizes(indexed)
        with self._lock:
            for item in indexed:
                del self._pending[item.number]
                if said := json.loads(item.warnings):
                    self._counts.warn(item.doc_id, [one["message"] for one in said])
                self._indexed[item.number] = replace(
                    item, kind="", content=b"", title="", metadata={}
                )
                self._counts.chunks += item.chunks
                self._counts.tokens += item.tokens

    def set_done(self, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in numbers:
                del self._indexed[number]
                self._counts.done += 1

    def set_failed(
        self, failed: Sequence[tuple[IngestDocument, str]], state: str = "failed"
    ) -> None:
        with self._lock:
            for item, message in failed:
                if self._pending.pop(item.number, None) is None:
                    del self._indexed[item.number]
                self._counts.fail(item.doc_id, message)

    def on_reply(self, reply: Precomputed, lora: str, tokens: float) -> None:
        """Count a chunk that the tiers hold: it was stored just now, or was present."""
        key = (reply.chunk_id, lora)
        if reply.status == "stored":
            self._counts.bytes += reply.bytes
        if reply.status == "failed" or key in self._counted:
            return
        self._counted.add(key)
        self._counts.stored += reply.status == "stored"
        self._counts.present += reply.status == "present"
