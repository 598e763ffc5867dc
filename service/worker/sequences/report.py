"""What is said of a prompt: with an answer, how it was computed and what that cost; before it, what
it would cost, from where its chunks are and what the planner decides. A forecast reads no chunk and
moves none between tiers."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

from kvstitch.service.messages.replies import Explained, Failed
from kvstitch.service.messages.reports import Forecast, Report, SegmentForecast, SegmentReport
from kvstitch.service.messages.requests import ColdMode, Generate
from kvstitch.service.worker.loading.load_plan import (
    FoundSegment,
    LoadPlan,
    found_segments,
    plan_loads,
)
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.loading.planner import Planner
from kvstitch.service.worker.loading.segment_load import UNCACHED, SegmentRead
from kvstitch.service.worker.methods.bases.fusion import PromptShape
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import full_prefill
from kvstitch.service.worker.prefix_cache import POOL, PrefixCache
from kvstitch.service.worker.sequences.admission import Admission
from kvstitch.service.worker.sequences.reuse import look_up_history, new_prompt
from kvstitch.service.worker.sequences.sequence import EngineSequence


def report(sequence: EngineSequence) -> Report:
    """Return the report of a sequence, also of one whose prompt was never run."""
    asked, work, stages = sequence.asked, sequence.work, sequence.clock.stages
    segments = [_segment(sequence, i) for i in range(len(asked.addresses))]
    ran = bool(work.rows_by_segment)
    reused = 0 if sequence.reuse is None or not ran else sequence.reuse.tokens
    taken = sequence.reused_history if ran else 0
    if taken:  # less what was repaired
        taken = sequence.history_tokens - work.history_rows
    question = len(asked.request.question) - (reused - sum(s.reused for s in segments)) - taken
    with_prompt = sum(s.rows_recomputed for s in segments) + question
    document_rows = sum(_computed_tokens(s) for s in segments[1:])
    recomputed = sum(_computed_tokens(s) for s in segments) + question
    # Of what a sparse method holds, an even share is counted for every chunk.
    held = work.entries / max(1, asked.prompt_tokens)
    cached = work.entries - with_prompt - round(held * (recomputed - with_prompt))
    loading_s = sum(s.load_s for s in segments)
    return Report(
        prompt_tokens=asked.prompt_tokens,
        completion_tokens=len(sequence.tokens),
        cached_tokens=max(0, cached) if ran else 0,
        recomputed_tokens=recomputed if ran else 0,
        system=segments[0],
        documents=segments[1:],
        rows_per_layer=work.rows_per_layer,
        kept_per_layer=work.kept_per_layer,
        coverage=work.coverage,
        flops=work.flops,
        full_prefill_flops=work.full_prefill_flops,
        kept_ratio=_kept_ratio(sequence),
        recomputed_ratio=document_rows / max(1, sum(asked.document_tokens)),
        stages=stages,
        decode_steps=work.decode_steps,
        seed=sequence.sampler.seed if asked.request.sampling.temperature > 0 else None,
        warnings=sequence.warnings,
        ratio=sequence.fusion.repair_ratio,
        hidden_load_s=max(0.0, loading_s - stages.get("load", 0.0)),
        gate=asked.gated.note if asked.gated else None,
        exact_from=work.exact_from,
        history_tokens=taken,
        reused_tokens=reused,
        reused_from=POOL if reused else "",
        token_fates=None if sequence.prefill.trace is None else sequence.prefill.trace.report(),
    )


def _computed_tokens(segment: SegmentReport) -> int:
    """Return its tokens that were computed for this request, with the prompt or by themselves."""
    return segment.tokens if segment.computed == "as_stored" else segment.rows_recomputed


def _kept_ratio(sequence: EngineSequence) -> float:
    """Return the share of the documents' KV entries that are held after the first token."""
    documents, kept = sum(sequence.asked.document_tokens), sequence.work.kept_per_layer
    if not kept or not documents:
        return 1.0
    mean = sum(kept) / len(kept)
    others = sequence.asked.prompt_tokens - documents
    return max(0.0, min(1.0, (mean - others) / documents))


