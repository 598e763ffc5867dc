"""The KV of a document's chunks: which token ids it belongs to, with which prefixes."""

import hashlib
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvstitch.retriever import Scope
from kvstitch.service.gateway.prompts.chunk_prefixes import (
    ChosenPrefix,
    ChunkPrefixes,
    with_prefixes,
)
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.messages.requests import ChunkTokens

NO_CHUNK = -1  # where only copies are to be purged
# Whose prefixes are chosen in one turn of those who change the catalog: a note does not wait for a
# book.
CHOSEN_AT_A_TIME = 256
COPIES_PER_PURGE = 128  # the others of a chunk are further purges
COPIES_PER_CALL = 256  # of which each may have thousands of tokens, in one message to the worker


@dataclass(frozen=True)
class ChunkKV:
    """The KV of one chunk, to be stored or to be purged."""

    tenant: str
    collection: str
    doc_id: str
    chunk_id: int
    ids: list[int]  # its tokens
    # The chunk behind its prefix; in a purge also other chunks that have this one in theirs.
    copies: list[ChunkTokens] = field(default_factory=list)
    # Whether a purge deletes prompts with its text, too, though another chunk has the same text and
    # keeps its KV: other people may read the document now.
    prompts: bool = False

    @property
    def digest(self) -> bytes:
        """What a tenant's chunks with these token ids have in common."""
        # The unnamed tenant has no key, because the first release had none.
        key = hashlib.sha256(self.tenant.encode()).digest() if self.tenant else b""
        return hashlib.blake2b(array("q", self.ids).tobytes(), digest_size=16, key=key).digest()

    def stored_copies(self, *, alone: bool) -> list[ChunkTokens]:
        """Return what is stored of it: its copies, and without a prefix if it has none, or if it is
        also stored `alone`."""
        own = ChunkTokens(self.chunk_id, self.ids)
        return [own, *self.copies] if alone or not self.copies else self.copies


class ChunkKVs:
    """Finds the KV of documents' chunks, and what stands before them (`prefixes`)."""

    def __init__(
        self, retriever: AsyncRetriever, prompts: PromptBuilder, prefixes: ChunkPrefixes
    ) -> None:
        self.retriever = retriever
        self.prompts = prompts
        self.prefixes = prefixes

    @property
    def has_copies(self) -> bool:
        """Whether chunks are stored with prefixes, too."""
        return self.prefixes.kind is not None

    async def stored(self, chunk_ids: Collection[int]) -> set[int]:
        """Return those of these chunks that the catalog has, in any scope."""
        chunks = await self.retriever.run(self.retriever.catalog.chunks, list(chunk_ids))
        return {chunk.chunk_id for chunk in chunks}

    async def of(self, scope: Scope, doc_ids: Sequence[str]) -> list[ChunkKV]:
        """Return all chunks of these documents, without copies."""

        def find() -> list[ChunkKV]:
            segment, chunks_of = self.prompts.segment, self.retriever.catalog.chunks_of
            return [
                ChunkKV(scope.tenant, scope.collection, doc_id, chunk.chunk_id, segment(chunk))
                for doc_id in doc_ids
                for chunk in chunks_of(doc_id, scope=scope)
            ]

        return await self.retriever.run(find)

    async def to_store(
        self, scope: Scope, doc_ids: Sequence[str], max_context: int
    ) -> tuple[list[ChunkKV], list[ChunkKV]]:
        """Choose the prefixes of the chunks of these documents, for a model that takes so many
        tokens. Returns all chunks, each with the copy that is to be stored, if it has a prefix; and
        copies with earlier prefixes, which are to be purged."""
        chunks = await self.of(scope, doc_ids)
        if not self.has_copies:
            return chunks, []
        stored = await self.retriever.run(
            self.retriever.catalog.chunks, [each.chunk_id for each in chunks]
        )
        made: dict[int, ChosenPrefix] = {}
        for first in range(0, len(stored), CHOSEN_AT_A_TIME):
            part = stored[first : first + CHOSEN_AT_A_TIME]
            chosen = await self.retriever.change(self.prefixes.choose, part, scope, max_context)
            made.update((each.chunk.chunk_id, each) for each in chosen)
        present = [each for each in chunks if each.chunk_id in made]
        replaced = [
            replace(each, chunk_id=NO_CHUNK, ids=[], copies=made[each.chunk_id].replaced)
            for each in present
            if made[each.chunk_id].replaced
        ]
        # Behind nothing a copy would be the chunk alone.
        copies = {i: [each.chunk] if each.chunk.behind else [] for i, each in made.items()}
        return [replace(each, copies=copies[each.chunk_id]) for each in present], replaced

    async def note_stored(self, chunk_ids: Collection[int], *, complete: bool) -> None:
        """Note that chunks are stored with their prefixes: prompts take them so from now on. If
        `complete`, they are stored without a prefix, too: nothing of them is missing."""
        if self.has_copies:
            remembered = self.prefixes.remembered
            note = remembered.set_exact if complete else remembered.set_made
            await self.retriever.change(note, chunk_ids)

    async def leave(self, documents: Iterable[tuple[Scope, str]]) -> None:
        """Note that of these documents nothing is computed before a question needs it."""
        if (kind := self.prefixes.kind) is None:
            return
        of_scope: dict[Scope, list[str]] = {}
        for scope, doc_id in documents:
            of_scope.setdefault(scope, []).append(doc_id)
        for scope, doc_ids in of_scope.items():
            leave = self.prefixes.remembered.leave
            await self.retriever.change(leave, doc_ids, kind, scope=scope)

    async def to_purge(
        self,
        scope: Scope,
        doc_ids: Sequence[str],
        *,
        other_readers: Collection[str] = (),
        together: bool = False,
    ) -> list[ChunkKV]:
        """Return all KV that holds text of these documents, or follows from it."""
        chunks = await self.of(scope, doc_ids)
        chunk_ids = [each.chunk_id for each in chunks]
        copies = await self.retriever.run(self.prefixes.copies, chunk_ids, together=together)
        out: list[ChunkKV] = []
        for each in chunks:
            own = copies[each.chunk_id]
            prompts = each.doc_id in other_readers
            out.append(replace(each, copies=own[:COPIES_PER_PURGE], prompts=prompts))
            out += [
                replace(each, ids=[], copies=own[start : start + COPIES_PER_PURGE])
                for start in range(COPIES_PER_PURGE, len(own), COPIES_PER_PURGE)
            ]
        return out

    async def outdated(self, copied: Sequence[ChunkKV]) -> list[ChunkKV]:
        """Return purges of copies whose prefix was deleted while they were computed."""
        chunk_ids = [each.chunk_id for each in copied]
        now = await self.retriever.run(self.prefixes.own_copies, chunk_ids)
        return [
            replace(each, chunk_id=NO_CHUNK, ids=[], copies=with_prefixes(each.copies))
            for each in copied
            if any(copy != now.get(each.chunk_id) for copy in each.copies)
        ]
