"""Ends sequences: gives back what they hold, and says how they ended."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from service.errors import KvstitchError
from service.messages.replies import Done, Failed, Reply
from service.worker.engine.scheduler import Scheduler
from service.worker.loading.precompute_queue import PrecomputeQueue
from service.worker.loading.prompt_loads import PromptLoads
from service.worker.prefix_cache.in_pool import PrefixCache
from service.worker.sequences.report import report
from service.worker.sequences.reuse import cached_prompt
from service.worker.sequences.sequence import EngineSequence

log = logging.getLogger("kvstitch.engine")


@dataclass(frozen=True)
class Endings:
    """Ends the sequences of one engine."""

    scheduler: Scheduler
    loads: PromptLoads
    prefix_cache: PrefixCache
    precompute_queue: PrecomputeQueue
    replies: list[Reply]

    def finish(self, sequence: EngineSequence, reason: str) -> None:
        """End a sequence whose answer is complete, or that was stopped."""
        if "first_token" in sequence.clock.stages:
            sequence.clock.close("decode")
        cached = cached_prompt(sequence) if self.prefix_cache.on else None
        if cached is not None:
            self.prefix_cache.keep(cached)
            sequence.kv = None
        self._release(sequence)
        self.precompute_queue.add_missed(sequence.loads.segments)
        self.replies.append(Done(sequence.id, reason, report(sequence)))

    def fail(self, sequence: EngineSequence, error: Exception) -> None:
        """End a sequence that cannot be answered."""
        if not isinstance(error, KvstitchError):
            log.error("request %s failed", sequence.id, exc_info=error)
        self._release(sequence)
        self.replies.append(Failed.of(sequence.id, error))

    def _release(self, sequence: EngineSequence) -> None:
        self.scheduler.remove(sequence)
        self.loads.stop(sequence.loads)
        sequence.release()
