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
from service.worker.sequences.load_plan import LoadPlan
from service.worker.sequences.reuse import new_prompt
from service.worker.sequences.sequence import EngineSequence

LATE_S = 0.1
"""No read is late before this many seconds."""
SSD = "ssd"
"""The tier by which reads are estimated before there was one: it is on the same disk."""


@dataclass(frozen=True)
class ReadablePrompt:
    """A prompt on disk that a request could continue.

    Attributes:
        prompt: the prompt on disk.
        tokens: how many of its tokens the request can take.
        read_s: expected seconds of reading it.
        total_s: expected seconds to the first token then.
    """

    prompt: PromptOnDisk
    tokens: int
    read_s: float
    total_s: float


class PrefixReader:
    """Starts the reads of prompts on disk.

    Args:
        planner: estimates how long reads and prefills take; if it does not decide, whatever is on
            disk is read.
    """

    def __init__(self, decoder: DecoderModel, store: DiskPrefixCache, planner: Planner) -> None:
        self.store = store
        self._decoder = decoder
        self._planner = planner

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
        if self._planner.deciding and total_s >= otherwise_s:
            return None
        return ReadablePrompt(stored, tokens, read_s, total_s)

    def forecast_s(self, plan: LoadPlan) -> float:
        """Return the expected seconds to the first token where chunks are loaded by this plan."""
        return self._planner.forecast(plan.prompt)[0]

    def worth(self, prompt: PromptRecord) -> bool:
        """Return whether reading a prompt is expected to be faster than a full prefill of it."""
        if not self._planner.deciding:
            return True
        flops = full_prefill(self._decoder, len(prompt.tokens))
        return self._read_s(prompt) < self._planner.compute_s(flops)

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
        sequence.restoring = Future()
        read = _Read(self.store, self._planner, sequence, chosen.prompt, otherwise)
        if self._planner.deciding:
            self.store.after(chosen.read_s + max(LATE_S, chosen.total_s), read.give_up)
        self.store.run(read.run)
        return True

    def _read_s(self, prompt: PromptRecord) -> float:
        tiers, name = self._planner.tiers, self.store.name
        tier = name if tiers.measured(name) or not tiers.measured(SSD) else SSD
        return tiers.seconds(tier, self.store.bytes_of(prompt))

    def _compute_s(self, prompt: NewPrompt, taken: int) -> float:
        """Return the seconds of computing everything but the first `taken` tokens."""
        rest = len(prompt.tokens) - taken
        if not rest:
            return 0.0
        return self._planner.compute_s(full_prefill(self._decoder, rest, behind=taken))


class _Read:
    """The read of a prompt on disk for one request, which waits for it until it is late."""

    def __init__(
        self,
        store: DiskPrefixCache,
        planner: Planner,
        sequence: EngineSequence,
        prompt: PromptOnDisk,
        otherwise: Callable[[], None],
    ) -> None:
        self._store = store
        self._planner = planner
        self._sequence = sequence
        self._prompt = prompt
        self._otherwise = otherwise
        self._lock = threading.Lock()
        self._ended = False

    def run(self) -> None:
        """Read the prompt."""
        started = time.monotonic()
        cached: CachedPrompt | None = None
        try:
            cached = self._store.read(self._prompt)
        finally:
            ended = time.monotonic()
            if cached is not None:
                nbytes = self._store.bytes_of(cached)
                self._planner.tiers.add(self._store.name, nbytes, started, ended)
            self._end(cached, ended - started)

    def give_up(self) -> None:
        """Let the request go on without the prompt, if that has not been read yet."""
        self._end(None, 0.0)

    def _end(self, cached: CachedPrompt | None, seconds: float) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        sequence = self._sequence
        assert sequence.restoring is not None
        try:
            if cached is None:
                self._otherwise()
            else:
                sequence.restored, sequence.restored_s = cached, seconds
        finally:
            sequence.restoring.set_result(None)
            self._store.on_ready()
