"""Engines on a store of one tier, prompts of random ids, and time to first token."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.common.engine import open_engine, precompute_now
from kvstitch.kvstore import EncodedChunk, MemoryTier, TieredStore, encode_chunk
from kvstitch.kvstore.tiers.base import Tier
from kvstitch.service.messages.replies import Done, Failed, TokenItem
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import ChunkTokens, Generate, Method, Precompute, Sampling
from kvstitch.service.worker.api import Address, DecoderModel, Engine

QUESTION_TOKENS, SYSTEM_TOKENS = 32, 16
FULL, A3, PIE = "full prefill", "a3 r=0.15", "pie"
SCOUT = "question_scout r=0.15"
METHODS = {
    FULL: Method("vanilla"),
    A3: Method("a3", {"ratio": 0.15}),
    SCOUT: Method("question_scout", {"ratio": 0.15}),
    PIE: Method("pie"),
}


# Shared by all engines, because only one runs at a time.
_WOKEN = threading.Event()


def _wait() -> None:
    """Waits for a load, as the server does, but only briefly: other things may change meanwhile."""
    _WOKEN.wait(0.0005)
    _WOKEN.clear()


class Prompt:
    """A prompt of random token ids, with its documents."""

    def __init__(self, decoder: DecoderModel, tokens: int, chunks: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)

        def ids(count: int) -> list[int]:
            return torch.randint(0, decoder.vocabulary, (count,), generator=random).tolist()

        self.system, self.question = ids(SYSTEM_TOKENS), ids(QUESTION_TOKENS)
        self.documents = [ChunkTokens(i, ids(tokens // chunks)) for i in range(chunks)]

    @property
    def ids(self) -> list[int]:
        """The whole prompt."""
        return self.system + [t for d in self.documents for t in d.ids] + self.question

    def request(self, name: str, method: Method, max_tokens: int = 1, **fields: Any) -> Generate:
        sampling = Sampling(max_tokens=max_tokens)
        return Generate(
            name, self.system, self.documents, self.question, method, sampling=sampling, **fields
        )

    def addresses(self, engine: Engine) -> list[Address]:
        found = engine.admission.addresses(Precompute("", self.system, self.documents))
        return [address for address in found if address is not None]

    def computed(self, decoder: DecoderModel) -> dict[str, EncodedChunk]:
        """The chunks by key, really precomputed."""
        with place(decoder, MemoryTier(1 << 33), len(self.ids)) as engine:
            precompute(engine, self)
            out = {}
            for address in self.addresses(engine):
                found = engine.loader.read(address).chunk
                assert found is not None
                out[address.key] = found
            return out

    def random_chunks(self, engine: Engine, decoder: DecoderModel) -> dict[str, EncodedChunk]:
        """Chunks of random KV by key: as large as real ones, but made quickly."""
        chunks = {}
        for address in self.addresses(engine):
            shape = address.spec.shape
            layers = [torch.randn(shape).to(decoder.dtype) for _ in range(decoder.layers)]
            pin = decoder.device.type == "cuda"
            chunks[address.key] = encode_chunk(address.spec, layers, layers, pin=pin)
        return chunks


class Throttled:
    """Wraps a tier and limits the bytes per second of all its readers together."""

    def __init__(self, tier: Tier, bytes_per_s: float) -> None:
        self._tier = tier
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def read(self, *args: Any, **kwargs: Any) -> EncodedChunk | None:
        chunk = self._tier.read(*args, **kwargs)
        self._pay(chunk.nbytes if chunk is not None else 0)
        return chunk

    def read_ranges(self, *args: Any, **kwargs: Any) -> Any:
        data = self._tier.read_ranges(*args, **kwargs)
        self._pay(data.numel() if data is not None else 0)
        return data

    def _pay(self, nbytes: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._bytes_per_s
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


@contextmanager
def place(
    decoder: DecoderModel,
    tier: Tier,
    pool_tokens: int,
    chunks: Mapping[str, EncodedChunk] | None = None,
    *,
    planner: bool = False,
    codec: str = "raw",
    graphs: bool = False,
) -> Iterator[Engine]:
    """An engine on a store of this tier only, which is filled with `chunks`.

    Args:
        graphs: whether layers are recorded in spare time, on a GPU.
    """
    with TieredStore([tier]) as store:
        for key, chunk in (chunks or {}).items():
            store.put(key, chunk)
        store.flush(60)
        with open_engine(
            decoder,
            store,
            pool_tokens=pool_tokens + 512,
            codec=codec,
            planner=planner,
            prefill_graphs=graphs,
            on_load=_WOKEN.set,
        ) as engine:
            yield engine


def precompute(engine: Engine, prompt: Prompt) -> None:
    """Computes and stores every chunk of the prompt."""
    with torch.inference_mode():
        for address in prompt.addresses(engine):
            precompute_now(engine, address)


@dataclass(frozen=True)
class Answered:
    """Seconds from the request to the first token, and the engine's report."""

    ttft_s: float
    report: Report


def answer(engine: Engine, request: Generate) -> Answered:
    """Answers one request alone.

    Raises:
        RuntimeError: the request failed.
    """
    started = time.perf_counter()
    engine.submit(request)
    first, report = 0.0, None
    while report is None:
        if engine.idle:
            _wait()
        for event in engine.step():
            if isinstance(event, TokenItem) and not first:
                first = time.perf_counter() - started
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Done):
                report = event.report
    return Answered(first, report)


def answer_all(engine: Engine, requests: list[Generate]) -> None:
    """Answers requests that are submitted together.

    Raises:
        RuntimeError: a request failed.
    """
    for request in requests:
        engine.submit(request)
    while not engine.scheduler.idle:
        if engine.idle:
            _wait()
        for event in engine.step():
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
