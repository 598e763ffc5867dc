"""One request on its way through the engine: state only, no policy.

loading ──► ready ──► prefilling ──► running ──► finished
(store)     (queue)   (layer loop)   (decode)    (Done or Failed was sent)
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from kvstore import EncodedChunk, ReadOutcome
from service.records import Report, SegmentReport
from service.worker.core.layout import PromptLayout
from service.worker.core.request import Request
from service.worker.core.steps import Steps
from service.worker.engine.sampler import Sampler
from service.worker.forward.prefill import PrefillResult, Progress
from service.worker.gate.method_trust import GatedMethod
from service.worker.kv.pool import SequenceKV
from service.worker.loading.loader import EndsOutcome
from service.worker.loading.segment_load import SegmentLoad
from service.worker.methods.eviction.base import EvictionMethod
from service.worker.methods.fusion.base import FusionMethod
from service.worker.methods.fusion.samkv import Method as SamKV
from service.worker.model.addressing import Address
from service.worker.sequences.sparse_request import SegmentRead, SparseRequest
from service.worker.sequences.token_trace import TokenTracer


@dataclass
class Sequence:
    """Addresses and loads are per segment: S first, then the documents; None for an empty one.

    Whole chunks are `segments`, known from when `found` is done and read while the prompt runs;
    `loads` are what a sparse method reads before it starts."""

    request: Request
    fusion: FusionMethod
    eviction: EvictionMethod | None
    addresses: list[Address | None]
    loads: list[Future[ReadOutcome] | Future[EndsOutcome] | None]
    max_tokens: int
    sampler: Sampler
    warnings: list[str] = field(default_factory=list)
    auto_ratio: bool = False
    gated: GatedMethod | None = None
    fates: TokenTracer | None = None

    segments: list[SegmentLoad | None] = field(default_factory=list)
    found: Future[None] | None = None
    decided_at: float = 0.0  # which segments are loaded
    ended: bool = False  # nothing is read for it any more
    abort_reason: str | None = None
    layout: PromptLayout | None = None
    kv: SequenceKV | None = None
    steps: Steps[PrefillResult] | None = None
    waits_for: Future[Any] | None = None
    sparse: SparseRequest | None = None
    rows_per_layer: list[int] = field(default_factory=list)
    rows_by_segment: list[int] = field(default_factory=list)
    kept_per_layer: list[float] = field(default_factory=list)
    held_tokens: int = 0
    coverage: float = 1.0
    flops: float = 0.0
    full_prefill_flops: float = 0.0
    tokens: list[int] = field(default_factory=list)
    decode_steps: int = 0

    stages: dict[str, float] = field(default_factory=dict)
    stage_started_at: float = field(init=False)
    progress: Progress | None = None
    computed_s: float = 0.0
    blocked_since: float | None = None

    def __post_init__(self) -> None:
        self.stage_started_at = self.request.arrived

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
        """Pool tokens that cover the sequence to its end: it can never run out midway. Known once
        it is loaded: a sparse method holds less, unless nothing of its documents is stored."""
        if not self.runs_sparse:
            return self.prompt_tokens + self.max_tokens
        assert isinstance(self.fusion, SamKV)
        request = self.request
        documents = self.fusion.held_tokens([len(d.ids) for d in request.documents])
        return len(request.system) + documents + len(request.question) + self.max_tokens

    @property
    def runs_sparse(self) -> bool:
        """Whether a sparse method finds any document stored; with none a full prefill is as cheap
        as computing the documents one by one, and exact."""
        ends = [load.result() for load in self.loads[1:] if load is not None and load.done()]
        return any(isinstance(end, EndsOutcome) and end.usable for end in ends)

    @property
    def loaded(self) -> bool:
        """It can start: what it reads first is there, and of the rest it is known that it comes."""
        if self.found is not None and not self.found.done():
            return False
        known = all(segment is None or segment.known for segment in self.segments)
        return known and all(load is None or load.done() for load in self.loads)

    @property
    def blocked(self) -> bool:
        """Its prefill waits for something that is not there yet."""
        return self.waits_for is not None and not self.waits_for.done()

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
        self.coverage = result.coverage
        self.held_tokens = result.held_tokens or result.layout.tokens
        if self.fates is not None:
            self.fates.prefilled(self.layout, result)
        # A method that started over left a shorter prompt.
        self.layout = result.layout

    def wait(self, awaited: Future[Any] | None) -> None:
        """The prefill yielded what it waits for next, None for nothing."""
        self.waits_for = awaited
        if self.blocked:
            self.blocked_since = time.monotonic()

    def waited(self) -> None:
        """The prefill goes on: what it stood still is the time loading was not hidden."""
        if self.blocked_since is not None:
            gone = time.monotonic() - self.blocked_since
            self.stages["load"] = self.stages.get("load", 0.0) + gone
            self.stage_started_at += gone
            self.blocked_since = None

    def close_stage(self, name: str) -> None:
        """The time since the last close belongs to stage `name`."""
        now = time.monotonic()
        self.stages[name] = self.stages.get(name, 0.0) + now - self.stage_started_at
        self.stage_started_at = now

    def outcome(self, segment: int) -> ReadOutcome | EndsOutcome | None:
        load = self.loads[segment]
        return load.result() if load is not None and load.done() else None

    def chunk(self, segment: int) -> EncodedChunk | None:
        """The whole chunk, where that was read before the start."""
        outcome = self.outcome(segment)
        return outcome.chunk if isinstance(outcome, ReadOutcome) else None

    def missed(self, segment: int) -> bool:
        """Whether the segment was looked for and not found whole and sound."""
        load = self.segments[segment] if self.segments else None
        if load is not None:
            return load.known and load.missed
        outcome = self.outcome(segment)
        if isinstance(outcome, EndsOutcome):
            return not outcome.usable
        return outcome is not None and outcome.chunk is None

    def report(self) -> Report:
        """What happened, whether or not the prompt was ever run."""
        segments = [self._segment_report(i) for i in range(len(self.addresses))]
        total, ran = self.prompt_tokens, bool(self.rows_by_segment)
        documents = sum(s.tokens for s in segments[1:])
        recomputed = sum(s.rows_recomputed for s in segments) + len(self.request.question)
        return Report(
            prompt_tokens=total,
            completion_tokens=len(self.tokens),
            cached_tokens=self.held_tokens - recomputed if ran else 0,
            recomputed_tokens=recomputed if ran else 0,
            system=segments[0],
            documents=segments[1:],
            rows_per_layer=self.rows_per_layer,
            kept_per_layer=self.kept_per_layer,
            coverage=self.coverage,
            flops=self.flops,
            full_prefill_flops=self.full_prefill_flops,
            kept_ratio=self._kept_ratio(),
            recomputed_ratio=sum(s.rows_recomputed for s in segments[1:]) / max(1, documents),
            stages=self.stages,
            decode_steps=self.decode_steps,
            seed=self.sampler.seed if self.request.sampling.temperature > 0 else None,
            warnings=self.warnings,
            ratio=getattr(self.fusion, "ratio", None),
            gate=self.gated.note if self.gated else None,
            hidden_load_s=max(0.0, sum(s.load_s for s in segments) - self.stages.get("load", 0.0)),
            token_fates=None if self.fates is None else self.fates.report(),
        )

    def _kept_ratio(self) -> float:
        """Document entries held after the first token. Instruction and question are taken to be
        held: every method that drops entries keeps them unless asked not to."""
        documents = sum(len(d.ids) for d in self.request.documents)
        if not self.kept_per_layer or not documents:
            return 1.0
        mean = sum(self.kept_per_layer) / len(self.kept_per_layer)
        others = len(self.request.system) + len(self.request.question)
        return max(0.0, min(1.0, (mean - others) / documents))

    def _segment_report(self, segment: int) -> SegmentReport:
        ids = self.request.system if segment == 0 else self.request.documents[segment - 1].ids
        read = self._read_of(segment)
        load = self.segments[segment] if self.segments else None
        return SegmentReport(
            chunk_id=-1 if segment == 0 else self.request.documents[segment - 1].chunk_id,
            tokens=len(ids),
            tier=read.tier,
            bytes=read.nbytes,
            stored_bytes=read.stored_bytes,
            load_s=read.seconds,
            rows_recomputed=self.rows_by_segment[segment] if self.rows_by_segment else 0,
            problems=[f"{tier}: {kind}" for tier, kind in read.problems],
            plan=load.plan if load is not None else "",
            why=load.why if load is not None else "",
        )

    def _read_of(self, segment: int) -> SegmentRead:
        """Where a segment's KV came from: what its first read found, and what followed it."""
        address, outcome = self.addresses[segment], self.outcome(segment)
        if self.sparse is not None:
            for document in self.sparse.documents:
                if document.segment == segment:
                    return document
        if self.segments and (load := self.segments[segment]) is not None:
            return load.so_far()
        if outcome is None or address is None:
            return SegmentRead()
        hit = isinstance(outcome, ReadOutcome) and outcome.chunk is not None
        return SegmentRead(
            outcome.tier or "cold" if hit else "cold",
            outcome.nbytes,
            outcome.nbytes,
            outcome.seconds,
            list(outcome.problems),
        )
