"""An engine around a tiny random model and a real store, driven to the end of its requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kvstitch.kvstore import MemoryTier, SsdTier, TieredStore
from kvstitch.kvstore.tiers.base import Tier
from kvstitch.service.messages.replies import Done, Failed, Reply, TokenItem, TokenLogprobs
from kvstitch.service.messages.reports import Report
from kvstitch.service.messages.requests import (
    ChunkTokens,
    ColdMode,
    Generate,
    HistoryMode,
    Method,
    Precompute,
    Sampling,
)
from kvstitch.service.worker.engine.engine import Engine, EngineOptions
from kvstitch.service.worker.gate.correctness_gate import GateSettings
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.model.addressing import Addressing
from kvstitch.service.worker.sampling.grammar import Grammars
from kvstitch.service.worker.sequences.hand_over import HandOver
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny

DOCUMENTS = [ChunkTokens(1, D1), ChunkTokens(2, D2), ChunkTokens(3, D3)]
PIE = Method("pie")
A3 = Method("a3")
VANILLA = Method("vanilla")


class Rig:
    """Submits requests to an engine, runs it, and finds their events."""

    def __init__(self, engine: Engine, store: TieredStore) -> None:
        self.engine = engine
        self.store = store
        self.events: list[Reply] = []
        self._count = 0

    def submit(
        self,
        fusion: Method = PIE,
        documents: Sequence[ChunkTokens] = DOCUMENTS,
        *,
        question: Sequence[int] = Q,
        eviction: Method | None = None,
        max_tokens: int = 6,
        temperature: float = 0.0,
        seed: int | None = None,
        prefix_mode: str = "none",
        tenant: str = "",
        token_fates: bool = False,
        logprobs: int | None = None,
        cold: ColdMode = "in_context",
        prefix_cache: bool = True,
        lora: str = "",
        history: int = 0,
        history_mode: HistoryMode = "compute",
        any_method: bool = False,
        exact_below: float = 0.0,
    ) -> str:
        self._count += 1
        sampling = Sampling(max_tokens, temperature, seed=seed, logprobs=logprobs)
        name = f"r{self._count}"
        request = Generate(
            name,
            S,
            documents,
            question,
            fusion,
            eviction,
            sampling,
            prefix_mode,
            tenant,
            token_fates=token_fates,
            cold=cold,
            prefix_cache=prefix_cache,
            lora=lora,
            history=history,
            history_mode=history_mode,
            any_method=any_method,
            exact_below=exact_below,
        )
        self.engine.submit(request)
        return name

    def run(self) -> None:
        """Steps until nothing is left to do, write-backs included."""
        while not self.engine.scheduler.idle or self.engine.precompute_queue.pending:
            self.events.extend(self.engine.step())
            if self.engine.idle:
                time.sleep(1e-4)  # only the loader's threads have work now

    def answer(self, *args: object, **kwargs: object) -> tuple[list[int], Report]:
        """Tokens and report of one request run alone."""
        name = self.submit(*args, **kwargs)  # type: ignore[arg-type]
        self.run()
        return self.tokens(name), self.done(name).report

    def tokens(self, name: str) -> list[int]:
        return [e.token for e in self.events if isinstance(e, TokenItem) and e.id == name]

    def logprobs(self, name: str) -> list[TokenLogprobs | None]:
        return [e.logprobs for e in self.events if isinstance(e, TokenItem) and e.id == name]

    def done(self, name: str) -> Done:
        ends = [e for e in self.events if not isinstance(e, TokenItem) and e.id == name]
        assert len(ends) == 1, f"{name} must end exactly once, not {ends}"
        assert isinstance(ends[0], Done), ends[0]
        return ends[0]

    def failed(self, name: str) -> Failed:
        found = [e for e in self.events if isinstance(e, Failed) and e.id == name]
        assert len(found) == 1
        return found[0]

    def precompute(
        self,
        documents: Sequence[ChunkTokens] = DOCUMENTS,
        prefix_mode: str = "none",
        *,
        loras: Sequence[str] = ("",),
    ) -> None:
        addresses = [
            address
            for lora in loras
            for address in self.engine.admission.addresses(
                Precompute("", S, [*documents], prefix_mode, lora=lora)
            )
        ]
        for address in addresses:
            if address is not None:
                self.engine.precompute_queue.add(address, id="ingest")
        self.run()
        assert self.store.flush(60)  # into tiers that are written behind


@contextmanager
def rig(
    model: Tiny,
    *,
    tiers: Sequence[Tier] | None = None,
    codec: str = "raw",
    fingerprint: str = "tiny",
    pool_tokens: int = 400,
    max_running: int = 8,
    max_waiting: int = 32,
    planner: bool = False,
    threads: int = 2,
    sketches: bool = True,
    prefix_cache: bool = False,
    draft_tokens: int = 0,
    checks: GateSettings | None = None,
    decode: bool = True,
    grammars: Grammars | None = None,
    hand_over: HandOver | None = None,
) -> Iterator[Rig]:
    """An engine with a store.

    Args:
        sketches: on by default, so that every method finds what it reads.
        planner: off by default, because on a busy machine the time that reading a tiny file takes
            would decide what is loaded.
    """
    chosen = [MemoryTier(1 << 24)] if tiers is None else list(tiers)
    addressing = Addressing(model.decoder, fingerprint=fingerprint, codec=codec)
    with ExitStack() as opened:
        store = opened.enter_context(TieredStore(chosen))
        loader = Loader(store, threads=threads, decode=decode)
        loader.start()
        engine = Engine(
            model.decoder,
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
                checks=checks,
                hand_over=hand_over,
            ),
            grammars=grammars,
        )
        try:
            yield Rig(engine, store)
        finally:
            loader.close()


def disk(folder: Path, *, name: str = "ssd") -> SsdTier:
    return SsdTier(folder, 1 << 24, name=name)