def _segment(sequence: EngineSequence, number: int) -> SegmentReport:
    request, rows = sequence.asked.request, sequence.work.rows_by_segment
    load = sequence.loads.segments[number] if sequence.loads.segments else None
    document = request.documents[number - 1] if number else None
    read = load.so_far() if load is not None else SegmentRead()
    tokens = len(request.system if document is None else document.ids)
    kept = 0 if sequence.reuse is None or not rows else sequence.reuse.tokens
    reused = reused_by_segment(sequence, kept)[number]
    tier = read.tier
    if sequence.reuse is not None and reused and reused == tokens:
        tier = POOL
    computed: ColdMode | Literal[""] = ""
    if tier == UNCACHED and tokens and rows:
        computed = "as_stored" if load is not None and load.computed_alone else "in_context"
    return SegmentReport(
        chunk_id=-1 if document is None else document.chunk_id,
        tokens=tokens,
        tier=tier,
        bytes=read.nbytes,
        stored_bytes=read.stored_bytes,
        load_s=read.seconds,
        rows_recomputed=rows[number] if rows else 0,
        problems=[f"{tier}: {kind}" for tier, kind in read.problems],
        plan=load.plan if load is not None else "",
        why=load.why if load is not None else "",
        computed=computed,
        behind=0 if document is None else document.chunks_behind,
        reused=reused,
    )


def reused_by_segment(sequence: EngineSequence, tokens: int) -> list[int]:
    """Return how many of the prompt's first `tokens` tokens are each segment's, S first."""
    out = []
    for segment in (len(sequence.asked.request.system), *sequence.asked.document_tokens):
        out.append(min(segment, tokens))
        tokens -= out[-1]
    return out


Lookup = tuple[EngineSequence, dict[str, str], Future[None]]
"""A request's sequence, the tiers of its chunks by key, and when these are found."""


