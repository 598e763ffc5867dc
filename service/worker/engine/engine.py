"""The engine: takes requests, runs one step at a time, and returns replies.

It has no sockets and no threads of its own (the loader has threads). A step starts a prefill, runs
one decode step for all running sequences, then some steps of the prefill, and, if there is time,
idle work. `service.worker.engine.scheduler` decides how much of each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

import torch

from kvstore import TieredStore
from service.errors import KvstitchError
from service.messages.replies import Done, Failed, Reply
from service.messages.requests import Generate
from service.worker.engine.answering import Answering
from service.worker.engine.explainer import Explainer
from service.worker.engine.idle_work import IdleWork
from service.worker.engine.scheduler import Scheduler, StepBudget
from service.worker.forward.chunk_prefill import ChunkPrefill
from service.worker.forward.evict import evict
from service.worker.gate.correctness_gate import Gate, GateSettings
from service.worker.kv.pool import KVPool
from service.worker.loading.loader import Loader
from service.worker.loading.precompute_queue import PrecomputeQueue
from service.worker.loading.segment_load import PartialLoad
from service.worker.methods.layer_view import PrefillResult
from service.worker.model.addressing import Addressing
from service.worker.model.decoder import DecoderModel
from service.worker.model.model_facts import ModelFacts
from service.worker.planner.estimates import Line
from service.worker.planner.planner import Planner
from service.worker.prefix_cache.in_pool import PromptsInPool
from service.worker.prefix_cache.on_disk import PromptsOnDisk
from service.worker.prefix_cache.prompts import holds
from service.worker.prefix_cache.writer import PromptWriter
from service.worker.sampling.grammar import Grammars
from service.worker.sequences.admission import Admission
from service.worker.sequences.missing_chunks import MissingChunks
from service.worker.sequences.prefill_launcher import PrefillLauncher
from service.worker.sequences.prompt_reader import PromptReader
from service.worker.sequences.report import report
from service.worker.sequences.reuse import cached_prompt, find_reuse
from service.worker.sequences.sequence import EngineSequence, prompt_tokens

log = logging.getLogger("kvstitch.engine")

# Assumed seconds of a decode step, and of every sequence in it, before there was one.
UNKNOWN_DECODE = (1e-2, 1e-3)


class Engine:
    """Serves one model with one KV pool and one store. Not thread-safe: call it from one thread.

    Attributes:
        estimator: estimates of read and prefill times, also where nothing is planned by them.
        decode_times: seconds of a decode step by the number of its sequences.

    Args:
        pool_tokens: size of the KV pool in tokens.
        facts: sizes and calibration of the model; by default its sizes without calibration.
        max_running: most sequences that prefill or decode at the same time.
        max_waiting: most sequences that wait for their start.
        planner: whether documents are computed that would take longer to load; if not, everything
            that is stored is loaded. Chunks in the memory tier are always used.
        sketches: whether a sketch is computed with every chunk, for SamKV; else when it asks.
        prefix_cache: whether answered prompts are kept for requests that begin with them.
        prompts: where prompts are stored that are asked more than once; None: nowhere.
        draft_tokens: most answer tokens that are drafted from the prompt in a decode step.
        checks: how answers are compared with those of full prefill; None for no comparison.
        make_pool: makes the KV pool.
        grammars: compiles what answers must match; None: no request may ask for that.
    """

    def __init__(
        self,
        decoder: DecoderModel,
        addressing: Addressing,
        store: TieredStore,
        loader: Loader,
        *,
        pool_tokens: int,
        facts: ModelFacts | None = None,
        max_running: int = 32,
        max_waiting: int = 256,
        planner: bool = True,
        sketches: bool = False,
        prefix_cache: bool = False,
        prompts: PromptsOnDisk | None = None,
        draft_tokens: int = 0,
        checks: GateSettings | None = None,
        grammars: Grammars | None = None,
        make_pool: Callable[..., KVPool] = KVPool,
    ) -> None:
        self._decoder = decoder
        self._facts = facts or ModelFacts(decoder.layers, decoder.heads, decoder.kv_heads)
        self.store = store
        self.streams = loader.streams
        self.estimator = Planner(decoder, loader.streams.estimates)
        self.planner = self.estimator if planner else None
        chunks = ChunkPrefill(decoder, loader.load_chunk)
        self.precompute_queue = PrecomputeQueue(chunks, store, loader, sketches=sketches)
        chunks.write = self.precompute_queue.store
        missing = MissingChunks(chunks, loader, self.precompute_queue)
        self.prompts_on_disk = prompts
        reader = (
            PromptReader(decoder, prompts, self.estimator, deciding=planner) if prompts else None
        )
        self._launcher = PrefillLauncher(
            decoder, self._facts, addressing, loader, missing, self.planner, reader
        )
        self.pool = make_pool(
            decoder.layers,
            decoder.own_kv_heads,
            decoder.head_dim,
            pool_tokens,
            dtype=decoder.dtype,
            device=decoder.device,
        )
        self.prompts_in_pool = PromptsInPool(self.pool, on=prefix_cache, stores=prompts is not None)
        self.answering = Answering(
            decoder,
            self.pool,
            draft_tokens=draft_tokens,
            send=lambda token: self._replies.append(token),
            finish=self._finish,
            fail=self._fail,
        )
        self.gate = (
            Gate.of(checks, self._launcher, self.pool, self.precompute_queue) if checks else None
        )
        writer = (
            PromptWriter(self.prompts_in_pool, prompts, reader.worth)
            if prompts and reader
            else None
        )
        self.idle_work = IdleWork(self.precompute_queue, self.gate, writer)
        self.admission = Admission(
            decoder,
            addressing,
            self._facts,
            pool_tokens=pool_tokens,
            replace=self.gate.replacement if self.gate else None,
            grammars=grammars,
        )
        self._explainer = Explainer(
            decoder,
            self.admission,
            loader.streams,
            self.estimator,
            deciding=planner,
            in_pool=self.prompts_in_pool,
            reader=reader,
        )
        self._replies: list[Reply] = []
        self._step_budget = StepBudget()
        self.decode_times = Line(*UNKNOWN_DECODE)
        self.scheduler = Scheduler(max_running=max_running, max_waiting=max_waiting)

    @property
    def decoder(self) -> DecoderModel:
        """The model."""
        return self._decoder

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute until a request or a load arrives."""
        return not self._busy and self.idle_work.idle

    @property
    def pool_free_share(self) -> float:
        """Share of the KV pool that a sequence could get, 0 to 1. For any thread."""
        return min(1.0, self.pool.free_share + self.prompts_in_pool.share)

    @property
    def _busy(self) -> bool:
        """Whether some request can be worked on now, and does not only wait for its chunks."""
        scheduler = self.scheduler
        if scheduler.running or any(s.abort_reason for s in scheduler.active):
            return True
        if any(not s.blocked for s in scheduler.prefilling):
            return True
        return scheduler.can_start(self._fits) is not None

    # -- requests ---------------------------------------------------------------------------------

    def submit(self, request: Generate, arrived: float | None = None) -> None:
        """Takes a request, which will end in exactly one Done or Failed.

        Raises:
            KvstitchError: it can never be answered, or the queue is full.
        """
        sequence = self.admission.sequence(request, arrived or time.monotonic())
        sequence.reuse = find_reuse(self.prompts_in_pool, sequence)
        self.scheduler.add(sequence)
        self._launcher.start_loading(sequence)

    def explain(self, request: Generate) -> None:
        """Starts a forecast of what the request would cost, which an `Explained` will hold.

        Raises:
            KvstitchError: the request can never be answered.
        """
        self._explainer.begin(request)

    def abort(self, request_id: str, reason: str) -> None:
        """Stops a request before its next step; unknown ids (already finished) are ignored."""
        sequence = self.scheduler.find(request_id)
        if sequence is not None:
            sequence.abort_reason = reason

    def forget(self, keys: Collection[str], texts: Collection[tuple[int, ...]]) -> bool:
        """Drops everything that holds deleted text, before its chunks are purged.

        Args:
            keys: under which the chunks may be stored.
            texts: their token ids.

        Returns:
            False if prompts on disk could not be deleted: ask again.
        """
        self.idle_work.forget(keys, texts)
        self.prompts_in_pool.forget(texts)
        for sequence in self.scheduler.active:
            tokens = prompt_tokens(sequence.request)
            sequence.deleted |= any(holds(tokens, ids) for ids in texts)
        return self.prompts_on_disk is None or bool(self.prompts_on_disk.forget(texts))

    def forget_all(self) -> None:
        """Drops everything that may hold deleted text, but for what is stored: it is not known what
        was deleted. Requests that are being answered end as they would."""
        self.idle_work.forget_all()
        self.prompts_in_pool.forget_all()
        for sequence in self.scheduler.active:
            sequence.deleted = True

    def give_back_waiting(self, error: KvstitchError) -> None:
        """Ends every request that has not begun with this error."""
        for sequence in list(self.scheduler.waiting):
            self._fail(sequence, error)

    # -- the loop ---------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Reply]:
        """Does one round of work; a fault in one sequence ends only that sequence.

        Returns:
            The replies since the last call.
        """
        self._drop_aborted()
        self._start_prefill()
        self._decode()
        self._advance_prefill()
        if not self.idle_work.idle and (self._step_budget.idle_work_is_due or not self._busy):
            self._advance_idle_work()
        self._replies.extend(self.precompute_queue.finished())
        self._replies.extend(self._explainer.finished(crowded=bool(self.scheduler.running)))
        replies, self._replies = self._replies, []
        return replies

    def _drop_aborted(self) -> None:
        for sequence in self.scheduler.active:
            if sequence.abort_reason:
                self._finish(sequence, sequence.abort_reason)

    def _start_prefill(self) -> None:
        sequence = self.scheduler.next_to_start(self._fits)
        if sequence is None:
            return
        try:
            # Since it arrived, others that begin alike may have been computed.
            found = find_reuse(self.prompts_in_pool, sequence, self.scheduler.running)
            if found is not None and (
                sequence.reuse is None or found.tokens > sequence.reuse.tokens
            ):
                self._launcher.drop_loads(sequence)
                sequence.reuse = found
            kv = self.pool.reserve(self._launcher.reserved_tokens(sequence))
            assert kv is not None, "the scheduler checked that it fits"
            self._launcher.launch(sequence, kv, crowded=bool(self.scheduler.running))
            self.prompts_in_pool.count(sequence.reuse)
        except Exception as error:
            self._fail(sequence, error)

    def _fits(self, sequence: EngineSequence) -> bool:
        """Whether it can start now. Makes room for it, if that helps."""
        needed = self._launcher.reserved_tokens(sequence)
        fits = self.pool.make_room(needed) or (
            self.gate is not None and self.gate.give_way() and self.pool.make_room(needed)
        )
        if sequence.reuse is not None and sequence.reuse.lost:
            sequence.reuse = find_reuse(self.prompts_in_pool, sequence)
            if sequence.reuse is None:
                self._launcher.start_loading(sequence)
        return fits and sequence.loaded

    def _advance_prefill(self) -> None:
        """Runs steps of the prefills that are not waiting.

        As many as the step budget allows; only one if no sequence decodes, so that aborts and new
        requests are noticed between steps.
        """
        while (sequence := self.scheduler.next_prefill) is not None and not sequence.blocked:
            assert sequence.steps is not None
            started = time.monotonic()
            sequence.waited()
            try:
                sequence.wait(next(sequence.steps))
            except StopIteration as end:
                self._first_token(sequence, end.value)
            except Exception as error:
                self._fail(sequence, error)
            seconds = time.monotonic() - started
            sequence.computed_s += seconds
            self._step_budget.prefilled(seconds)
            if not self.scheduler.running or not self._step_budget.prefill_goes_on:
                return

    def _first_token(self, sequence: EngineSequence, result: PrefillResult) -> None:
        assert sequence.kv is not None
        sequence.steps = None
        sequence.prefilled(result)
        sequence.kv.set_length(sequence.entries)
        for layer, rows in result.held.items():
            sequence.kv.remember(layer, [rows] * self._decoder.kv_heads, result.layout.tokens)
        sequence.clock.close("prefill")
        if sequence.reuse is not None:
            pass  # what was computed may be too little to tell how fast the device is
        elif self.planner is None:
            self.estimator.compute.add(sequence.flops, sequence.computed_s)
        else:
            plans = [load.plan for load in sequence.segments if load is not None]
            self.planner.finished(sequence.flops, sequence.computed_s, plans)
        self._launcher.stop_loading(sequence)
        try:
            self.scheduler.start_running(sequence)
            if self.gate is not None:
                self.gate.answered(sequence, result)
            if self.prompts_in_pool.on:
                sequence.logits = result.logits.clone()
            self.answering.first_token(sequence, result.logits)
            sequence.clock.close("first_token")
            if sequence in self.scheduler.running:
                self._evict(sequence, result)
        except Exception as error:
            self._fail(sequence, error)

    def _evict(self, sequence: EngineSequence, result: PrefillResult) -> None:
        kv, layers = sequence.kv, range(self._decoder.layers)
        assert kv is not None
        if sequence.eviction is not None:
            room = sequence.max_tokens - len(sequence.tokens) + 1
            sequence.coverage = evict(
                self._decoder,
                self._facts,
                kv,
                sequence.eviction,
                layout=result.layout,
                observed=result.observed,
                room=room,
                original_tokens=None if result.kept_ids is None else sequence.prompt_tokens,
                on_kept=None if sequence.token_trace is None else sequence.token_trace.kept,
            )
            sequence.clock.close("evict")
        sequence.kept_per_layer = [kv.kept_tokens(layer) for layer in layers]

    def _decode(self) -> None:
        running = list(self.scheduler.running)
        if not running:
            self._step_budget.decoded(0.0)
            return
        started = time.monotonic()
        try:
            self.answering.step(running)
        except Exception as error:
            for sequence in running:
                self._fail(sequence, error)
            return
        seconds = time.monotonic() - started
        self._step_budget.decoded(seconds)
        self.decode_times.add(len(running), seconds)

    def _finish(self, sequence: EngineSequence, reason: str) -> None:
        if "first_token" in sequence.clock.stages:
            sequence.clock.close("decode")
        cached = cached_prompt(sequence) if self.prompts_in_pool.on else None
        if cached is not None:
            self.prompts_in_pool.keep(cached)
            sequence.kv = None
        self._release(sequence)
        self._write_back(sequence)
        self._replies.append(Done(sequence.id, reason, report(sequence)))

    def _fail(self, sequence: EngineSequence, error: Exception) -> None:
        if not isinstance(error, KvstitchError):
            log.error("request %s failed", sequence.id, exc_info=error)
        self._release(sequence)
        self._replies.append(Failed.of(sequence.id, error))

    def _release(self, sequence: EngineSequence) -> None:
        self.scheduler.remove(sequence)
        self._launcher.stop_loading(sequence)
        if sequence.steps is not None:
            sequence.steps.close()
            sequence.steps = None
        if sequence.kv is not None:
            sequence.kv.release()
            sequence.kv = None

    def _write_back(self, sequence: EngineSequence) -> None:
        """Queues segments that should have been stored and were not, to be computed again."""
        for load in sequence.segments:
            if load is not None and load.missed:
                self.precompute_queue.add(load.address, sketch=isinstance(load, PartialLoad))

    def _advance_idle_work(self) -> None:
        started = time.monotonic()
        self.idle_work.advance()
        self._step_budget.idle_work_stepped(time.monotonic() - started)
