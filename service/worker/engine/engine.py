"""The engine: takes requests, runs one step at a time, and returns replies.

It has no sockets and no threads of its own (the loader has threads). A step starts a prefill, runs
one decode step for all running sequences, then some steps of the prefill, and, if there is time,
idle work. `kvstitch.service.worker.engine.scheduler` decides how much of each.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection
from dataclasses import dataclass

import torch

from kvstitch.service.errors import InvalidRequest, InvalidSetting, KvstitchError
from kvstitch.service.messages.replies import Reply
from kvstitch.service.messages.requests import Generate
from kvstitch.service.worker.engine.answering import Answering, Endings
from kvstitch.service.worker.engine.prefilling import Prefilling
from kvstitch.service.worker.engine.scheduler import IdleWork, Scheduler, StepBudget
from kvstitch.service.worker.forward.attention_pass import Recordings
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill
from kvstitch.service.worker.forward.decode import BatchDecoder
from kvstitch.service.worker.gate.correctness_gate import Gate, GateSettings
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.loading.cost_model import Line
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.loading.planner import Planner, PrefillTimer
from kvstitch.service.worker.loading.precompute_queue import PrecomputeQueue
from kvstitch.service.worker.loading.prompt_loads import MissingChunks, PromptLoads
from kvstitch.service.worker.methods.registry import chunk_extra
from kvstitch.service.worker.model.addressing import Addressing
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch.service.worker.prefix_cache import PrefixCache, holds
from kvstitch.service.worker.sampling.grammar import Grammars
from kvstitch.service.worker.sequences.admission import Admission
from kvstitch.service.worker.sequences.hand_over import HandOver
from kvstitch.service.worker.sequences.prefill_launcher import PrefillLauncher
from kvstitch.service.worker.sequences.report import Explainer
from kvstitch.service.worker.sequences.reuse import find_history, find_reuse, seen_by
from kvstitch.service.worker.sequences.sequence import prompt_ids

log = logging.getLogger("kvstitch.engine")

# Assumed seconds of a decode step, and of every sequence in it, before there was one.
UNKNOWN_DECODE = (1e-2, 1e-3)
COMPILING_PAUSE_S = 0.001  # where there is nothing to do but to wait for grammars


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How much an engine takes on, and what it does beside answering."""

    pool_tokens: int  # size of the KV pool in tokens
    max_running: int = 32  # most sequences that prefill or decode at the same time
    max_waiting: int = 256  # most sequences that wait for their start
    # whether documents are computed that would take longer to load; if not, everything that is
    # stored is loaded. Chunks in the memory tier are always used
    planner: bool = True
    # whether what a method needs beside chunks is computed with each; else when it asks
    sketches: bool = False
    # whether answered prompts are kept for requests that begin with them
    prefix_cache: bool = False
    draft_tokens: int = 0  # most answer tokens that are drafted from the prompt in a decode step
    # how answers are compared with those of full prefill; None for no comparison
    checks: GateSettings | None = None
    # whether layers are recorded and replayed, where the device's kernels can
    prefill_graphs: bool = True
    hand_over: HandOver | None = None  # takes KV to an engine that decodes instead; None: none does


