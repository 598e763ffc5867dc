"""Stored documents: list, read, pin and delete them.

A tenant sees its own documents, and cannot tell whether another tenant has a document of some id.
Nor can a key of a document that it may not read: a scope shows what its sender may read. Of what it
may read it changes what it may write.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kvstitch.records.documents import (
    Collection,
    Document,
    DocumentList,
    Receipt,
    SourceDocument,
)
from kvstitch.retriever import Chunk, DocFilter, Scope
from kvstitch.retriever.scope import View, joined_writers
from kvstitch.service.errors import Conflict, KvstitchError, NotAWriter, NotFound
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.documents.deletion.deletion_store import DeletionStore
from kvstitch.service.gateway.documents.deletion.purge_queue import PurgeQueue
from kvstitch.service.gateway.documents.ingestion import Ingestion
from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.schemas.fields import composed
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.gateway.search.search_query import document_scope

PAGE_DOCUMENTS = 1000  # looked up at a time when many are deleted
PURGE_S = 10.0  # a deletion answers then; what tiers have not purged yet, its receipt says


@dataclass(frozen=True)
class DocumentService:
    """Every method raises WorkerUnavailable while the index is being loaded."""

    _jobs: JobStore
    _deletions: DeletionStore
    _purges: PurgeQueue
    _ingestion: Ingestion
    _retriever: AsyncRetriever

    async def page(
        self, scope: Scope, limit: int, cursor: str | None, where: DocFilter | None = None
    ) -> DocumentList:
        """Return one page of the documents that pass `where`, in the order of doc_id."""
        self._retriever.require()
        return await self._retriever.run(
            self._retriever.catalog.page, limit, cursor, where, scope=scope
        )

    async def get(self, scope: Scope, doc_id: str) -> Document:
        """Return one document with its text, and what is not in that; raises NotFound."""
        self._retriever.require()
        doc_id = await self._name(scope, doc_id)
        found = await self._retriever.run(self._retriever.catalog.get, doc_id, scope=scope)
        if found is None:
            raise no_document(doc_id)
        key = scope.tenant, scope.collection, doc_id
        return replace(found, warnings=await asyncio.to_thread(self._jobs.warnings, *key))

    async def chunks(self, scope: Scope, doc_id: str) -> list[Chunk]:
        return await self._retriever.run(self._retriever.catalog.chunks_of, doc_id, scope=scope)

    async def set_pinned(self, scope: Scope, doc_id: str, pinned: bool) -> Document:
        """Pin or unpin a document: the KV of a pinned one is computed again if a tier evicts it."""
        self._retriever.require()
        set_pinned = self._retriever.catalog.set_pinned
        doc_id = await self._name(scope, doc_id)
        if not await self._retriever.change(set_pinned, [doc_id], pinned, scope=scope):
            await self._check_pen(scope, [doc_id])
            raise no_document(doc_id)
        self._ingestion.check_pins()
        return _without_text(await self.get(scope, doc_id))

    async def collections(self, principal: Principal) -> list[Collection]:
        """Return the collections that hold what the sender may read, with the sizes of that."""
        self._retriever.require()
        catalog = self._retriever.catalog
        return await self._retriever.run(catalog.collections, principal.tenant, principal.view)

    async def of_source(self, principal: Principal, source: str) -> list[SourceDocument]:
        """Return the documents that came from a source, of those that the sender may change."""
        self._retriever.require()
        rows = await asyncio.to_thread(self._jobs.of_source, principal.tenant, source)
        found = []
        for collection, group in groupby(rows, key=lambda row: row[0]):
            sent = {doc_id: digest for _, doc_id, digest in group}
            scope = document_scope(principal, collection)
            names = self._retriever.catalog.readers_of
            readers = await self._retriever.run(names, list(sent), scope=scope)
            kept = await self._retriever.run(self._retriever.catalog.kept, list(sent), scope=scope)
            found += [
                SourceDocument(collection=collection, doc_id=name, sha256=sent[name])
                for name in sent
                if name in readers and scope.view.shows(readers[name]) and name not in kept
            ]
        return found

    async def rename(self, scope: Scope, doc_id: str, name: str) -> Document:
        """Give a document another id: its chunks and their KV stay as they are."""
        self._retriever.require()
        doc_id = await self._name(scope, doc_id)
        async with self._purges.catalog_lock:
            await self.get(scope, doc_id)
            await self._check_pen(scope, [doc_id])
            rename = self._retriever.catalog.rename
            if not await self._retriever.change(rename, doc_id, name, scope=scope):
                raise Conflict(f"new_id: there is a document {name!r}: delete it, or replace it")
            await asyncio.to_thread(self._jobs.rename, scope, doc_id, name)
        return _without_text(await self.get(scope, name))

    async def delete(self, scope: Scope, doc_id: str) -> Receipt:
        """Remove a document's text, its vectors, and its KV in every tier; raises NotFound."""
        self._retriever.require()
        doc_id = await self._name(scope, doc_id)
        async with self._purges.catalog_lock:
            await self._check_pen(scope, [doc_id])
            waiting = await asyncio.to_thread(self._jobs.cancel_documents, scope, [doc_id])
            revision = self._retriever.catalog.revision
            if not waiting and await self._retriever.run(revision, doc_id, scope=scope) is None:
                raise no_document(doc_id)
            receipt_id = await self._remove(scope, [doc_id], waiting)
        return await self._complete(scope, receipt_id)

    async def delete_matching(
        self, scope: Scope, doc_ids: Sequence[str] | None, where: DocFilter | None
    ) -> Receipt:
        """Remove these documents, or those that pass `where`, or the whole collection, as `delete`
        does. Ids that are not there are ignored, and so is what is not named and is not the
        sender's to change."""
        self._retriever.require()
        if doc_ids is not None:
            doc_ids = sorted({name for doc_id in doc_ids for name in (doc_id, composed(doc_id))})
        async with self._purges.catalog_lock:
            await self._check_pen(scope, doc_ids or [])
            if where is None:
                waiting = await asyncio.to_thread(self._jobs.cancel_documents, scope, doc_ids)
                named = None if doc_ids is None else DocFilter(doc_ids=tuple(doc_ids))
                found = {*waiting, *await self._matching(scope, named)}
            else:
                waiting, found = {}, set(await self._matching(scope, where))
            receipt_id = await self._remove(scope, sorted(found), waiting)
        return await self._complete(scope, receipt_id)

    async def _check_pen(self, scope: Scope, doc_ids: Sequence[str]) -> None:
        """Raise NotAWriter if the sender may read one of these documents and not change it."""
        catalog = self._retriever.catalog
        if kept := await self._retriever.run(catalog.kept, doc_ids, scope=scope):
            raise NotAWriter(
                f"doc_id: you may read the document {kept[0]!r} and not change it: ask one of its "
                "writers",
                field="doc_id",
            )

    async def _name(self, scope: Scope, doc_id: str) -> str:
        """Return the name under which a document is stored: as it is sent, as an earlier release
        stored it, else in the form of all new names."""
        if (name := composed(doc_id)) == doc_id:
            return doc_id
        there = await self._retriever.run(self._retriever.catalog.revision, doc_id, scope=scope)
        return name if there is None else doc_id

    async def receipt(self, principal: Principal, receipt_id: str) -> Receipt:
        """Return the receipt of a deletion as it is now; raises NotFound, also if it names what the
        sender may not read."""
        found = await asyncio.to_thread(self._deletions.receipt, receipt_id, principal.tenant)
        if found is None or not all(map(principal.view.shows, found[1])):
            raise NotFound(
                f"receipt_id: there is no receipt {receipt_id!r}; use what the deletion answered",
                field="receipt_id",
            )
        return _told(found[0], principal.view)

    async def _matching(self, scope: Scope, where: DocFilter | None) -> list[str]:
        """Return the documents that pass `where` and may be changed."""
        out: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._retriever.run(
                self._retriever.catalog.page, PAGE_DOCUMENTS, cursor, where, scope=scope
            )
            changes = scope.pen.changes
            out += [d.doc_id for d in page.documents if changes(joined_writers(d.writers))]
            if (cursor := page.next_cursor) is None:
                return out

    async def _remove(
        self, scope: Scope, doc_ids: Sequence[str], waiting: Mapping[str, str]
    ) -> str:
        """Remove text and vectors, and leave the KV to pending purges; returns the receipt's id."""
        stored = await self._retriever.run(self._retriever.catalog.readers_of, doc_ids, scope=scope)
        readers = {*waiting.values(), *filter(scope.view.shows, stored.values())}
        receipt_id = await self._purges.open_receipt(scope, doc_ids, readers)
        await self._retriever.change(self._retriever.retriever.delete, doc_ids, scope=scope)
        return receipt_id

    async def _complete(self, scope: Scope, receipt_id: str) -> Receipt:
        """Purge what can be purged now; the rest stays pending, and the receipt says so."""
        await self._ingestion.refresh_gauges()
        await self._retriever.save()
        with contextlib.suppress(KvstitchError):  # the precompute loop tries again
            await self._purges.run_due(receipt_id, begin_within_s=PURGE_S)
        self._ingestion.wake_precompute()
        await asyncio.to_thread(self._deletions.database.scrub)
        found = await asyncio.to_thread(self._deletions.receipt, receipt_id, scope.tenant)
        assert found is not None
        return _told(found[0], scope.view)


def _without_text(document: Document) -> Document:
    return replace(document, text=None, marks=None, warnings=None)


def _told(receipt: Receipt, view: View) -> Receipt:
    """Leave out how many copies went: fewer do where others have the same text."""
    return receipt if view.groups is None else replace(receipt, kv={})


def no_document(doc_id: str) -> NotFound:
    return NotFound(
        f"doc_id: there is no document {doc_id!r}; GET /admin/documents lists them", field="doc_id"
    )
