"""Computes the chunks that a prompt misses by themselves, as precompute does, and stores them:
its answer is the one that later requests get. Used for requests with `cold: as_stored`, and by
sparse methods, which can place nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.worker.forward.chunk_prefill import ChunkPrefill, ComputedChunk
from service.worker.loading.loader import Loader
from service.worker.loading.precompute_queue import PrecomputeQueue
from service.worker.loading.segment_load import RECOMPUTE, Load, Loads, PartialLoad, SegmentLoad
from service.worker.steps import Steps


@dataclass(frozen=True)
class MissingChunks:
    """Computes the missing chunks of one engine's prompts."""

    chunks: ChunkPrefill
    loader: Loader
    queue: PrecomputeQueue

    def compute(self, loads: Loads, load: Load, *, sketch: bool = False) -> Steps[ComputedChunk]:
        """Compute the chunk of a load, and its sketch if that is needed, and store what is not
        stored already."""
        address = load.address
        computed = yield from self.chunks.compute(address, sketch=sketch)
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

    def read_again(self, load: PartialLoad) -> Steps[None]:
        """Read a document that was missing, if another request has stored it meanwhile."""
        if (yield from self._written_meanwhile(load)):
            load.ends = self.loader.load_ends(load.address)
            while not load.ends.done():
                yield load.ends

    def _written_meanwhile(self, load: Load) -> Steps[bool]:
        """Wait for the write, if there is one. What was damaged or is too slow does not count."""
        write = self.queue.write_of(load.address.key)
        if write is None or not load.missed or load.so_far().problems:
            return False
        while not write.done():
            yield write
        return True

    def _look_again(self, load: SegmentLoad) -> Steps[None]:
        if not (yield from self._written_meanwhile(load)):
            return
        tiers: dict[str, str] = {}
        found = self.loader.streams.find([load.address], tiers.update)
        while not found.done():
            yield found
        tier = tiers.get(load.address.key)
        if tier is not None:
            if load.stream is not None:
                self.loader.streams.leave(load.stream)
            load.stream = self.loader.streams.join(load.address, tier)

    def _take_twin(self, load: SegmentLoad, loads: Sequence[SegmentLoad]) -> bool:
        """Return whether the same document stands in the prompt twice and was computed already."""
        twins = (other for other in loads if other.address.key == load.address.key)
        twin = next((other for other in twins if other.computed is not None), None)
        if twin is None:
            return False
        load.computed, load.computed_alone = twin.computed, True
        return True