class Engine:
    """Serves one model with one KV pool and one store. Not thread-safe: call it from one thread."""

    def __init__(
        self,
        decoder: DecoderModel,
        addressing: Addressing,
        loader: Loader,
        options: EngineOptions,
        *,
        facts: ModelFacts | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        if options.hand_over and (decoder.mixers or decoder.values_are_keys):
            raise InvalidSetting(
                f"models of the family {decoder.family} are not handed over to another engine: "
                "they do not keep a key and a value for each token and head; leave engine out"
            )
        self.decoder = decoder
        self.store = loader.store
        self.loader = loader
        facts = facts or decoder.facts
        self._replies: list[Reply] = []
        self._step_budget = StepBudget()
        # seconds of a decode step by the number of its sequences
        self.decode_times = Line(*UNKNOWN_DECODE)
        self.scheduler = Scheduler(max_running=options.max_running, max_waiting=options.max_waiting)
        self.pool = KVPool(
            decoder.layers,
            decoder.kv_heads,
            decoder.head_dim,
            options.pool_tokens,
            dtype=decoder.dtype,
            device=decoder.device,
        )
        self.prefix_cache = PrefixCache(self.pool, on=options.prefix_cache)

        # How long things take, also where nothing is loaded or computed because of that.
        self.planner = Planner(decoder, loader.estimates, deciding=options.planner)

        # Chunks that are computed by themselves, and prompts that are computed with chunks.
        chunks = ChunkPrefill(decoder, loader.load_chunk)
        extra = chunk_extra() if options.sketches else None
        self.precompute_queue = PrecomputeQueue(chunks, loader, extra=extra)
        chunks.write = self.precompute_queue.store
        missing = MissingChunks(chunks, loader, self.precompute_queue)
        self._loads = PromptLoads(loader, self.planner if options.planner else None)
        recordings: Recordings | None = None
        if options.prefill_graphs and not (decoder.mixers or decoder.carried):
            recordings = kernels_of(decoder.device).recordings(decoder, self.pool)
        launcher = PrefillLauncher(decoder, facts, self._loads, missing, recordings)

        # What spare time is for.
        self.gate: Gate | None = None
        if options.checks is not None:
            self.gate = Gate(options.checks, launcher, self.pool, self.precompute_queue)
        timer = PrefillTimer(decoder, self.planner.times)
        self.idle_work = IdleWork(self.precompute_queue, self.gate, recordings, timer)

        # The way of a request: admitted (or explained), prefilled, answered, ended.
        self.admission = Admission(
            decoder,
            addressing,
            facts,
            options.pool_tokens,
            replace=self.gate.replacement if self.gate else None,
            grammars=grammars,
            hands_over=options.hand_over is not None,
        )
        self._explainer = Explainer(
            decoder, self.admission, loader, self.planner, prefix_cache=self.prefix_cache
        )
        self._endings = Endings(
            self.scheduler, self._loads, self.prefix_cache, self.precompute_queue, self._replies
        )
        batches = BatchDecoder(decoder, self.pool)
        # A state cannot be taken back where a drafted token is not sampled.
        drafts = 0 if decoder.mixers else options.draft_tokens
        self.answering = Answering(batches, launcher, self._endings, self._replies, drafts)
        self.prefilling = Prefilling(
            self.scheduler,
            launcher,
            self.pool,
            self.prefix_cache,
            planner=self.planner,
            timer=timer,
            gate=self.gate,
            answering=self.answering,
            endings=self._endings,
            hand_over=options.hand_over,
        )

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute until a request or a load arrives."""
        return not self._busy and self.idle_work.idle and not self._compiling

    @property
    def idle_s(self) -> float:
        """How long an idle engine may wait at most; infinite: until something arrives."""
        until = min((s.blocked_until for s in self.scheduler.prefilling), default=math.inf)
        return max(0.0, until - time.monotonic())

    @property
    def pool_free_share(self) -> float:
        """Share of the KV pool that a sequence could get, 0 to 1. For any thread."""
        return min(1.0, self.pool.free_share + self.prefix_cache.share)

    @property
    def _busy(self) -> bool:
        """Whether some request can be worked on now, and does not only wait for its chunks."""
        scheduler = self.scheduler
        if scheduler.running or any(s.abort_reason for s in scheduler.active):
            return True
        return self.prefilling.can_go_on

    @property
    def _compiling(self) -> bool:
        """Whether some request waits for its grammar."""
        return any(sequence.sampler.waits for sequence in self.scheduler.waiting)

    # -- requests ---------------------------------------------------------------------------------

    def submit(self, request: Generate, arrived: float | None = None) -> None:
        """Take a request, which will end in exactly one Done or Failed.

        Raises:
            KvstitchError: it can never be answered, or the queue is full.
        """
        sequence = self.admission.sequence(request, arrived or time.monotonic())
        sequence.reuse = find_reuse(self.prefix_cache, sequence)
        if sequence.reuse is None:
            sequence.history = find_history(self.prefix_cache, sequence)
        self.scheduler.add(sequence)
        if sequence.reuse is None:
            self._loads.start(sequence.to_load, sequence.loads)

    def explain(self, request: Generate) -> None:
        """Start a forecast of what the request would cost; an `Explained` or `Failed` will come."""
        self._explainer.begin(request)

    def abort(self, request_id: str, reason: str) -> None:
        """Stop a request before its next step; unknown ids (already finished) are ignored."""
        sequence = self.scheduler.find(request_id)
        if sequence is not None:
            sequence.abort_reason = reason

    def forget(self, keys: Collection[str], texts: Collection[tuple[int, ...]]) -> None:
        """Drop everything that holds deleted text, before its chunks are purged: by the keys
        under which these may be stored, and by their token ids."""
        self.precompute_queue.forget(keys, texts)
        if self.gate is not None:
            self.gate.forget(keys)
        self.prefix_cache.forget(texts)
        for sequence in self.scheduler.active:
            read = (prompt_ids(sequence.asked.request), *seen_by(sequence))
            sequence.deleted |= any(holds(tokens, ids) for tokens in read for ids in texts)

    def forget_all(self) -> None:
        """Drop all that may hold deleted text, but for what is stored; requests that are being
        answered end as they would."""
        self.precompute_queue.forget_all()
        if self.gate is not None:
            self.gate.forget(None)
        self.prefix_cache.forget_all()
        for sequence in self.scheduler.active:
            sequence.deleted = True

    def give_back_waiting(self, error: KvstitchError) -> None:
        """End every request that has not begun with this error."""
        for sequence in list(self.scheduler.waiting):
            self._endings.fail(sequence, error)

    # -- the loop ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Reply]:
        """Do one round of work and return the replies since the last call; a fault in one
        sequence ends only that sequence."""
        for sequence in self.scheduler.active:
            if sequence.abort_reason:
                self._endings.finish(sequence, sequence.abort_reason)
        if self._compiling:
            self._look_at_grammars()
        self.prefilling.start_next()
        self._decode()
        self.prefilling.advance(self._step_budget)
        if not self.idle_work.idle and (self._step_budget.idle_work_is_due or not self._busy):
            started = time.monotonic()
            self.idle_work.advance()
            self._step_budget.idle_work_stepped(time.monotonic() - started)
        replies = [
            *self._replies,
            *self.precompute_queue.finished(),
            *self._explainer.finished(crowded=bool(self.scheduler.running)),
        ]
        self._replies.clear()
        return replies

    def _look_at_grammars(self) -> None:
        """End the waiting sequences whose grammars cannot be compiled."""
        for sequence in list(self.scheduler.waiting):
            try:
                sequence.sampler.ready()
            except InvalidRequest as error:
                self._endings.fail(sequence, error)
        if self._compiling and not self._busy and self.idle_work.idle:
            time.sleep(COMPILING_PAUSE_S)

    def _decode(self) -> None:
        running = list(self.scheduler.running)
        if not running:
            self._step_budget.decoded(0.0)
            return
        started = time.monotonic()
        try:
            stepped = self.answering.step(running)
        except Exception as error:
            for sequence in running:
                self._endings.fail(sequence, error)
            return
        seconds = time.monotonic() - started
        self._step_budget.decoded(seconds)
        if stepped:
            self.decode_times.add(stepped, seconds)
