"""Reads of documents what sparse methods need: sketches and ends first, then middle blocks. A
document whose sketch or blocks are missing or damaged is computed by itself, as precompute does it,
stored again, and used like the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from kvstitch.kvstore import BlocksOutcome
from kvstitch.service.worker.loading.chunk_stream import stored_bytes
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.loading.segment_load import UNCACHED, Load, SegmentLoad, SegmentRead
from kvstitch.service.worker.methods.api import CachedSegment, ChunkExtra, Steps
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.sequences.prefill_launcher import PartialPrompt
from kvstitch_methods.samkv.selection import SketchedDocument, SketchedPrompt
from kvstitch_methods.samkv.sketch import EXTRA, BlockGrid, Sketch
from kvstitch_methods.samkv.sparse_loop import BlockSets, SparseLayerLoop, TokenSource, WholeChunk


@dataclass(frozen=True)
class DocumentEnds:
    """The result of the first read of a document."""

    sketch: Sketch | None
    blocks: BlocksOutcome | None
    seconds: float
    sketch_bytes: int = 0

    @property
    def usable(self) -> bool:
        """Whether sketch and blocks were all read."""
        return (
            self.blocks is not None and self.blocks.blocks is not None and not self.blocks.missing
        )


@dataclass(kw_only=True)
class PartialLoad(Load):
    """The load of a document's sketch, first and last blocks, and later of some middle blocks."""

    extra: ChunkExtra | None = EXTRA
    # the read of the sketch and of the first and last blocks, before the prompt starts
    ends: Future[DocumentEnds]
    middle: BlocksOutcome | None = None  # the result of reading middle blocks; None until then

    @property
    def pending(self) -> Future[DocumentEnds] | None:
        return None if self.ends.done() else self.ends

    @property
    def usable(self) -> bool:
        return self.ends.done() and self.ends.result().usable and not self.computed_alone

    @property
    def missed(self) -> bool:
        return self.ends.done() and not self.ends.result().usable and not self.computed_alone

    def so_far(self) -> SegmentRead:
        if not self.ends.done():
            return SegmentRead()
        ends = self.ends.result()
        blocks = [read for read in (ends.blocks, self.middle) if read is not None]
        tier = ends.blocks.tier if ends.blocks is not None and self.usable else None
        return SegmentRead(
            tier or UNCACHED,
            ends.sketch_bytes + sum(read.nbytes for read in blocks),
            stored_bytes(self.address),
            ends.seconds + (self.middle.seconds if self.middle is not None else 0.0),
            [problem for read in blocks for problem in read.problems],
        )


def start_loads(addresses: Sequence[Address | None], loader: Loader) -> list[Load | None]:
    """Start to read S whole, and of the documents their sketches and ends."""
    system, *documents = addresses
    whole: Load | None = None
    if system is not None:
        whole = SegmentLoad(address=system, stream=loader.join(system, None), plan="")
    parts: list[Load | None] = [
        None if address is None else PartialLoad(address=address, ends=_load_ends(loader, address))
        for address in documents
    ]
    return [whole, *parts]


def _load_ends(loader: Loader, address: Address) -> Future[DocumentEnds]:
    """Read a chunk's sketch and its first and last blocks."""

    def read() -> DocumentEnds:
        started = time.monotonic()
        extra = loader.store.read_extra(address.key, EXTRA.name, EXTRA.version)
        if extra is None:
            return DocumentEnds(None, None, time.monotonic() - started)
        ends = BlockGrid(address.spec.tokens).fixed
        layers = dict.fromkeys(range(address.spec.layers), ends)
        outcome = loader.store.read_blocks(address.key, layers, address.spec)
        decoded = Sketch.of(extra.tensors)
        return DocumentEnds(decoded, outcome, time.monotonic() - started, extra.nbytes)

    return loader.run(read)


def sparse_loop(prompt: PartialPrompt) -> Steps[SparseLayerLoop]:
    """Return the loop over a prompt, once S and the documents' ends are there."""
    loads, layout = prompt.sequence.loads, prompt.layout
    system = yield from _system(prompt)
    documents = [load for load in loads.segments[1:] if isinstance(load, PartialLoad)]
    segments = [segment for segment in layout.documents if segment.tokens]
    sketched, ends = [], []
    for segment, document in zip(segments, documents, strict=True):
        sketch, source = yield from _ends(prompt, document)
        sketched.append(SketchedDocument(segment.start, BlockGrid(segment.tokens), sketch))
        ends.append(source)
    trace = prompt.sequence.prefill.trace
    return SparseLayerLoop(
        prompt.decoder,
        SketchedPrompt(layout, sketched, prompt.facts),
        system,
        ends,
        prompt.kv,
        fetch=lambda wanted: _fetch(prompt, documents, wanted),
        on_plan=None if trace is None else lambda plan: trace.planned(plan.fresh, plan.kept),
    )


def _system(prompt: PartialPrompt) -> Steps[CachedSegment | None]:
    loads = prompt.sequence.loads
    load = loads.segments[0]
    if not isinstance(load, SegmentLoad):
        return None
    if load.usable:
        assert load.stream is not None
        return load.stream.chunk
    return (yield from prompt.missing.compute(loads, load)).chunk


def _ends(prompt: PartialPrompt, document: PartialLoad) -> Steps[tuple[Sketch, TokenSource]]:
    missing, device = prompt.missing, prompt.decoder.device
    if document.missed and (yield from missing.written_meanwhile(document)):
        document.ends = _load_ends(missing.loader, document.address)
        while not document.ends.done():
            yield document.ends
    ends = document.ends.result()
    if ends.usable and ends.sketch is not None:
        assert ends.blocks is not None and ends.blocks.blocks is not None
        return ends.sketch.to(device), ends.blocks.blocks
    computed = yield from missing.compute(prompt.sequence.loads, document, extra=EXTRA)
    # As a later prompt reads it, so that this one selects the same blocks.
    return Sketch.of(computed.extra_tensors).to(device), WholeChunk(computed.chunk)


def _fetch(
    prompt: PartialPrompt, documents: list[PartialLoad], wanted: BlockSets
) -> Steps[list[TokenSource | None]]:
    """Read middle blocks of every document."""
    missing = prompt.missing
    reads = [
        _load_blocks(missing.loader, document.address, blocks)
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
            computed = yield from missing.compute(prompt.sequence.loads, document)
            sources.append(WholeChunk(computed.chunk))
    return sources


def _load_blocks(
    loader: Loader, address: Address, blocks: dict[int, list[int]]
) -> Future[BlocksOutcome]:
    return loader.run(lambda: loader.store.read_blocks(address.key, blocks, address.spec))
