"""Opens a request's prefill: what is read for it, and the steps that run it.

The dense layer loop and its sparse counterpart part here, and nowhere else. A dense prompt starts
as soon as it is known where its chunks are; `service.worker.planner.planner` says which of them are
worth loading, now and whenever the prompt has to wait. A chunk that is lost on the way (bad, gone,
too late) is computed with the prompt: it is opened again with that segment cold, from the last
layer that every row went through. Knows no scheduler and no events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from service.worker.core.flops import full_prefill
from service.worker.core.layer_view import CachedSegment
from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.core.steps import Steps
from service.worker.forward.chunk_prefill import ComputedChunk
from service.worker.forward.prefill import PrefillResult, Progress, prefill
from service.worker.kv.pool import SequenceKV
from service.worker.loading.loader import Loader
from service.worker.loading.segment_load import SegmentLoad
from service.worker.loading.stream_reader import MEMORY
from service.worker.methods.fusion.samkv import Method as SamKV
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address, Addressing
from service.worker.planner.planner import FASTER, LATE, Planner, Prompt
from service.worker.sequences.planner_view import asked, awaited, expected, prompt_of
from service.worker.sequences.sequence import Sequence
from service.worker.sequences.sparse_request import SparseRequest
from service.worker.sequences.token_trace import TokenTracer


class SegmentLost(Exception):
    """Stored KV that a prompt counts on will not come."""


@dataclass(frozen=True)
class PrefillLauncher:
    """keep: stores chunks that a sparse prompt had to compute. planner: None to load whatever is
    stored, however long it takes."""

    adapter: DecoderAdapter
    facts: ModelFacts
    addressing: Addressing
    loader: Loader
    keep: Callable[[Address, ComputedChunk], None]
    planner: Planner | None

    # -- before it starts -------------------------------------------------------------------------

    def begin(self, sequence: Sequence) -> None:
        """Start reading: whole chunks, or for a sparse method only the documents' ends."""
        if sequence.fusion.sparse:
            sequence.loads = [
                None
                if address is None
                else self.loader.load_ends(address)
                if segment > 0
                else self.loader.load(address)
                for segment, address in enumerate(sequence.addresses)
            ]
            return
        sequence.segments = [
            None if address is None else SegmentLoad(address) for address in sequence.addresses
        ]
        wanted = [a for a in sequence.addresses if a is not None]
        streams = self.loader.streams
        sequence.found = streams.find(wanted, lambda tiers: self._found(sequence, tiers))

    def _found(self, sequence: Sequence, tiers: dict[str, str]) -> None:
        """Where the chunks are is known (on a loader thread): start to read those worth it."""
        loads = [load for load in sequence.segments if load is not None]
        slow = [load for load in loads if tiers.get(load.address.key, MEMORY) != MEMORY]
        if self.planner is not None and slow:
            waiting = [asked(load, tiers[load.address.key]) for load in slow]
            absent = sum(len(x.address.ids) for x in loads if x.address.key not in tiers)
            prompt = replace(self._prompt(sequence, []), uncached_tokens=absent)
            for number in self.planner.recompute(prompt, waiting):
                slow[number].compute(FASTER)
            if self.planner.compute.measured:  # else what the prompt computed says more
                sequence.decided_at = time.monotonic()
            self._ask_again(slow, tiers)
        for load in loads:
            if load.plan == "load":
                tier = tiers.get(load.address.key)
                load.stream = self.loader.streams.join(load.address, tier)
        if sequence.ended:  # meanwhile: nobody else will leave them
            self.close(sequence)

    def _ask_again(self, slow: list[SegmentLoad], tiers: dict[str, str]) -> None:
        """A tier that was turned down for long is read once, or it would stay so for ever."""
        assert self.planner is not None
        for load in slow:
            tier = tiers[load.address.key]
            if load.plan != "load" and self.planner.tiers.stale(tier):
                self.loader.prefetch([load.address])
                return

    # -- the prompt -------------------------------------------------------------------------------

    def open(self, sequence: Sequence, kv: SequenceKV, *, crowded: bool = False) -> None:
        """Give a sequence that can start its layout, its KV and its steps. crowded: others decode
        meanwhile."""
        sequence.kv = kv
        self._account_for_loading(sequence)
        if sequence.found is not None:
            sequence.found.result()
        if sequence.auto_ratio and self.planner is not None:
            loads = awaited(sequence)
            waiting = [expected(load) for load in loads]
            ratio = self.planner.ratio(self._prompt(sequence, loads), waiting)
            sequence.fusion = replace(sequence.fusion, ratio=ratio)  # type: ignore[call-arg]
        if sequence.request.token_fates:
            sequence.fates = TokenTracer(
                sequence.fusion, self.adapter.layers, self.adapter.kv_heads
            )
        layout = sequence.layout = self._layout(sequence)
        sequence.full_prefill_flops = full_prefill(self.adapter, layout.tokens)
        if sequence.eviction is not None:
            warning = sequence.eviction.warning(layout)
            sequence.warnings.extend([warning] if warning else [])
        if isinstance(sequence.fusion, SamKV) and sequence.runs_sparse:
            sequence.sparse = SparseRequest.of(
                self.adapter,
                self.facts,
                self.loader,
                self.keep,
                layout,
                sequence.fusion,
                sequence.addresses,
                [load.result() if load else None for load in sequence.loads],
            )
            sequence.sparse.watch = None if sequence.fates is None else sequence.fates.planned
            sequence.steps = sequence.sparse.steps(kv)
            return
        sequence.steps = self._steps(sequence, kv, crowded)

    def close(self, sequence: Sequence) -> None:
        """The prompt is in place or over: nothing more is read for it."""
        sequence.ended = True
        for load in sequence.segments:
            stream = load.settle() if load is not None else None
            if stream is not None:
                self.loader.streams.leave(stream)

    def _steps(self, sequence: Sequence, kv: SequenceKV, crowded: bool) -> Steps[PrefillResult]:
        progress = Progress()
        sequence.progress = progress
        capture = None if sequence.fates is None else sequence.fates.capture
        while True:
            layout = sequence.layout = self._layout(sequence)
            cached = [self._stored(sequence, i) for i in range(len(layout.segments))]

            def arrival(layer: int) -> Steps[None]:
                return self._arrival(sequence, layer, crowded)

            try:
                return (
                    yield from prefill(
                        self.adapter,
                        layout,
                        cached,
                        sequence.fusion,
                        kv,
                        eviction=sequence.eviction,
                        capture=capture,
                        arrival=arrival,
                        progress=progress,
                    )
                )
            except SegmentLost:
                continue

    def _arrival(self, sequence: Sequence, layer: int, crowded: bool) -> Steps[None]:
        """Until `layer` of every segment that this run counts on is there. Raises SegmentLost."""
        assert sequence.layout is not None
        for load, segment in zip(sequence.segments, sequence.layout.segments, strict=False):
            if load is None or segment.cold:
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
                pause = self._think_again(sequence, layer, crowded)
                if load.usable:
                    yield self.loader.streams.within(part, pause)

    def _think_again(self, sequence: Sequence, layer: int, crowded: bool) -> float:
        """The prompt has to wait: give up the loads that take longer than computing them, if that
        was not decided just now. Seconds after which to think again."""
        planner, progress = self.planner, sequence.progress
        assert planner is not None and progress is not None
        now, pause = time.monotonic(), planner.look_again_s(self._prompt(sequence, []))
        if now < sequence.decided_at + pause:
            return sequence.decided_at + pause - now
        sequence.decided_at = now
        if not planner.compute.measured and progress.flops is not None:
            planner.compute.add(progress.flops.total, sequence.computed_s)
        loads = awaited(sequence)
        begun = layer > 0 and progress.layer >= sequence.fusion.full_layers > 0
        prompt = replace(self._prompt(sequence, loads), begun=begun, crowded=crowded)
        for number in planner.recompute(prompt, [expected(load) for load in loads]):
            loads[number].compute(LATE)
            planner.count("late")
        return pause

    def _prompt(self, sequence: Sequence, loads: list[SegmentLoad]) -> Prompt:
        return prompt_of(sequence, loads, self.loader.streams.bytes_left())

    def _stored(self, sequence: Sequence, segment: int) -> CachedSegment | None:
        load = sequence.segments[segment] if sequence.segments else None
        if load is None:
            return sequence.chunk(segment)
        if not load.usable:
            return None
        assert load.stream is not None
        return load.stream.chunk or load.stream

    def _layout(self, sequence: Sequence) -> PromptLayout:
        request = sequence.request
        count = len(sequence.addresses)
        return PromptLayout.of(
            request.system,
            [d.ids for d in request.documents],
            request.question,
            cold=[self._stored(sequence, i) is None for i in range(count)],
            offset=len(self.addressing.prefix(request.prefix_mode, request.system)),
            device=self.adapter.device,
        )

    def _account_for_loading(self, sequence: Sequence) -> None:
        loads = [load.result().seconds for load in sequence.loads if load is not None]
        loads += [
            load.stream.seconds
            for load in sequence.segments
            if load is not None and load.stream is not None and load.stream.done
        ]
        sequence.close_stage("queue")
        # Loading overlaps waiting; what remains of the wait is the queue's.
        sequence.stages["load"] = min(max(loads, default=0.0), sequence.stages["queue"])
        sequence.stages["queue"] -= sequence.stages["load"]
