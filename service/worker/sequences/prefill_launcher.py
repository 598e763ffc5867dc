"""Launches a request's prefill: gives it its layout, its KV, and the steps that run it.

A prompt starts as soon as it is known where its chunks are; if one turns out to be damaged, missing
or too late, the prefill is resumed with that segment uncached, from the last layer that was
computed with every row. Or, if the request says so, the chunk is computed by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from kvstitch.service.worker.forward.attention_pass import Recordings
from kvstitch.service.worker.forward.prefill import Progress, prefill
from kvstitch.service.worker.kv.pool import SequenceKV
from kvstitch.service.worker.layout import Prefix, PromptLayout
from kvstitch.service.worker.loading.prompt_loads import (
    MissingChunks,
    PromptLoads,
    SegmentLost,
    Waiting,
)
from kvstitch.service.worker.loading.segment_load import Load, SegmentLoad
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.fusion import Reads
from kvstitch.service.worker.methods.fusion.vanilla import Method as FullPrefill
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import ModelFacts, full_prefill
from kvstitch.service.worker.sequences.exact import computed_in_full
from kvstitch.service.worker.sequences.reuse import HistoryKV, continued_prefill
from kvstitch.service.worker.sequences.sequence import EngineSequence
from kvstitch.service.worker.sequences.token_trace import TokenTracer
from kvstitch.service.worker.steps import Steps


@dataclass(frozen=True)
class PartialPrompt:
    """What a `PartialMethod` runs on; its sequence has the loads that the method has started."""

    decoder: DecoderModel
    facts: ModelFacts
    missing: MissingChunks
    layout: PromptLayout
    sequence: EngineSequence
    kv: SequenceKV


@dataclass(frozen=True)
class PrefillLauncher:
    """Launches the prefills of one engine."""

    decoder: DecoderModel
    facts: ModelFacts
    loads: PromptLoads
    missing: MissingChunks  # computes chunks by themselves that are not stored, and stores them
    recordings: Recordings | None = None  # layers of the decoder; None: nothing is recorded

    def reserved_tokens(self, sequence: EngineSequence) -> int:
        """Return the tokens of KV that a `loaded` sequence needs from the pool until its end;
        all are reserved at its start, so that it cannot run out midway."""
        tokens = sequence.asked.prompt_tokens + sequence.max_tokens
        if self._holds_part(sequence):
            documents = sequence.asked.document_tokens
            tokens += sequence.fusion.max_kept_tokens(documents) - sum(documents)
        return tokens

    def launch(self, sequence: EngineSequence, kv: SequenceKV, *, crowded: bool = False) -> None:
        """Give a sequence its layout, its KV and its steps; `crowded`: others decode meanwhile."""
        sequence.kv = kv
        sequence.clock.close_queue(_loading_s(sequence))
        if sequence.loads.found is not None:
            sequence.loads.found.result()
        if sequence.asked.auto_ratio and sequence.reuse is None:
            ratio = self.loads.ratio(sequence.to_load, sequence.loads)
            if ratio is not None:
                sequence.fusion = sequence.fusion.with_repair_ratio(ratio)
        if sequence.asked.request.token_fates:
            sequence.prefill.trace = TokenTracer(
                sequence.fusion, self.decoder.layers, self.decoder.kv_heads
            )
        decoder = self.decoder.with_lora(sequence.lora)
        uncached = [load is None or load.stored is None for load in _segments(sequence)]
        if self._holds_part(sequence):  # missing documents are computed before its layers run
            uncached = [False] * len(uncached)
        layout = sequence.layout = self._layout(sequence, uncached)
        sequence.work.full_prefill_flops = full_prefill(self.decoder, layout.tokens)
        if sequence.asked.eviction is not None:
            warning = sequence.asked.eviction.warning(layout)
            sequence.warnings.extend([warning] if warning else [])
        if sequence.reuse is not None:
            sequence.prefill.steps = continued_prefill(decoder, layout, kv, sequence.reuse)
        elif self._holds_part(sequence):
            sequence.prefill.steps = sequence.fusion.run(
                PartialPrompt(decoder, self.facts, self.missing, layout, sequence, kv)
            )
        else:
            taken = sequence.history
            history = None if taken is None else HistoryKV.of(decoder, taken)
            sequence.prefill.steps = self._steps(decoder, sequence, kv, history, crowded)

    def start_over(self, sequence: EngineSequence) -> None:
        """Give a sequence the steps that compute its prompt and its answer so far in full."""
        decoder = self.decoder.with_lora(sequence.lora)
        recordings = self.recordings if decoder is self.decoder else None
        sequence.work.exact_from = len(sequence.tokens)
        sequence.prefill.steps = computed_in_full(decoder, sequence, recordings)

    def _holds_part(self, sequence: EngineSequence) -> bool:
        """Return whether the prompt runs with only some tokens held."""
        if sequence.fusion.reads is not Reads.PARTS:
            return False
        documents = [load for load in sequence.loads.segments[1:] if load is not None]
        return any(sequence.asked.as_stored or load.usable for load in documents)

    def _steps(
        self,
        decoder: DecoderModel,
        sequence: EngineSequence,
        kv: SequenceKV,
        history: HistoryKV | None,
        crowded: bool,
    ) -> Steps[PrefillResult]:
        progress = sequence.prefill.progress = Progress()
        trace, method = sequence.prefill.trace, sequence.fusion
        while True:
            if sequence.asked.as_stored:
                yield from self.missing.supply(sequence.loads)
            # Asked once: a loader thread may lose a segment between two questions.
            cached = [None if load is None else load.stored for load in _segments(sequence)]
            layout = sequence.layout = self._layout(sequence, [c is None for c in cached])
            turns = [None if s.uncached else history for s in layout.segments[len(cached) :]]
            waiting = Waiting(
                sequence.to_load,
                sequence.loads,
                layout,
                progress,
                lambda: sequence.prefill.computed_s,
                crowded,
            )
            if trace is not None:
                trace.start_again()
            try:
                return (
                    yield from prefill(
                        decoder,
                        layout,
                        [*cached, *turns],
                        method if isinstance(method, DenseMethod) else FullPrefill(),
                        kv,
                        eviction=sequence.asked.eviction,
                        capture=None if trace is None else trace.capture,
                        on_pass=None if trace is None else trace.on_pass,
                        arrival=partial(self.loads.arrival, waiting),
                        progress=progress,
                        recordings=self.recordings if decoder is self.decoder else None,
                    )
                )
            except SegmentLost:
                continue

    def _layout(self, sequence: EngineSequence, uncached: list[bool]) -> PromptLayout:
        request = sequence.asked.request
        prefixes = [Prefix() if a is None else a.prefix for a in sequence.asked.addresses[1:]]
        # Earlier turns: what an earlier prompt has left of them, then the rest.
        before, end = sequence.history, sequence.history_tokens
        turns: list[Sequence[int]] = []
        if before is not None:
            turns = [request.question[: before.tokens], request.question[before.tokens : end]]
            prefixes += [Prefix(before.behind.tolist(), exact=False), Prefix()]
        return PromptLayout.of(
            request.system,
            [*(d.ids for d in request.documents), *turns],
            request.question[end:],
            uncached=[*uncached, *[False, True][: len(turns)]],
            prefixes=prefixes,
            history=len(turns),
            ranking_only=[] if sequence.asked.repairs_history else [len(request.documents)],
            device=self.decoder.device,
        )


def _segments(sequence: EngineSequence) -> list[Load | None]:
    return sequence.loads.segments or [None] * len(sequence.asked.addresses)


def _loading_s(sequence: EngineSequence) -> float:
    """Return seconds of the longest load that is finished."""
    loads = [load for load in sequence.loads.segments if load is not None]
    partial_s = [load.so_far().seconds for load in loads if not isinstance(load, SegmentLoad)]
    streams = [load.stream for load in loads if isinstance(load, SegmentLoad)]
    whole_s = [stream.seconds for stream in streams if stream is not None and stream.done]
    return max([*partial_s, *whole_s, 0.0])
