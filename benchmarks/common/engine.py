"""An engine on an open store, for benchmarks, and what they do with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from kvstitch.kvstore import TieredStore
from kvstitch.service.worker.engine.engine import Engine, EngineOptions
from kvstitch.service.worker.forward.kv_placement import PromptKV, kv_placer
from kvstitch.service.worker.forward.prefill import Progress, PromptLoop
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.methods.bases.dense import TwoPassMethod
from kvstitch.service.worker.methods.layer_view import CachedSegment
from kvstitch.service.worker.model.addressing import Address, Addressing
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch.service.worker.steps import run


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
    draft_tokens: int = 0,
    max_running: int = 32,
    max_waiting: int = 256,
    loader_threads: int = 4,
    prefill_graphs: bool = True,
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
        draft_tokens: most answer tokens that are drafted from the prompt in a decode step.
        max_running: sequences decoded together.
        max_waiting: requests in the queue.
        loader_threads: that read from the store.
        prefill_graphs: whether layers are recorded and replayed, on a GPU.
        on_load: called on a loader's thread when a read is done.
    """
    addressing = Addressing(decoder, fingerprint=fingerprint, codec=codec)
    loader = Loader(store, threads=loader_threads, on_ready=on_load)
    with ExitStack() as opened:
        loader.start()
        opened.callback(loader.close)
        yield Engine(
            decoder,
            addressing,
            loader,
            EngineOptions(
                pool_tokens=pool_tokens,
                max_running=max_running,
                max_waiting=max_waiting,
                planner=planner,
                sketches=sketches,
                prefix_cache=prefix_cache,
                draft_tokens=draft_tokens,
                prefill_graphs=prefill_graphs,
            ),
            facts=facts,
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


def attention_scores(
    decoder: DecoderModel,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: TwoPassMethod,
    kv: PromptKV,
) -> Tensor:
    """The question pass of a two-pass method alone: the scores `[layers that count, n]` fp32."""
    with kv_placer(decoder, layout, cached, method.key_positions(layout), kv) as placer:
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
