"""Functions that run an engine or a single prompt, for callers outside the worker.

They are part of `service.worker.api`, from where they should be imported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from kvstore import EncodedChunk, SsdTier, TieredStore
from service.worker.engine.engine import Engine
from service.worker.forward.chunk_prefill import ChunkPrefill, ScratchKV
from service.worker.forward.kv_placement import KVPlacer, PromptKV
from service.worker.forward.prefill import Capture, Progress, PromptLoop, prefill
from service.worker.forward.sparse_kv import TokenSource, WholeChunk
from service.worker.forward.sparse_loop import BlockSets, SparseLayerLoop
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.layout import PromptLayout
from service.worker.loading.loader import Loader
from service.worker.methods.bases.dense import DenseMethod
from service.worker.methods.bases.eviction import EvictionMethod
from service.worker.methods.bases.sparse import SketchedPrompt, SparseMethod
from service.worker.methods.bases.two_pass import TwoPassMethod
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.methods.layer_view import CachedSegment, PrefillResult
from service.worker.methods.sparse.blocks import BLOCK, BlockGrid
from service.worker.methods.sparse.selection import SketchedDocument
from service.worker.methods.sparse.sketch import Sketch, SketchBuilder
from service.worker.model.addressing import Address, Addressing
from service.worker.model.decoder import DecoderModel
from service.worker.model.model_facts import ModelFacts
from service.worker.sequences.earlier_prompts.prompt_store import PromptStore
from service.worker.steps import Steps, run


@contextmanager
def open_engine(
    decoder: DecoderModel,
    store: TieredStore,
    *,
    pool_tokens: int,
    codec: str = "raw",
    fingerprint: str = "local",
    facts: ModelFacts | None = None,
    planner: bool = True,
    sketches: bool = False,
    prefix_cache: bool = False,
    prompts_dir: str = "",
    prompts_bytes: int = 4 << 30,
    draft_tokens: int = 0,
    max_running: int = 32,
    max_waiting: int = 256,
    loader_threads: int = 4,
    on_load: Callable[[], None] = lambda: None,
) -> Iterator[Engine]:
    """An engine on an open store; its loader runs until the context is left.

    Args:
        decoder: the model.
        store: where chunks are read from and written to.
        pool_tokens: size of the KV pool.
        codec: that chunks are stored with.
        fingerprint: tells the models in the store apart.
        facts: sizes and calibration of the model; its sizes alone by default.
        planner: whether to compute documents that would take longer to load.
        sketches: whether a sketch is computed with every chunk, for SamKV.
        prefix_cache: whether answered prompts are kept for requests that begin with them.
        prompts_dir: where kept prompts are stored that are asked more than once; empty: nowhere.
        prompts_bytes: bound of these.
        draft_tokens: most answer tokens that are drafted from the prompt in a decode step.
        max_running: sequences decoded together.
        max_waiting: requests in the queue.
        loader_threads: that read from the store.
        on_load: called on a loader's thread when a read is done.
    """
    addressing = Addressing(decoder, fingerprint=fingerprint, codec=codec)
    loader = Loader(store, threads=loader_threads, on_ready=on_load)
    with ExitStack() as opened:
        prompts = None
        if prompts_dir:
            tier = SsdTier(prompts_dir, prompts_bytes, name="prompts")
            prompts = opened.enter_context(PromptStore(tier, addressing, on_ready=on_load))
        loader.start()
        opened.callback(loader.close)
        yield Engine(
            decoder,
            addressing,
            store,
            loader,
            pool_tokens=pool_tokens,
            facts=facts,
            max_running=max_running,
            max_waiting=max_waiting,
            planner=planner,
            sketches=sketches,
            prefix_cache=prefix_cache,
            prompts=prompts,
            draft_tokens=draft_tokens,
        )


def precompute_now(engine: Engine, address: Address) -> None:
    """Compute and store one chunk at once, before anything else the engine has to do."""
    queue = engine.precompute_queue
    queue.add(address, id="now")
    while queue.pending:
        if queue.idle:
            time.sleep(0.001)  # everything is computed, and being written
        else:
            queue.advance()
        queue.finished()


def kv_pool(decoder: DecoderModel, tokens: int) -> KVPool:
    """A KV pool for `tokens` tokens of this model."""
    return KVPool(
        decoder.layers,
        decoder.own_kv_heads,
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
    """Full prefill of bare token ids, without stored KV.

    Args:
        decoder: the model.
        ids: the prompt.
        kv: where its KV goes; by default every layer's is dropped after use.
        capture: sees every layer.
    """
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
    """Prefill of one prompt by a dense or two-pass method.

    Args:
        decoder: the model.
        layout: the prompt.
        cached: stored KV of its segments; None for those that are computed.
        method: decides which rows are recomputed.
        kv: where the prompt's KV goes.
        eviction: observes queries; evicting is left to the caller.
        capture: sees every layer.
    """
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
    """Prefill of one prompt by a sparse method, with whole chunks at hand.

    Args:
        decoder: the model.
        facts: its sizes and calibration.
        layout: the prompt.
        cached: stored KV of S and every document; None for empty ones.
        method: decides which tokens are kept and recomputed.
        kv: where the kept KV goes.
        sketches: of every document; None for empty ones.
        block: tokens of a block, as in the sketches.
    """
    documents, ends = [], list[TokenSource]()
    for segment, chunk, sketch in zip(layout.documents, cached[1:], sketches, strict=True):
        if chunk is not None and sketch is not None:
            grid = BlockGrid(segment.tokens, block)
            documents.append(SketchedDocument(segment.start, grid, sketch))
            ends.append(WholeChunk(chunk))
    prompt = SketchedPrompt(layout, documents, facts)
    loop = SparseLayerLoop(decoder, prompt, cached[0], ends, kv, fetch=_nothing_to_read)
    return run(method.run(loop))


def attention_scores(
    decoder: DecoderModel,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: TwoPassMethod,
    kv: PromptKV,
) -> Tensor:
    """The question pass of a two-pass method alone: the scores `[layers that count, n]` fp32."""
    with KVPlacer(decoder, layout, cached, method.key_positions(layout), kv) as placer:
        loop = PromptLoop(
            decoder=decoder,
            layout=layout,
            cached=cached,
            kv=kv,
            placer=placer,
            eviction=None,
            capture=None,
            on_pass=None,
            arrival=None,
            progress=Progress(),
        )
        return run(method.attention_scores(loop))


def compute_chunk(chunks: ChunkPrefill, address: Address) -> EncodedChunk:
    """One chunk, computed as precompute does it; nothing is stored."""
    return run(chunks.compute(address)).chunk


def compute_sketch(
    decoder: DecoderModel, ids: Sequence[int], *, prefix: Sequence[int] = (), block: int = BLOCK
) -> Sketch:
    """The sketch of a document, in fp32.

    Args:
        decoder: the model.
        ids: the document.
        prefix: token ids that it is precomputed behind.
        block: tokens of a block.
    """
    builder = SketchBuilder(len(prefix), block)
    prefill_ids(decoder, [*prefix, *ids], capture=builder.add)
    return builder.sketch()


def _nothing_to_read(wanted: BlockSets) -> Steps[list[TokenSource | None]]:
    yield from ()
    return [None for _ in wanted]
