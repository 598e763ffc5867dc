"""Reads what a request continues from the prefix cache on disk, where that is faster.

The request waits for it as for its chunks, while others compute. If the prompt is damaged, gone or
late, the request is computed as if there were none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from service.worker.model.decoder import DecoderModel
from service.worker.model.flops import full_prefill
from service.worker.planner.planner import Planner
from service.worker.prefix_cache.on_disk import DiskPrefixCache, PromptOnDisk
from service.worker.prefix_cache.prompts import MIN_TOKENS, CachedPrompt, NewPrompt, PromptRecord
from service.worker.sequences.reuse import new_prompt
from service.worker.sequences.sequence import EngineSequence

LATE_S = 0.1
"""No read is late before this many seconds."""
SSD = "ssd"
"""The tier by which reads are estimated before there was one: it is on the same disk."""


@dataclass(frozen=True)
class ReadablePrompt:
    """A prompt on disk that a request could continue."""

    prompt: PromptOnDisk
    tokens: int
    read_s: float
    total_s: float


@dataclass(frozen=True)
class PrefixReader:
    """Starts the reads of prompts on disk.

    Attributes:
        planner: estimates how long reads and prefills take; if it does not decide, whatever is on
            disk is read.
    """

    decoder: DecoderModel
    store: DiskPrefixCache
    planner: Planner

    def choose(
        self, sequence: EngineSequence, otherwise_s: float | None = None
    ) -> ReadablePrompt | None:
        """Return the prompt on disk that a request should continue; None if there is none.

        Args:
            otherwise_s: expected seconds to its first token without; None: what a full prefill
                takes of it, or of what is not taken from the KV pool.
        """
        prompt = new_prompt(sequence)
        found = None if prompt is None else self.store.look_up(prompt)
        taken = 0 if sequence.reuse is None else sequence.reuse.tokens
        if prompt is None or found is None or found[1] < taken + MIN_TOKENS:
            return None
        stored, tokens = found
        read_s = self._read_s(stored)
        total_s = read_s + self._compute_s(prompt, tokens)
        if otherwise_s is None:
            otherwise_s = self._compute_s(prompt, taken)
        if self.planner.deciding and total_s >= otherwise_s:
            return None
        return ReadablePrompt(stored, tokens, read_s, total_s)

    def worth(self, prompt: PromptRecord) -> bool:
        """Return whether reading a prompt is expected to be faster than a full prefill of it."""
        if not self.planner.deciding:
            return True
        flops = full_prefill(self.decoder, len(prompt.tokens))
        return self._read_s(prompt) < self.planner.compute_s(flops)

    def begin(
        self,
        sequence: EngineSequence,
        otherwise: Callable[[], None],
        otherwise_s: float | None = None,
    ) -> bool:
        """Start to read the prompt on disk that a request should continue.

        Args:
            otherwise: called, on some thread, if it cannot be read after all.
            otherwise_s: as in `choose`.

        Returns:
            Whether there is one; if not, `otherwise` is not called.
        """
        chosen = self.choose(sequence, otherwise_s)
        if chosen is None or not self.store.reserve(chosen.prompt):
            return False
        restoring: Future[None] = Future()
        sequence.restoring = restoring
        ended = threading.Lock()  # taken by what ends the wait: the read, or that it is late

        def end(cached: CachedPrompt | None, seconds: float = 0.0) -> None:
            if not ended.acquire(blocking=False):
                return
            try:
                if cached is None:
                    otherwise()
                else:
                    sequence.restored, sequence.restored_s = cached, seconds
            finally:
                restoring.set_result(None)
                self.store.on_ready()

        def read() -> None:
            started = time.monotonic()
            cached: CachedPrompt | None = None
            try:
                cached = self.store.read(chosen.prompt)
            finally:
                now = time.monotonic()
                if cached is not None:
                    nbytes = self.store.bytes_of(cached)
                    self.planner.tiers.add(self.store.name, nbytes, started, now)
                end(cached, now - started)

        if self.planner.deciding:
            late_s = chosen.read_s + max(LATE_S, chosen.total_s)
            self.store.after(late_s, lambda: end(None))
        self.store.run(read)
        return True

    def _read_s(self, prompt: PromptRecord) -> float:
        tiers, name = self.planner.tiers, self.store.name
        tier = name if tiers.measured(name) or not tiers.measured(SSD) else SSD
        return tiers.seconds(tier, self.store.bytes_of(prompt))

    def _compute_s(self, prompt: NewPrompt, taken: int) -> float:
        """Return the seconds of computing everything but the first `taken` tokens."""
        rest = len(prompt.tokens) - taken
        if not rest:
            return 0.0
        return self.planner.compute_s(full_prefill(self.decoder, rest, behind=taken))
