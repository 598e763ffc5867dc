"""Reads what a prompt needs from the store, gives up what takes longer than computing it, as the
planner decides, and computes chunks by themselves that are missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ComputedChunk
from kvstitch.service.worker.forward.prefill import Progress
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.loading.load_plan import (
    PromptToLoad,
    found_segments,
    plan_loads,
    waiting_prompt,
)
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.loading.planner import FASTER, LATE, WHOLE, Planner
from kvstitch.service.worker.loading.precompute_queue import PrecomputeQueue
from kvstitch.service.worker.loading.segment_load import RECOMPUTE, Load, Loads, SegmentLoad
from kvstitch.service.worker.methods.bases.fusion import PartialMethod, Reads
from kvstitch.service.worker.methods.layer_view import ChunkExtra
from kvstitch.service.worker.steps import Steps, Within


class SegmentLost(Exception):
    """Stored KV that a running prefill needs will not arrive."""


@dataclass(frozen=True)
class Waiting:
    prompt: PromptToLoad
    loads: Loads
    layout: PromptLayout  # says which segments the prefill computes
    progress: Progress
    computed_s: Callable[[], float]  # returns the seconds of computing so far
    crowded: bool  # whether other requests decode meanwhile, which slows prefill


@dataclass(frozen=True)
class PromptLoads:
    """The loads of one engine's prompts."""

    loader: Loader
    planner: Planner | None = None  # None to load everything that is stored, however long it takes

    def start(self, prompt: PromptToLoad, loads: Loads) -> None:
        """Start to read what the prompt's method reads."""
        method, loader = prompt.method, self.loader
        if method.reads is Reads.NOTHING:
            return
        if isinstance(method, PartialMethod):
            loads.segments = method.start_loads(prompt.addresses, loader)
            return
        loads.segments = [None if a is None else SegmentLoad(address=a) for a in prompt.addresses]
        wanted = [address for address in prompt.addresses if address is not None]
        loads.found = loader.find(wanted, lambda tiers: self._found(prompt, loads, tiers))

    def stop(self, loads: Loads) -> None:
        """End a prompt's loads, after its prefill or when it is dropped."""
        loads.ended = True
        for load in loads.segments:
            stream = load.settle() if load is not None else None
            if stream is not None:
                self.loader.leave(stream)

    def _found(self, prompt: PromptToLoad, loads: Loads, tiers: dict[str, str]) -> None:
        """Start the loads that are worth it, on a loader thread."""
        plan = plan_loads(
            prompt, found_segments(prompt, tiers), self.planner, self.loader.bytes_left()
        )
        for segment in plan.recompute:
            load = loads.segments[segment.number]
            assert isinstance(load, SegmentLoad)
            load.compute(WHOLE if plan.whole else FASTER)
        loads.whole = plan.whole
        if self.planner is not None and (plan.loads or plan.recompute):
            # Before any prefill was measured, this decision is only a guess, and `_decide_again`
            # makes it again as soon as this prompt has computed something.
            if self.planner.compute.measured:
                loads.decided_at = time.monotonic()
            # One segment of a tier that was not read for long is read: without that, the planner
            # would never notice that the tier has become faster.
            stale = (s.address for s in plan.recompute if self.planner.tiers.stale(s.tier))
            self.loader.prefetch(address for address in [next(stale, None)] if address is not None)
        for load in loads.segments:
            if isinstance(load, SegmentLoad) and load.plan == "load":
                tier = tiers.get(load.address.key)
                load.stream = self.loader.join(load.address, tier)
        if loads.ended:  # during this call, so nothing else will leave the streams
            self.stop(loads)

    # -- while its prefill runs -------------------------------------------------------------------

    def ratio(self, prompt: PromptToLoad, loads: Loads) -> float | None:
        """Return the repair ratio for `ratio: auto`; None: the method's own."""
        if self.planner is None:
            return None
        bytes_left = self.loader.bytes_left()
        return self.planner.ratio(
            waiting_prompt(prompt, loads, bytes_left, under_way=loads.under_way)
        )

    def arrival(self, waiting: Waiting, layer: int) -> Steps[None]:
        """Wait until `layer` of every cached segment of a prefill has arrived; raises
        SegmentLost."""
        for load, segment in zip(waiting.loads.segments, waiting.layout.segments, strict=False):
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
                pause = self._decide_again(self.planner, waiting, layer)
                if load.usable:
                    yield Within(part, time.monotonic() + pause)

    def _decide_again(self, planner: Planner, waiting: Waiting, layer: int) -> float:
        """Give up the loads that take longer than computing their segments; return the seconds
        until the next decision."""
        prompt, loads, progress = waiting.prompt, waiting.loads, waiting.progress
        bytes_left = self.loader.bytes_left()
        now = time.monotonic()
        pause = planner.look_again_s(waiting_prompt(prompt, loads, bytes_left))
        if now < loads.decided_at + pause:
            return loads.decided_at + pause - now
        loads.decided_at = now
        if not planner.compute.measured and progress.flops is not None:
            planner.compute.add(progress.flops.total, waiting.computed_s())
        under_way = loads.under_way
        late = planner.recompute(
            waiting_prompt(
                prompt,
                loads,
                bytes_left,
                under_way=under_way,
                crowded=waiting.crowded,
                exact_layers_done=progress.layer if layer > 0 else 0,
            )
        )
        for number in late:
            under_way[number].compute(LATE)
            planner.count("late")
        return pause