@dataclass(frozen=True)
class Explainer:
    """Makes the forecasts of one engine."""

    decoder: DecoderModel
    admission: Admission
    loader: Loader
    planner: Planner
    prefix_cache: PrefixCache
    _lookups: list[Lookup] = field(default_factory=list)

    def begin(self, request: Generate) -> None:
        """Start to look up the request's chunks in the tiers."""
        sequence = self.admission.sequence(request, time.monotonic())
        tiers: dict[str, str] = {}
        wanted = [address for address in sequence.asked.addresses if address is not None]
        self._lookups.append((sequence, tiers, self.loader.find(wanted, tiers.update)))

    def finished(self, *, crowded: bool) -> list[Explained | Failed]:
        """Return the results for requests whose look-ups are finished."""
        replies: list[Explained | Failed] = []
        for lookup in [x for x in self._lookups if x[2].done()]:
            self._lookups.remove(lookup)
            sequence, tiers, found = lookup
            try:
                found.result()
                sequence.history = look_up_history(self.prefix_cache, sequence)
                forecast = self._forecast(sequence, tiers, crowded)
                replies.append(
                    Explained(sequence.id, self._continuing(sequence, forecast, crowded))
                )
            except Exception as error:
                replies.append(Failed.of(sequence.id, error))
        return replies

    def _forecast(self, sequence: EngineSequence, tiers: dict[str, str], crowded: bool) -> Forecast:
        asked = sequence.to_load
        segments = found_segments(asked, tiers)
        planner = self.planner if self.planner.deciding else None
        plan = plan_loads(asked, segments, planner, self.loader.bytes_left(), crowded=crowded)
        seconds, flops = self.planner.forecast(plan.prompt)
        full_flops = full_prefill(self.decoder, sequence.asked.prompt_tokens)
        computed = [s for s in segments if s.tier == UNCACHED or s in plan.recompute]
        recomputed = self._recomputed_tokens(plan, computed)
        system, *documents = [
            self._segment(sequence, s, loaded=s not in plan.recompute) for s in segments
        ]
        return Forecast(
            prompt_tokens=sequence.asked.prompt_tokens,
            system=system,
            documents=documents,
            recomputed_tokens=recomputed,
            flops=flops if plan.prompt.as_stored else min(flops, full_flops),
            full_prefill_flops=full_flops,
            first_token_s=seconds,
            full_prefill_s=self.planner.compute_s(full_flops, crowded=crowded),
            measured=self.planner.compute.measured
            and all(self.planner.tiers.measured(s.tier) for s in segments if s.is_slow),
            warnings=sequence.warnings,
            history_tokens=sequence.reused_history,
        )

    def _continuing(self, sequence: EngineSequence, fresh: Forecast, crowded: bool) -> Forecast:
        """Return the forecast with what can be taken from an earlier prompt, if there is one."""
        prompt = new_prompt(sequence) if self.prefix_cache.on else None
        reuse = None if prompt is None else self.prefix_cache.look_up(prompt)
        if reuse is None:
            return fresh
        reused = reuse.tokens
        rest = sequence.asked.prompt_tokens - reused
        flops = full_prefill(self.decoder, rest, behind=reused) if rest else 0.0
        parts = reused_by_segment(sequence, reused)
        segments = [
            _continued_segment(*each)
            for each in zip((fresh.system, *fresh.documents), parts, strict=True)
        ]
        return replace(
            fresh,
            system=segments[0],
            documents=segments[1:],
            recomputed_tokens=rest,
            history_tokens=0,
            reused_tokens=reused,
            reused_from=POOL,
            flops=flops,
            first_token_s=self.planner.compute_s(flops, crowded=crowded),
        )

    def _recomputed_tokens(self, plan: LoadPlan, computed: list[FoundSegment]) -> int:
        prompt = plan.prompt
        loaded = [s.tokens for s in plan.loads if s.number]
        shape = PromptShape(
            tokens=prompt.tokens,
            question=prompt.question,
            layers=self.decoder.layers,
            uncached=prompt.uncached_tokens,
            documents=[*prompt.documents, *loaded],
        )
        anew = prompt.method.recomputed_tokens(shape)
        if not prompt.as_stored:
            return min(prompt.tokens, prompt.question + prompt.uncached_tokens + anew)
        # Repaired rows of a document that is computed anyway are not counted a second time.
        documents = sum(s.tokens for s in computed if s.number)
        anew = round(anew * (1 - documents / max(1, sum(shape.documents))))
        return prompt.question + sum(s.tokens for s in computed) + anew

    def _segment(
        self, sequence: EngineSequence, segment: FoundSegment, *, loaded: bool
    ) -> SegmentForecast:
        loaded = loaded and segment.tier != UNCACHED
        seconds = 0.0
        if loaded and segment.is_slow:
            seconds = self.planner.tiers.seconds(segment.tier, segment.nbytes, segment.parts)
        documents = sequence.asked.request.documents
        computed: ColdMode | Literal[""] = ""
        if segment.tokens and not loaded:
            computed = "as_stored" if sequence.asked.as_stored else "in_context"
        return SegmentForecast(
            chunk_id=documents[segment.number - 1].chunk_id if segment.number else -1,
            tokens=segment.tokens,
            tier=segment.tier,
            stored_bytes=segment.stored_bytes,
            load_bytes=segment.nbytes if loaded else 0,
            action="load" if loaded else "recompute",
            load_s=seconds,
            computed=computed,
            behind=documents[segment.number - 1].chunks_behind if segment.number else 0,
        )


def _continued_segment(segment: SegmentForecast, reused: int) -> SegmentForecast:
    """Return a segment of a prompt that continues another: what is not reused is computed."""
    nothing_read = replace(segment, reused=reused, load_bytes=0, load_s=0.0)
    if segment.tokens and reused == segment.tokens:
        return replace(nothing_read, tier=POOL, action="reuse", computed="")
    return replace(
        nothing_read, action="recompute", computed="in_context" if segment.tokens else ""
    )
