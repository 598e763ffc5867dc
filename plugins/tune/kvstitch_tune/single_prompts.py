"""Runs one prompt, chunk or sketch by itself, without an engine; benchmarks use it, too."""

from __future__ import annotations

from collections.abc import Sequence

from kvstitch_methods.samkv.selection import SketchedDocument, SketchedPrompt
from kvstitch_methods.samkv.sketch import BLOCK, BlockGrid, Sketch, SketchBuilder
from kvstitch_methods.samkv.sparse_loop import BlockSets, SparseLayerLoop, TokenSource, WholeChunk
from kvstitch_methods.samkv.sparse_method import SparseMethod
from kvstore import EncodedChunk
from service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV
from service.worker.forward.kv_placement import PromptKV
from service.worker.forward.prefill import Capture, prefill
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.layout import PromptLayout
from service.worker.methods.bases.dense import DenseMethod
from service.worker.methods.bases.eviction import EvictionMethod
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.methods.layer_view import CachedSegment, PrefillResult
from service.worker.model.addressing import Address
from service.worker.model.decoder import DecoderModel
from service.worker.model.model_facts import ModelFacts
from service.worker.steps import Steps, run


def kv_pool(decoder: DecoderModel, tokens: int) -> KVPool:
    """Return a KV pool for `tokens` tokens of this model."""
    return KVPool(
        decoder.layers,
        decoder.kv_heads,
        decoder.head_dim,
        tokens,
        dtype=decoder.dtype,
        device=decoder.device,
    )


def prefill_ids(
    decoder: DecoderModel,
    ids: Sequence[int],
    *,
    kv: PromptKV | None = None,
    capture: Capture | None = None,
) -> PrefillResult:
    """Full prefill of bare token ids, without stored KV."""
    layout = PromptLayout.of(ids, [], [], uncached=[True], device=decoder.device)
    target = kv or ScratchKV(decoder, layout.tokens)
    return run(prefill(decoder, layout, [None], Vanilla(), target, capture=capture))


def prefill_prompt(
    decoder: DecoderModel,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: DenseMethod,
    kv: SequenceKV,
    *,
    eviction: EvictionMethod | None = None,
    capture: Capture | None = None,
) -> PrefillResult:
    """Prefill of one prompt by a dense or two-pass method."""
    return run(prefill(decoder, layout, cached, method, kv, eviction=eviction, capture=capture))


def prefill_sparse(
    decoder: DecoderModel,
    facts: ModelFacts,
    layout: PromptLayout,
    cached: Sequence[EncodedChunk | None],
    method: SparseMethod,
    kv: SequenceKV,
    *,
    sketches: Sequence[Sketch | None],
    block: int = BLOCK,
) -> PrefillResult:
    """Prefill of one prompt by a sparse method, with whole chunks at hand."""
    documents, ends = [], list[TokenSource]()
    for segment, chunk, sketch in zip(layout.documents, cached[1:], sketches, strict=True):
        if chunk is not None and sketch is not None:
            grid = BlockGrid(segment.tokens, block)
            documents.append(SketchedDocument(segment.start, grid, sketch))
            ends.append(WholeChunk(chunk))
    prompt = SketchedPrompt(layout, documents, facts)
    loop = SparseLayerLoop(decoder, prompt, cached[0], ends, kv, fetch=_nothing_to_read)
    return run(method.passes(loop))


def compute_sketch(
    decoder: DecoderModel, ids: Sequence[int], *, prefix: Sequence[int] = (), block: int = BLOCK
) -> Sketch:
    """Return the sketch of a document, in fp32."""
    builder = SketchBuilder(len(prefix), block)
    prefill_ids(decoder, [*prefix, *ids], capture=builder.add)
    return builder.sketch()


def compute_chunk(chunks: ChunkPrefill, address: Address) -> EncodedChunk:
    """Return one chunk, computed as precompute does it; nothing is stored."""
    return run(chunks.compute(address)).chunk


def _nothing_to_read(wanted: BlockSets) -> Steps[list[TokenSource | None]]:
    yield from ()
    return [None for _ in wanted]