@dataclass(frozen=True)
class MissingChunks:
    """Computes the missing chunks of one engine's prompts by themselves, as precompute does, and
    stores them, for requests with `cold: as_stored` and for methods that read a part, which
    can place nothing else."""

    chunks: ChunkPrefill
    loader: Loader
    queue: PrecomputeQueue

    def compute(
        self, loads: Loads, load: Load, *, extra: ChunkExtra | None = None
    ) -> Steps[ComputedChunk]:
        """Compute the chunk of a load, and what is needed beside it, and store what is not stored
        already."""
        address = load.address
        computed = yield from self.chunks.compute(address, extra=extra)
        load.computed_alone = True
        loads.chunk_flops += computed.flops
        # One that the planner would not wait for is only slow to read.
        if load.plan != RECOMPUTE:
            self.queue.store(address, computed)
        return computed

    def supply(self, loads: Loads) -> Steps[None]:
        """Give every whole segment of a prompt that has no KV the chunk it misses."""
        whole = [load for load in loads.segments if isinstance(load, SegmentLoad)]
        for load in whole:
            if load.stored is None and not self._take_twin(load, whole):
                yield from self._look_again(load)
            if load.stored is None:
                load.computed = (yield from self.compute(loads, load)).chunk

    def written_meanwhile(self, load: Load) -> Steps[bool]:
        """Wait for the write, if there is one. What was damaged or is too slow does not count."""
        write = self.queue.write_of(load.address.key)
        if write is None or not load.missed or load.so_far().problems:
            return False
        while not write.done():
            yield write
        return True

    def _look_again(self, load: SegmentLoad) -> Steps[None]:
        if not (yield from self.written_meanwhile(load)):
            return
        tiers: dict[str, str] = {}
        found = self.loader.find([load.address], tiers.update)
        while not found.done():
            yield found
        tier = tiers.get(load.address.key)
        if tier is not None:
            if load.stream is not None:
                self.loader.leave(load.stream)
            load.stream = self.loader.join(load.address, tier)

    def _take_twin(self, load: SegmentLoad, loads: Sequence[SegmentLoad]) -> bool:
        """Return whether the same document stands in the prompt twice and was computed already."""
        twins = (other for other in loads if other.address.key == load.address.key)
        twin = next((other for other in twins if other.computed is not None), None)
        if twin is None:
            return False
        load.computed, load.computed_alone = twin.computed, True
        return True
