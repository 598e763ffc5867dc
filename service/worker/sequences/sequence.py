"""One request on its way through the engine: state only.

loading ──► ready ──► prefilling ──► running ──► finished
(store)     (queue)   (layer loop)   (decode)    (Done or Failed was sent)
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from service.worker.core.layout import PromptLayout
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.request import Request
from service.worker.core.steps import Steps
from service.worker.forward.prefill import Progress
from service.worker.gate.method_trust import GatedMethod
from service.worker.kv.pool import SequenceKV
from service.worker.loading.segment_load import Load
from service.worker.methods.bases.eviction import EvictionMethod
from service.worker.methods.bases.fusion import FusionMethod
from service.worker.model.addressing import Address
from service.worker.sequences.sampler import Sampler
from service.worker.sequences.stage_clock import StageClock
from service.worker.sequences.token_trace import TokenTracer


@dataclass
class Sequence:
    """Addresses and loads are per segment: S first, then the documents; None for an empty one.

    Attributes:
        segments: loads of the segments; empty where the method reads nothing.
        found: done when it is known where the chunks are and their loads have begun.
        decided_at: by time.monotonic, when it was last decided which segments are loaded.
        ended: nothing is read for it any more.
        steps: the prefill under way; waits_for: what it waits for, None for nothing.
        kept_per_layer: KV entries per layer after the eviction, mean over KV heads.
        entries: KV entries per layer and head that the prompt took.
        computed_s: seconds of computing that its prefill took so far.
    """

    request: Request
    fusion: FusionMethod
    eviction: EvictionMethod | None
    addresses: list[Address | None]
    max_tokens: int
    sampler: Sampler
    warnings: list[str] = field(default_factory=list)
    auto_ratio: bool = False
    gated: GatedMethod | None = None
    token_trace: TokenTracer | None = None

    segments: list[Load | None] = field(default_factory=list)
    found: Future[None] | None = None
    decided_at: float = 0.0
    ended: bool = False
    abort_reason: str | None = None
    layout: PromptLayout | None = None
    kv: SequenceKV | None = None
    steps: Steps[PrefillResult] | None = None
    waits_for: Future[Any] | None = None
    progress: Progress | None = None
    computed_s: float = 0.0

    rows_per_layer: list[int] = field(default_factory=list)
    rows_by_segment: list[int] = field(default_factory=list)
    kept_per_layer: list[float] = field(default_factory=list)
    entries: int = 0
    coverage: float = 1.0
    flops: float = 0.0
    full_prefill_flops: float = 0.0
    tokens: list[int] = field(default_factory=list)
    decode_steps: int = 0
    clock: StageClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = StageClock(self.request.arrived)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def prompt_tokens(self) -> int:
        request = self.request
        return len(request.system) + sum(self.document_tokens) + len(request.question)

    @property
    def document_tokens(self) -> list[int]:
        return [len(document.ids) for document in self.request.documents]

    @property
    def loaded(self) -> bool:
        """It can start: what it reads first is there, and of the rest it is known that it comes."""
        if self.found is not None and not self.found.done():
            return False
        return all(load is None or load.pending is None for load in self.segments)

    @property
    def blocked(self) -> bool:
        """Its prefill waits for something that is not there yet."""
        return self.waits_for is not None and not self.waits_for.done()

    @property
    def position(self) -> int:
        """RoPE position of the last generated token; never the cache's length (METHODS §0)."""
        assert self.layout is not None
        return self.layout.tokens + len(self.tokens) - 1

    def load(self, segment: int) -> Load | None:
        return self.segments[segment] if self.segments else None

    def prefilled(self, result: PrefillResult) -> None:
        """The prompt is in place: remember what it took."""
        assert self.layout is not None
        self.rows_per_layer = result.rows_per_layer
        self.rows_by_segment = [
            int(((result.rows >= s.start) & (result.rows < s.end)).sum())
            for s in self.layout.segments
        ]
        self.flops = result.flops
        self.coverage = result.coverage
        self.entries = result.entries_per_head or result.layout.tokens
        if self.token_trace is not None:
            self.token_trace.prefilled(self.layout, result)
        # A method that started over left a shorter prompt.
        self.layout = result.layout

    def wait(self, awaited: Future[Any] | None) -> None:
        """The prefill yielded what it waits for next, None for nothing."""
        self.waits_for = awaited
        if self.blocked:
            self.clock.block()

    def waited(self) -> None:
        """The prefill goes on."""
        self.clock.unblock()
