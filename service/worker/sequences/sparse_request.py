"""One request by a sparse method: from what its loads found to the steps that answer it.

A document whose sketch or blocks are missing or bad is computed by itself, exactly as precompute
would have, stored again, and used like the others: the answer is the one without the fault.
Knows the loader, no socket and no scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from kvstore import ReadOutcome
from kvstore.format.tensor_layout import tensor_layout
from service.worker.core.layer_view import CachedSegment
from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.core.steps import Steps
from service.worker.forward.chunk_prefill import ComputedChunk, compute_chunk
from service.worker.forward.kv_placement import PromptKV
from service.worker.forward.prefill import PrefillResult
from service.worker.forward.sparse.kept_tokens import TokenSource, WholeChunk
from service.worker.forward.sparse.prefill import BlockSets, SparsePrompt, sparse_prefill
from service.worker.loading.loader import EndsOutcome, Loader
from service.worker.methods.fusion.samkv import Method as SamKV
from service.worker.methods.sparse.blocks import BlockGrid
from service.worker.methods.sparse.plan import SparsePlan
from service.worker.methods.sparse.selection import SketchedDocument
from service.worker.methods.sparse.sketch import Sketch
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address


@dataclass
class SegmentRead:
    """Where the KV of one segment came from; "cold": it was computed."""

    tier: str = "cold"
    nbytes: int = 0
    stored_bytes: int = 0
    seconds: float = 0.0
    problems: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class SparseDocument(SegmentRead):
    """One document of a sparse request; the reads that follow the first add to the figures."""

    segment: int = field(kw_only=True)
    address: Address = field(kw_only=True)
    found: EndsOutcome = field(kw_only=True)

    @classmethod
    def of(cls, segment: int, address: Address, found: EndsOutcome) -> SparseDocument:
        return cls(
            found.tier or "cold" if found.usable else "cold",
            found.nbytes,
            tensor_layout(address.spec)[-1].end,
            found.seconds,
            list(found.problems),
            segment=segment,
            address=address,
            found=found,
        )


@dataclass
class SparseRequest:
    """The non-empty documents of one prompt, in order; `steps` runs it."""

    adapter: DecoderAdapter
    model: ModelFacts
    loader: Loader
    keep: Callable[[Address, ComputedChunk], None]
    layout: PromptLayout
    method: SamKV
    system: tuple[Address, ReadOutcome] | None
    documents: list[SparseDocument]
    watch: Callable[[SparsePlan], None] | None = None

    @classmethod
    def of(
        cls,
        adapter: DecoderAdapter,
        model: ModelFacts,
        loader: Loader,
        keep: Callable[[Address, ComputedChunk], None],
        layout: PromptLayout,
        method: SamKV,
        addresses: Sequence[Address | None],
        outcomes: Sequence[ReadOutcome | EndsOutcome | None],
    ) -> SparseRequest:
        """From addresses and first reads per segment, S first; None for an empty one.

        keep: stores a chunk that had to be computed.
        """
        system, documents = None, []
        for i, (address, outcome) in enumerate(zip(addresses, outcomes, strict=True)):
            if address is not None and isinstance(outcome, ReadOutcome):
                system = (address, outcome)
            elif address is not None and isinstance(outcome, EndsOutcome):
                documents.append(SparseDocument.of(i, address, outcome))
        return cls(adapter, model, loader, keep, layout, method, system, documents)

    def steps(self, kv: PromptKV) -> Steps[PrefillResult]:
        """Yields None after every layer and futures that it waits for."""
        system = yield from self._system()
        segments = [segment for segment in self.layout.documents if segment.tokens]
        sketched, ends = [], []
        for segment, document in zip(segments, self.documents, strict=True):
            sketch, source = yield from self._ends(document)
            grid = BlockGrid(segment.tokens)
            sketched.append(SketchedDocument(segment.start, grid, sketch))
            ends.append(source)
        prompt = SparsePrompt(self.layout, system, sketched, ends)
        return (
            yield from sparse_prefill(
                self.adapter, self.model, prompt, self.method, kv, self._fetch, self.watch
            )
        )

    def _system(self) -> Steps[CachedSegment | None]:
        if self.system is None:
            return None
        address, outcome = self.system
        if outcome.chunk is not None:
            return outcome.chunk
        return (yield from self._compute(address)).chunk

    def _ends(self, document: SparseDocument) -> Steps[tuple[Sketch, TokenSource]]:
        found = document.found
        if found.sketch is not None and found.read is not None and found.usable:
            assert found.read.blocks is not None
            return found.sketch.to(self.adapter.device), found.read.blocks
        computed = yield from self._compute(document.address)
        return computed.sketch, WholeChunk(computed.chunk)

    def _fetch(self, wanted: BlockSets) -> Steps[list[TokenSource | None]]:
        """Middle blocks of every document; those that were computed just now have them all."""
        reads: list[Future[Any] | None] = [
            self.loader.load_blocks(document.address, blocks)
            if any(blocks.values()) and document.tier != "cold"
            else None
            for document, blocks in zip(self.documents, wanted, strict=True)
        ]
        sources: list[TokenSource | None] = []
        for document, read in zip(self.documents, reads, strict=True):
            if read is None:
                sources.append(None)
                continue
            while not read.done():
                yield read
            outcome = read.result()
            document.nbytes += outcome.nbytes
            document.seconds += outcome.seconds
            document.problems += outcome.problems
            if outcome.blocks is not None and not outcome.missing:
                sources.append(outcome.blocks)
                continue
            document.tier = "cold"
            sources.append(WholeChunk((yield from self._compute(document.address)).chunk))
        return sources

    def _compute(self, address: Address) -> Steps[ComputedChunk]:
        computed = yield from compute_chunk(self.adapter, address)
        self.keep(address, computed)
        return computed
