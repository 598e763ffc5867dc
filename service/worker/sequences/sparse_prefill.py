"""Runs a sparse method over one request's prompt. A document whose sketch or blocks are missing
or damaged is computed by itself, as precompute does it, stored again, and used like the others,
so the answer is the same as without the fault."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from kvstore import BlocksOutcome
from service.worker.forward.sparse_kv import TokenSource, WholeChunk
from service.worker.forward.sparse_loop import BlockSets, SparseLayerLoop
from service.worker.kv.pool import SequenceKV
from service.worker.loading.loader import Loader
from service.worker.loading.missing_chunks import MissingChunks
from service.worker.loading.segment_load import PartialLoad, SegmentLoad
from service.worker.methods.bases.sparse import SketchedPrompt
from service.worker.methods.layer_view import CachedSegment, PrefillResult
from service.worker.methods.sparse.blocks import BlockGrid
from service.worker.methods.sparse.selection import SketchedDocument
from service.worker.methods.sparse.sketch import Sketch
from service.worker.model.decoder import DecoderModel
from service.worker.model.model_facts import ModelFacts
from service.worker.sequences.sequence import EngineSequence
from service.worker.steps import Steps


@dataclass(frozen=True)
class SparsePrefill:
    """Prefills prompts with sparse methods."""

    decoder: DecoderModel
    model: ModelFacts
    loader: Loader
    missing: MissingChunks

    def steps(self, sequence: EngineSequence, kv: SequenceKV) -> Steps[PrefillResult]:
        """Run the sequence's method."""
        layout = sequence.layout
        assert layout is not None
        system = yield from self._system(sequence)
        documents = [load for load in sequence.loads.segments[1:] if isinstance(load, PartialLoad)]
        segments = [segment for segment in layout.documents if segment.tokens]
        sketched, ends = [], []
        for segment, document in zip(segments, documents, strict=True):
            sketch, source = yield from self._ends(sequence, document)
            grid = BlockGrid(segment.tokens)
            sketched.append(SketchedDocument(segment.start, grid, sketch))
            ends.append(source)
        trace = sequence.prefill.trace
        loop = SparseLayerLoop(
            self.decoder,
            SketchedPrompt(layout, sketched, self.model),
            system,
            ends,
            kv,
            fetch=lambda wanted: self._fetch(sequence, documents, wanted),
            on_plan=None if trace is None else trace.planned,
        )
        return (yield from sequence.fusion.run(loop))

    def _system(self, sequence: EngineSequence) -> Steps[CachedSegment | None]:
        load = sequence.loads.segments[0]
        if not isinstance(load, SegmentLoad):
            return None
        if load.usable:
            assert load.stream is not None
            return load.stream.chunk
        return (yield from self.missing.compute(sequence.loads, load)).chunk

    def _ends(
        self, sequence: EngineSequence, document: PartialLoad
    ) -> Steps[tuple[Sketch, TokenSource]]:
        if document.missed:
            yield from self.missing.read_again(document)
        ends = document.ends.result()
        if ends.usable and ends.sketch is not None:
            assert ends.blocks is not None and ends.blocks.blocks is not None
            return ends.sketch.to(self.decoder.device), ends.blocks.blocks
        computed = yield from self.missing.compute(sequence.loads, document, sketch=True)
        assert computed.sketch is not None, "it was asked for"
        return computed.sketch, WholeChunk(computed.chunk)

    def _fetch(
        self, sequence: EngineSequence, documents: list[PartialLoad], wanted: BlockSets
    ) -> Steps[list[TokenSource | None]]:
        """Read middle blocks of every document."""
        reads: list[Future[BlocksOutcome] | None] = [
            self.loader.load_blocks(document.address, blocks)
            if any(blocks.values()) and not document.computed_alone
            else None
            for document, blocks in zip(documents, wanted, strict=True)
        ]
        sources: list[TokenSource | None] = []
        for document, read in zip(documents, reads, strict=True):
            if read is None:
                sources.append(None)
                continue
            while not read.done():
                yield read
            outcome = document.middle = read.result()
            if outcome.blocks is not None and not outcome.missing:
                sources.append(outcome.blocks)
            else:
                computed = yield from self.missing.compute(sequence.loads, document)
                sources.append(WholeChunk(computed.chunk))
        return sources
