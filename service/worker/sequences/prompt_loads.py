"""Reads what a prompt needs from the store, and gives up what takes longer than computing it.

The reads start when it is known where the chunks are. Then, and whenever the prompt has to wait,
the planner decides which of them are worth it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from service.worker.loading.loader import Loader
from service.worker.loading.segment_load import PartialLoad, SegmentLoad
from service.worker.methods.bases.fusion import Reads
from service.worker.planner.planner import FASTER, LATE, WHOLE, Planner
from service.worker.sequences.load_plan import (
    found_segments,
    loads_under_way,
    plan_loads,
    waiting_prompt,
)
from service.worker.sequences.sequence import EngineSequence
from service.worker.steps import Steps


class SegmentLost(Exception):
    """Stored KV that a running prefill needs will not arrive."""


@dataclass(frozen=True)
class PromptLoads:
    """The loads of one engine's prompts.

    Attributes:
        planner: None to load everything that is stored, however long it takes.
    """

    loader: Loader
    planner: Planner | None = None

    def start(self, sequence: EngineSequence) -> None:
        """Start to read what the sequence's method reads; nothing if it continues a prompt."""
        reads, streams = sequence.fusion.reads, self.loader.streams
        if sequence.reuse is not None or reads is Reads.NOTHING:
            return
        system, *documents = sequence.asked.addresses
        if reads is Reads.PARTS:
            whole = None
            if system is not None:
                whole = SegmentLoad(address=system, stream=streams.join(system, None), plan="")
            parts = [
                None if address is None
                else PartialLoad(address=address, ends=self.loader.load_ends(address))
                for address in documents
            ]  # fmt: skip
            sequence.loads.segments = [whole, *parts]
            return
        sequence.loads.segments = [
            None if a is None else SegmentLoad(address=a) for a in sequence.asked.addresses
        ]
        wanted = [address for address in sequence.asked.addresses if address is not None]
        sequence.loads.found = streams.find(wanted, lambda tiers: self._found(sequence, tiers))

    def stop(self, sequence: EngineSequence) -> None:
        """End the sequence's loads, after its prefill or when it is dropped."""
        sequence.loads.ended = True
        for load in sequence.loads.segments:
            stream = load.settle() if load is not None else None
            if stream is not None:
                self.loader.streams.leave(stream)

    def drop(self, sequence: EngineSequence) -> None:
        """Forget the loads of a sequence that is `loaded` and needs none of them any more."""
        self.stop(sequence)
        sequence.loads.segments, sequence.loads.found = [], None

    def _found(self, sequence: EngineSequence, tiers: dict[str, str]) -> None:
        """Start the loads that are worth it, on a loader thread."""
        segments = found_segments(sequence, tiers)
        plan = plan_loads(sequence, segments, self.planner, self.loader.streams.bytes_left())
        for segment in plan.recompute:
            load = sequence.loads.segments[segment.number]
            assert isinstance(load, SegmentLoad)
            load.compute(WHOLE if plan.whole else FASTER)
        sequence.loads.whole = plan.whole
        if self.planner is not None and (plan.loads or plan.recompute):
            # Before any prefill was measured, this decision is only a guess, and `_decide_again`
            # makes it again as soon as this prompt has computed something.
            if self.planner.compute.measured:
                sequence.loads.decided_at = time.monotonic()
            # One segment of a tier that was not read for long is read: without that, the planner
            # would never notice that the tier has become faster.
            stale = (s.address for s in plan.recompute if self.planner.tiers.stale(s.tier))
            self.loader.prefetch(address for address in [next(stale, None)] if address is not None)
        for load in sequence.loads.segments:
            if isinstance(load, SegmentLoad) and load.plan == "load":
                tier = tiers.get(load.address.key)
                load.stream = self.loader.streams.join(load.address, tier)
        if sequence.loads.ended:  # during this call, so nothing else will leave the streams
            self.stop(sequence)

    # -- while its prefill runs -------------------------------------------------------------------

    def arrival(self, sequence: EngineSequence, layer: int, crowded: bool) -> Steps[None]:
        """Wait until `layer` of every cached segment of this prefill has arrived.

        Args:
            crowded: whether other requests decode meanwhile, which slows prefill.

        Raises:
            SegmentLost: one of them was lost or given up.
        """
        assert sequence.layout is not None
        for load, segment in zip(sequence.loads.segments, sequence.layout.segments, strict=False):
            if segment.uncached or not isinstance(load, SegmentLoad):
                continue
            if load.whole or load.computed is not None:
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
                pause = self._decide_again(self.planner, sequence, layer, crowded)
                if load.usable:
                    yield self.loader.streams.within(part, pause)

    def _decide_again(
        self, planner: Planner, sequence: EngineSequence, layer: int, crowded: bool
    ) -> float:
        """Give up the loads that take longer than computing their segments."""
        progress = sequence.prefill.progress
        assert progress is not None
        bytes_left = self.loader.streams.bytes_left()
        now = time.monotonic()
        pause = planner.look_again_s(waiting_prompt(sequence, [], bytes_left))
        if now < sequence.loads.decided_at + pause:
            return sequence.loads.decided_at + pause - now
        sequence.loads.decided_at = now
        if not planner.compute.measured and progress.flops is not None:
            planner.compute.add(progress.flops.total, sequence.prefill.computed_s)
        loads = loads_under_way(sequence)
        done = progress.layer if layer > 0 else 0
        prompt = waiting_prompt(
            sequence, loads, bytes_left, crowded=crowded, exact_layers_done=done
        )
        for number in planner.recompute(prompt):
            loads[number].compute(LATE)
            planner.count("late")
        return pause
