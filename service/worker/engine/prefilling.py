"""Starts prefills, runs their steps, and hands their sequences on with the first token."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kvstitch.service.messages.replies import HandedOver
from kvstitch.service.worker.engine.answering import Answering, Endings
from kvstitch.service.worker.engine.scheduler import Scheduler, StepBudget
from kvstitch.service.worker.gate.correctness_gate import Gate
from kvstitch.service.worker.kv.pool import KVPool
from kvstitch.service.worker.loading.load_plan import waiting_prompt
from kvstitch.service.worker.loading.planner import Planner, PrefillTimer
from kvstitch.service.worker.loading.segment_load import Loads
from kvstitch.service.worker.methods.bases.eviction import evict
from kvstitch.service.worker.methods.fusion.vanilla import Method as FullPrefill
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.prefix_cache import PrefixCache
from kvstitch.service.worker.sequences.exact import uncertain
from kvstitch.service.worker.sequences.hand_over import HandOver
from kvstitch.service.worker.sequences.prefill_launcher import PrefillLauncher
from kvstitch.service.worker.sequences.reuse import find_history, find_reuse
from kvstitch.service.worker.sequences.sequence import EngineSequence, prompt_ids


@dataclass(frozen=True)
class Prefilling:
    scheduler: Scheduler
    launcher: PrefillLauncher
    pool: KVPool
    prefix_cache: PrefixCache
    planner: Planner
    timer: PrefillTimer
    gate: Gate | None
    answering: Answering
    endings: Endings
    hand_over: HandOver | None = None

    @property
    def can_go_on(self) -> bool:
        """Whether some prefill can run or start now, and does not only wait for its chunks."""
        if any(not s.blocked for s in self.scheduler.prefilling):
            return True
        return self.scheduler.can_start(self._fits) is not None

    def start_next(self) -> None:
        """Start the prefill of the next sequence, if one can start."""
        sequence = self.scheduler.next_to_start(self._fits)
        if sequence is None:
            return
        running = self.scheduler.running
        try:
            # Since it arrived, others that begin alike may have been computed.
            found = find_reuse(self.prefix_cache, sequence, running)
            if found is not None and (
                sequence.reuse is None or found.tokens > sequence.reuse.tokens
            ):
                self.launcher.loads.stop(sequence.loads)
                sequence.loads = Loads()
                sequence.reuse, sequence.history = found, None
            kv = self.pool.reserve(self.launcher.reserved_tokens(sequence))
            assert kv is not None, "the scheduler checked that it fits"
            self.launcher.launch(sequence, kv, crowded=bool(running))
            self.prefix_cache.continued += sequence.reuse is not None
        except Exception as error:
            self.endings.fail(sequence, error)

    def _fits(self, sequence: EngineSequence) -> bool:
        """Return whether a sequence can start now. Makes room for it, if that helps."""
        needed = self.launcher.reserved_tokens(sequence)
        fits = self.pool.make_room(needed) or (
            self.gate is not None and self.gate.give_way() and self.pool.make_room(needed)
        )
        if sequence.reuse is not None and sequence.reuse.lost:
            sequence.reuse = find_reuse(self.prefix_cache, sequence)
            if sequence.reuse is None:
                self.launcher.loads.start(sequence.to_load, sequence.loads)
        if sequence.history is not None and sequence.history.lost:
            sequence.history = find_history(self.prefix_cache, sequence)
        return fits and sequence.loaded

    def advance(self, budget: StepBudget) -> None:
        """Run steps of the prefills that are not waiting."""
        scheduler = self.scheduler
        while (sequence := scheduler.next_prefill) is not None and not sequence.blocked:
            assert sequence.prefill.steps is not None
            started = time.monotonic()
            sequence.clock.unblock()
            try:
                sequence.wait(next(sequence.prefill.steps))
            except StopIteration as end:
                if sequence.work.exact_from is None:
                    self._first_token(sequence, end.value)
                else:
                    self._go_on(sequence, end.value)
            except Exception as error:
                self.endings.fail(sequence, error)
            seconds = time.monotonic() - started
            sequence.prefill.computed_s += seconds
            budget.prefilled(seconds)
            if not scheduler.running or not budget.prefill_goes_on:
                return

    def _first_token(self, sequence: EngineSequence, result: PrefillResult) -> None:
        assert sequence.kv is not None
        sequence.prefill.steps = None
        sequence.prefilled(result)
        sequence.kv.set_length(sequence.work.entries)
        for layer, rows in result.held.items():
            kv_heads = self.launcher.decoder.kv_heads
            sequence.kv.remember(layer, [rows] * kv_heads, result.layout.tokens)
        sequence.clock.close("prefill")
        if sequence.reuse is None:  # else it may be too little to tell how fast the device is
            plans = [load.plan for load in sequence.loads.segments if load is not None]
            self._learn(sequence, plans)
        self.launcher.loads.stop(sequence.loads)
        try:
            self.scheduler.start_running(sequence)
            check = self.gate is not None and self.gate.answered(sequence, result)
            if self.prefix_cache.on:
                sequence.logits = result.logits.clone()
            if sequence.asked.request.hand_over:
                self._evict(sequence, result)
                self._hand_over(sequence, check)
                return
            if uncertain(sequence, result.logits[None]) is not None:
                self.launcher.start_over(sequence)
                self.scheduler.start_over(sequence)
                return
            self.answering.first_token(sequence, result.logits)
            sequence.clock.close("first_token")
            if sequence in self.scheduler.running:
                self._evict(sequence, result)
        except Exception as error:
            self.endings.fail(sequence, error)

    def _go_on(self, sequence: EngineSequence, result: PrefillResult) -> None:
        """Let an answer go on behind what was computed in full."""
        assert sequence.kv is not None
        sequence.prefill.steps = None
        sequence.kv.set_length(result.layout.tokens)
        sequence.work.flops += result.flops
        began = bool(sequence.tokens)
        if not began:
            sequence.clock.close("prefill")
            if sequence.logits is not None:
                sequence.logits = result.logits.clone()
        try:
            self.scheduler.start_running(sequence)
            self.answering.first_token(sequence, result.logits)
            if not began:
                sequence.clock.close("first_token")
            if not began and sequence in self.scheduler.running:
                self._evict(sequence, result)
        except Exception as error:
            self.endings.fail(sequence, error)

    def _hand_over(self, sequence: EngineSequence, check: bool) -> None:
        """Leave the rest to another engine; its KV stays until that has it."""
        assert sequence.kv is not None and self.hand_over is not None
        kv, tokens, place = sequence.kv, sequence.kv.filled_tokens, ""
        try:
            layers = [kv.prompt_layer(n, tokens) for n in range(self.launcher.decoder.layers)]
            ids = prompt_ids(sequence.asked.request).tolist()
            sequence.handed = self.hand_over.put(layers, ids)
            place = sequence.handed.place
        except OSError as error:  # the other engine computes the prompt
            sequence.warnings.append(f"the prompt's KV could not be handed over: {error.strerror}")
        sequence.clock.close("hand_over")
        ends = sorted(sequence.asked.end_ids)
        self.endings.replies.append(HandedOver(sequence.id, place, tokens, ends, check))

    def _learn(self, sequence: EngineSequence, plans: list[str]) -> None:
        """Tell the planner how long a prefill took."""
        method, kind = type(sequence.fusion), None
        # Eviction and a trace take time, too.
        if sequence.asked.eviction is None and sequence.prefill.trace is None:
            kind = method if sequence.reuses_documents else FullPrefill
        replaced = method if sequence.loads.whole and kind is not None else None
        self.planner.finished(
            sequence.work.flops, sequence.prefill.computed_s, plans, kind, instead_of=replaced
        )
        if kind is method and sequence.any_method and self.planner.deciding:
            prompt = waiting_prompt(sequence.to_load, sequence.loads, {})
            if self.planner.wants_full(prompt):
                self.timer.time(sequence.asked.prompt_tokens)

    def _evict(self, sequence: EngineSequence, result: PrefillResult) -> None:
        kv, decoder = sequence.kv, self.launcher.decoder
        assert kv is not None
        if sequence.asked.eviction is not None:
            sequence.work.coverage = evict(
                decoder,
                self.launcher.facts,
                kv,
                sequence.asked.eviction,
                layout=result.layout,
                observed=result.observed,
                room=sequence.max_tokens - len(sequence.tokens) + 1,
                original_tokens=None if result.kept_ids is None else sequence.asked.prompt_tokens,
                on_kept=None if sequence.prefill.trace is None else sequence.prefill.trace.kept,
            )
            sequence.clock.close("evict")
        sequence.work.kept_per_layer = [kv.kept_tokens(layer) for layer in range(decoder.layers)]
