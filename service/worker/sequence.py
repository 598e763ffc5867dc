"""One request on its way through the engine: state only, no policy.

loading ──► ready ──► prefilling ──► running ──► finished
(store)     (queue)   (layer loop)   (decode)    (Done or Failed was sent)
"""

from __future__ import annotations

import time
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field

from kvstore import EncodedChunk, ReadOutcome
from service.records import Report, SegmentReport
from service.worker.addressing import Address
from service.worker.eviction.base import EvictionMethod
from service.worker.fusion.base import FusionMethod
from service.worker.kv_pool import SequenceKV
from service.worker.layout import PromptLayout
from service.worker.prefill import PrefillResult
from service.worker.request import Request
from service.worker.sampler import Sampler


@dataclass
class Sequence:
    """Addresses and loads are per segment: S first, then the documents; None for an empty one."""

    request: Request
    fusion: FusionMethod
    eviction: EvictionMethod | None
    addresses: list[Address | None]
    loads: list[Future[ReadOutcome] | None]
    max_tokens: int
    sampler: Sampler
    warnings: list[str] = field(default_factory=list)

    abort_reason: str | None = None
    layout: PromptLayout | None = None
    kv: SequenceKV | None = None
    steps: Generator[None, None, PrefillResult] | None = None
    rows_per_layer: list[int] = field(default_factory=list)
    rows_by_segment: list[int] = field(default_factory=list)
    kept_per_layer: list[float] = field(default_factory=list)
    coverage: float = 1.0
    flops: float = 0.0
    full_prefill_flops: float = 0.0
    tokens: list[int] = field(default_factory=list)
    decode_steps: int = 0

    submitted_at: float = field(default_factory=time.monotonic)
    stages: dict[str, float] = field(default_factory=dict)
    stage_started_at: float = field(default_factory=time.monotonic)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def prompt_tokens(self) -> int:
        request = self.request
        documents = sum(len(d.ids) for d in request.documents)
        return len(request.system) + documents + len(request.question)

    @property
    def reserved_tokens(self) -> int:
        """Pool tokens that cover the sequence to its end: it can never run out midway."""
        return self.prompt_tokens + self.max_tokens

    @property
    def loaded(self) -> bool:
        return all(load is None or load.done() for load in self.loads)

    @property
    def position(self) -> int:
        """RoPE position of the last generated token; never the cache's length (METHODS §0)."""
        assert self.layout is not None
        return self.layout.tokens + len(self.tokens) - 1

    def prefilled(self, result: PrefillResult) -> None:
        """The prompt is in place: remember what it took."""
        assert self.layout is not None
        self.rows_per_layer = result.rows_per_layer
        self.rows_by_segment = [
            int(((result.rows >= s.start) & (result.rows < s.end)).sum())
            for s in self.layout.segments
        ]
        self.flops = result.flops
        # A method that started over left a shorter prompt.
        self.layout = result.layout

    def close_stage(self, name: str) -> None:
        """The time since the last close belongs to stage `name`."""
        now = time.monotonic()
        self.stages[name] = self.stages.get(name, 0.0) + now - self.stage_started_at
        self.stage_started_at = now

    def outcome(self, segment: int) -> ReadOutcome | None:
        load = self.loads[segment]
        return load.result() if load is not None and load.done() else None

    def chunk(self, segment: int) -> EncodedChunk | None:
        outcome = self.outcome(segment)
        return None if outcome is None else outcome.chunk

    def report(self) -> Report:
        """What happened, whether or not the prompt was ever run."""
        segments = [self._segment_report(i) for i in range(len(self.addresses))]
        total, ran = self.prompt_tokens, bool(self.rows_by_segment)
        recomputed = sum(s.rows_recomputed for s in segments) + len(self.request.question)
        return Report(
            prompt_tokens=total,
            completion_tokens=len(self.tokens),
            cached_tokens=total - recomputed if ran else 0,
            recomputed_tokens=recomputed if ran else 0,
            system=segments[0],
            documents=segments[1:],
            rows_per_layer=self.rows_per_layer,
            kept_per_layer=self.kept_per_layer,
            coverage=self.coverage,
            flops=self.flops,
            full_prefill_flops=self.full_prefill_flops,
            stages=self.stages,
            decode_steps=self.decode_steps,
            seed=self.sampler.seed if self.request.sampling.temperature > 0 else None,
            warnings=self.warnings,
        )

    def _segment_report(self, segment: int) -> SegmentReport:
        outcome = self.outcome(segment)
        ids = self.request.system if segment == 0 else self.request.documents[segment - 1].ids
        hit = outcome if outcome is not None and outcome.chunk is not None else None
        return SegmentReport(
            chunk_id=-1 if segment == 0 else self.request.documents[segment - 1].chunk_id,
            tokens=len(ids),
            tier=hit.tier or "cold" if hit else "cold",
            bytes=hit.nbytes if hit else 0,
            load_s=outcome.seconds if outcome else 0.0,
            rows_recomputed=self.rows_by_segment[segment] if self.rows_by_segment else 0,
            problems=[f"{tier}: {kind}" for tier, kind in outcome.problems] if outcome else [],
        )
