"""Launches a request's prefill: starts its loads, and creates the steps that run it.

A prompt starts as soon as it is known where its chunks are. Then, and whenever the prompt has to
wait, the planner decides which of the chunks are worth loading. If a chunk turns out to be damaged,
missing or too late, it is computed with the prompt: the prefill is resumed with that segment
uncached, from the last layer that was computed with every row. Or, if the request says so, the
chunk is computed by itself, and the prefill is resumed as if it had been stored. A method that
reads only parts of the documents starts when its first reads are finished.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from service.worker.forward.prefill import Progress, prefill
from service.worker.kv.pool import SequenceKV
from service.worker.layout import Prefix, PromptLayout
from service.worker.loading.loader import Loader
from service.worker.loading.segment_load import Load, PartialLoad, SegmentLoad
from service.worker.methods.bases.dense import DenseMethod
from service.worker.methods.bases.fusion import Reads
from service.worker.methods.fusion.vanilla import Method as FullPrefill
from service.worker.methods.layer_view import CachedSegment, PrefillResult
from service.worker.model.addressing import Address, Addressing
from service.worker.model.decoder import DecoderModel
from service.worker.model.flops import full_prefill
from service.worker.model.model_facts import ModelFacts
from service.worker.planner.planner import FASTER, LATE, Planner
from service.worker.sequences.load_plan import (
    FoundSegment,
    LoadPlan,
    found_segments,
    loads_under_way,
    plan_loads,
    waiting_prompt,
)
from service.worker.sequences.missing_chunks import MissingChunks
from service.worker.sequences.prompt_reader import PromptReader
from service.worker.sequences.reuse import continued_prefill
from service.worker.sequences.sequence import EngineSequence
from service.worker.sequences.sparse_prefill import SparsePrefill
from service.worker.sequences.token_trace import TokenTracer
from service.worker.steps import Steps


class SegmentLost(Exception):
    """Stored KV that a running prefill needs will not arrive."""


@dataclass(frozen=True)
class PrefillLauncher:
    """Launches the prefills of one engine.

    Attributes:
        facts: sizes and calibration of the model.
        missing: computes chunks by themselves that are not stored, and stores them.
        planner: None to load everything that is stored, however long it takes.
        reader: reads prompts on disk; None if none are stored.
    """

    decoder: DecoderModel
    facts: ModelFacts
    addressing: Addressing
    loader: Loader
    missing: MissingChunks
    planner: Planner | None
    reader: PromptReader | None = None

    # -- before it starts -------------------------------------------------------------------------

    def start_loading(self, sequence: EngineSequence) -> None:
        """Start to read what the sequence's method reads, or the earlier prompt that it continues.

        A sequence that continues a prompt in the KV pool reads nothing, unless more is on disk.
        """
        computes = sequence.reuse is not None or sequence.fusion.reads is Reads.NOTHING
        if computes and self.reader is not None:
            self.reader.begin(sequence, lambda: None)
        if sequence.reuse is not None:
            return
        match sequence.fusion.reads:
            case Reads.NOTHING:
                return
            case Reads.PARTS:
                sequence.segments = [
                    None if address is None else self._load_part(address, whole=number == 0)
                    for number, address in enumerate(sequence.addresses)
                ]
            case Reads.CHUNKS:
                sequence.segments = [
                    None if address is None else SegmentLoad(address)
                    for address in sequence.addresses
                ]
                wanted = [a for a in sequence.addresses if a is not None]
                streams = self.loader.streams
                sequence.found = streams.find(wanted, lambda tiers: self._found(sequence, tiers))

    def _load_part(self, address: Address, *, whole: bool) -> Load:
        if whole:
            return SegmentLoad(address, self.loader.streams.join(address, None), plan="")
        return PartialLoad(address, self.loader.load_ends(address))

    def _found(self, sequence: EngineSequence, tiers: dict[str, str]) -> None:
        """Start the loads that are worth it, when the chunks have been found.

        Runs on a loader thread.

        Args:
            tiers: the fastest tier that has a chunk, by the chunk's key.
        """
        segments = found_segments(sequence, tiers)
        bytes_left = self.loader.streams.bytes_left()
        plan = plan_loads(sequence, segments, self.planner, bytes_left)

        def load() -> None:
            self._load(sequence, plan, tiers)

        reader = self.reader
        if reader is None or not reader.begin(sequence, load, reader.forecast_s(plan)):
            load()

    def _load(self, sequence: EngineSequence, plan: LoadPlan, tiers: dict[str, str]) -> None:
        """Start the loads of a plan."""
        for segment in plan.recompute:
            load = sequence.segments[segment.number]
            assert isinstance(load, SegmentLoad)
            load.compute(FASTER)
        if self.planner is not None and (plan.loads or plan.recompute):
            # Before any prefill was measured, this decision is only a guess, and `_decide_again`
            # makes it again as soon as this prompt has computed something.
            if self.planner.compute.measured:
                sequence.decided_at = time.monotonic()
            self._read_stale_tier(plan.recompute)
        for load in sequence.segments:
            if isinstance(load, SegmentLoad) and load.plan == "load":
                tier = tiers.get(load.address.key)
                load.stream = self.loader.streams.join(load.address, tier)
        if sequence.ended:  # during this call, so nothing else will leave the streams
            self.stop_loading(sequence)

    def _read_stale_tier(self, recomputed: Sequence[FoundSegment]) -> None:
        """Read one segment from a tier that has not been read for long because it was slow.

        Without this, the planner would never notice that the tier has become faster.
        """
        assert self.planner is not None
        for segment in recomputed:
            if self.planner.tiers.stale(segment.tier):
                assert segment.address is not None
                self.loader.prefetch([segment.address])
                return

    # -- the prompt -------------------------------------------------------------------------------

    def reserved_tokens(self, sequence: EngineSequence) -> int:
        """Return tokens of KV that the sequence needs from the pool until its end.

        All are reserved at its start, so that it cannot run out midway. Only valid once the
        sequence is `loaded`.
        """
        documents = sequence.document_tokens
        document_tokens = sum(documents)
        if self._holds_part(sequence):
            document_tokens = sequence.fusion.max_kept_tokens(documents)
        request = sequence.request
        prompt_tokens = len(request.system) + document_tokens + len(request.question)
        return prompt_tokens + sequence.max_tokens

    def launch(self, sequence: EngineSequence, kv: SequenceKV, *, crowded: bool = False) -> None:
        """Give a sequence that can start its layout, its KV and its steps.

        Args:
            kv: the reserved part of the pool.
            crowded: whether other requests decode meanwhile, which slows prefill.
        """
        sequence.kv = kv
        sequence.clock.close_queue(self._loading_s(sequence))
        if sequence.found is not None:
            sequence.found.result()
        if sequence.auto_ratio and self.planner is not None and sequence.reuse is None:
            loads = loads_under_way(sequence)
            prompt = waiting_prompt(sequence, loads, self.loader.streams.bytes_left())
            ratio = self.planner.ratio(prompt)
            sequence.fusion = sequence.fusion.with_repair_ratio(ratio)
        if sequence.request.token_fates:
            sequence.token_trace = TokenTracer(
                sequence.fusion, self.decoder.layers, self.decoder.kv_heads
            )
        decoder = self.decoder.with_lora(sequence.lora)
        layout = sequence.layout = self._layout(sequence)
        sequence.full_prefill_flops = full_prefill(self.decoder, layout.tokens)
        if sequence.eviction is not None:
            warning = sequence.eviction.warning(layout)
            sequence.warnings.extend([warning] if warning else [])
        if sequence.reuse is not None:
            sequence.steps = continued_prefill(decoder, layout, kv, sequence.reuse)
        elif self._holds_part(sequence):
            sparse = SparsePrefill(decoder, self.facts, self.loader, self.missing)
            sequence.steps = sparse.steps(sequence, kv)
        else:
            sequence.steps = self._steps(decoder, sequence, kv, crowded)

    def stop_loading(self, sequence: EngineSequence) -> None:
        """End the sequence's loads, after its prefill or when it is dropped."""
        sequence.ended = True
        for load in sequence.segments:
            stream = load.settle() if load is not None else None
            if stream is not None:
                self.loader.streams.leave(stream)

    def drop_loads(self, sequence: EngineSequence) -> None:
        """Forget the loads of a sequence that is `loaded` and needs none of them any more."""
        self.stop_loading(sequence)
        sequence.segments, sequence.found = [], None

    def _holds_part(self, sequence: EngineSequence) -> bool:
        """Return whether the prompt runs with only some tokens held.

        For a sparse method without any stored document this is False, and the prompt runs as a full
        prefill, unless the request wants documents computed by themselves: that costs no more than
        computing them one by one, and it is exact.
        """
        if sequence.fusion.reads is not Reads.PARTS:
            return False
        documents = [load for load in sequence.segments[1:] if load is not None]
        return any(sequence.as_stored or load.usable for load in documents)

    def _steps(
        self, decoder: DecoderModel, sequence: EngineSequence, kv: SequenceKV, crowded: bool
    ) -> Steps[PrefillResult]:
        progress = sequence.progress = Progress()
        trace, method = sequence.token_trace, sequence.fusion
        dense = method if isinstance(method, DenseMethod) else FullPrefill()
        while True:
            if sequence.as_stored:
                yield from self.missing.supply(sequence)
            # Asked once: a loader thread may lose a segment between two questions.
            cached = [self._stored(load) for load in self._segments(sequence)]
            layout = sequence.layout = self._layout_of(sequence, [c is None for c in cached])
            if trace is not None:
                trace.start_again()

            def arrival(layer: int) -> Steps[None]:
                return self._arrival(sequence, layer, crowded)

            try:
                return (
                    yield from prefill(
                        decoder,
                        layout,
                        cached,
                        dense,
                        kv,
                        eviction=sequence.eviction,
                        capture=None if trace is None else trace.capture,
                        on_pass=None if trace is None else trace.on_pass,
                        arrival=arrival,
                        progress=progress,
                    )
                )
            except SegmentLost:
                continue

    def _arrival(self, sequence: EngineSequence, layer: int, crowded: bool) -> Steps[None]:
        """Wait until `layer` of every cached segment of this prefill has arrived.

        Raises:
            SegmentLost: one of them was lost or given up.
        """
        assert sequence.layout is not None
        for load, segment in zip(sequence.segments, sequence.layout.segments, strict=False):
            if segment.uncached or not isinstance(load, SegmentLoad) or load.computed is not None:
                continue
            assert load.stream is not None
            while True:
                if not load.usable:
                    if self.planner is not None and load.missed:
                        self.planner.count("lost")
                    raise SegmentLost
                part = load.stream.pending(layer)
                if part is None:
                    break
                if self.planner is None:
                    yield part
                    continue
                pause = self._decide_again(sequence, layer, crowded)
                if load.usable:
                    yield self.loader.streams.within(part, pause)

    def _decide_again(self, sequence: EngineSequence, layer: int, crowded: bool) -> float:
        """Give up the loads that take longer than computing their segments.

        Called while the prefill has to wait; does nothing if the last decision is too recent.

        Returns:
            Seconds after which to decide again.
        """
        planner, progress = self.planner, sequence.progress
        assert planner is not None and progress is not None
        bytes_left = self.loader.streams.bytes_left()
        now = time.monotonic()
        pause = planner.look_again_s(waiting_prompt(sequence, [], bytes_left))
        if now < sequence.decided_at + pause:
            return sequence.decided_at + pause - now
        sequence.decided_at = now
        if not planner.compute.measured and progress.flops is not None:
            planner.compute.add(progress.flops.total, sequence.computed_s)
        loads = loads_under_way(sequence)
        done = progress.layer if layer > 0 else 0
        prompt = waiting_prompt(
            sequence, loads, bytes_left, crowded=crowded, exact_layers_done=done
        )
        for number in planner.recompute(prompt):
            loads[number].compute(LATE)
            planner.count("late")
        return pause

    def _segments(self, sequence: EngineSequence) -> list[Load | None]:
        return sequence.segments or [None] * len(sequence.addresses)

    def _stored(self, load: Load | None) -> CachedSegment | None:
        """Return the stored KV of a whole segment; None if it must be computed."""
        return load.stored if isinstance(load, SegmentLoad) else None

    def _layout(self, sequence: EngineSequence) -> PromptLayout:
        uncached = [self._stored(load) is None for load in self._segments(sequence)]
        if self._holds_part(sequence):  # missing documents are computed before its layers run
            uncached = [False] * len(uncached)
        return self._layout_of(sequence, uncached)

    def _layout_of(self, sequence: EngineSequence, uncached: list[bool]) -> PromptLayout:
        request = sequence.request
        return PromptLayout.of(
            request.system,
            [d.ids for d in request.documents],
            request.question,
            uncached=uncached,
            prefixes=[Prefix() if a is None else a.prefix for a in sequence.addresses[1:]],
            device=self.decoder.device,
        )

    def _loading_s(self, sequence: EngineSequence) -> float:
        """Return seconds of the longest load that is finished."""
        loads = [load for load in sequence.segments if load is not None]
        partial_s = [load.so_far().seconds for load in loads if isinstance(load, PartialLoad)]
        streams = [load.stream for load in loads if isinstance(load, SegmentLoad)]
        whole_s = [stream.seconds for stream in streams if stream is not None and stream.done]
        return max([*partial_s, *whole_s, sequence.restored_s])
