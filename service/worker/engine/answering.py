"""Samples answer tokens, sends them, and ends sequences: their KV and loads are given back."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.errors import KvstitchError
from kvstitch.service.messages.replies import Done, Failed, Reply, TokenItem
from kvstitch.service.worker.engine.scheduler import Scheduler
from kvstitch.service.worker.forward.decode import BatchDecoder
from kvstitch.service.worker.loading.precompute_queue import PrecomputeQueue
from kvstitch.service.worker.loading.prompt_loads import PromptLoads
from kvstitch.service.worker.prefix_cache import PrefixCache
from kvstitch.service.worker.sampling.draft import Drafter
from kvstitch.service.worker.sampling.sampler import token_logprobs
from kvstitch.service.worker.sequences.exact import uncertain
from kvstitch.service.worker.sequences.prefill_launcher import PrefillLauncher
from kvstitch.service.worker.sequences.report import report
from kvstitch.service.worker.sequences.reuse import cached_prompt
from kvstitch.service.worker.sequences.sequence import EngineSequence, prompt_ids

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


MOST_ROWS = 8
"""Rows of a step up to which drafts are made: a CPU's cores multiply eight at a time."""

PATIENCE_S = 0.004
PATIENCE_SHARE = 0.1
"""Waited for grammars before a step, and of the last step's time: more would delay the others."""


class Answering:
    """Decodes the running sequences."""

    def __init__(
        self,
        decoder: BatchDecoder,
        launcher: PrefillLauncher,
        endings: Endings,
        replies: list[Reply],
        draft_tokens: int,
    ) -> None:
        self._decoder = decoder
        self._launcher = launcher
        self._draft_tokens = draft_tokens
        self._endings = endings
        self._replies = replies
        self._step_s = 0.0
        self.steps = 0
        self.drafts = {"accepted": 0, "rejected": 0}

    def first_token(self, sequence: EngineSequence, logits: Tensor) -> None:
        """Sample and send the first token, unless nothing is to be answered."""
        if sequence.max_tokens:
            self._emit(sequence, [sequence.sampler(logits)], logits[None])
        else:
            self._endings.finish(sequence, "length")

    def step(self, running: list[EngineSequence]) -> int:
        """Run one decode step, which yields at least one token for each sequence."""
        running = self._ready(running)
        if not running:
            return 0
        started = time.monotonic()
        drafts = [self._draft(sequence, len(running)) for sequence in running]
        logits = self._decoder.step(running, drafts)
        self.steps += 1
        # One copy from the device for all.
        greedy = [sequence.sampler.takes_likeliest for sequence in running]
        likeliest = logits.argmax(-1).tolist() if any(greedy) else []
        if not all(greedy):
            logits = logits.cpu()
        first = 0
        for sequence, draft in zip(running, drafts, strict=True):
            rows = slice(first, first + 1 + len(draft))
            first = rows.stop
            own = likeliest[rows] if sequence.sampler.takes_likeliest else None
            try:
                tokens = self._sample_step(sequence, draft, logits[rows], own)
                certain = uncertain(sequence, logits[rows][: len(tokens)])
            except Exception as error:  # of one sequence, as its grammar or its sampler is
                self._endings.fail(sequence, error)
                continue
            sequence.work.decode_steps += 1
            if certain is None:
                self._checked(sequence, draft, len(tokens) - 1)
                self._emit(sequence, tokens, logits[rows][: len(tokens)])
                continue
            try:
                self._emit(sequence, tokens[:certain], logits[rows][:certain])
                self._launcher.start_over(sequence)
                self._endings.scheduler.start_over(sequence)
            except Exception as error:
                self._endings.fail(sequence, error)
        self._step_s = time.monotonic() - started
        return len(running)

    def _ready(self, running: list[EngineSequence]) -> list[EngineSequence]:
        """Return the sequences that can go on; end those that are complete or have failed."""
        patience_s = max(PATIENCE_S, PATIENCE_SHARE * self._step_s)
        until = time.monotonic() + patience_s
        ready = []
        for sequence in running:
            try:
                if not sequence.sampler.ready(max(0.0, until - time.monotonic())):
                    continue
                if sequence.sampler.complete:
                    self._endings.finish(sequence, "stop")
                else:
                    ready.append(sequence)
            except Exception as error:  # of this one's grammar
                self._endings.fail(sequence, error)
        if not ready and running and time.monotonic() < until:
            time.sleep(patience_s / 4)  # all that run are late
        return ready

    def _draft(self, sequence: EngineSequence, running: int) -> list[int]:
        left = sequence.max_tokens - len(sequence.tokens) - 1  # behind the token of this step
        most = min(self._draft_tokens, MOST_ROWS // running - 1, left)
        if most <= 0:
            return []
        if forced := sequence.sampler.forced(most):
            return forced
        if sequence.drafter is None:
            sequence.drafter = Drafter(prompt_ids(sequence.asked.request).tolist())
        return sequence.drafter.draft(sequence.tokens, most)

    def _sample_step(
        self,
        sequence: EngineSequence,
        draft: list[int],
        logits: Tensor,
        likeliest: list[int] | None,
    ) -> list[int]:
        """Return the tokens of this step: one, and one more for each draft token it confirms."""
        tokens: list[int] = []
        for number, row in enumerate(logits):
            token = sequence.sampler(row) if likeliest is None else likeliest[number]
            tokens.append(token)
            if token in sequence.asked.end_ids or number >= len(draft) or token != draft[number]:
                break
            if not sequence.sampler.ready(PATIENCE_S) or sequence.sampler.complete:
                break
        return tokens

    def _checked(self, sequence: EngineSequence, draft: list[int], accepted: int) -> None:
        """Give up the KV of rejected tokens."""
        if not draft:
            return
        assert sequence.kv is not None
        sequence.kv.shrink(len(draft) - accepted)
        if sequence.drafter is not None:
            sequence.drafter.checked(len(draft), accepted)
        self.drafts["accepted"] += accepted
        self.drafts["rejected"] += len(draft) - accepted

    def _emit(self, sequence: EngineSequence, tokens: list[int], logits: Tensor) -> None:
        """Send new tokens of a sequence, or end it. End tokens are not sent."""
        counts = [sequence.asked.request.sampling.logprobs] * len(tokens)
        for token, logprobs in zip(tokens, token_logprobs(counts, tokens, logits), strict=True):
            if token in sequence.asked.end_ids:
                self._endings.finish(sequence, "stop")
                return
            sequence.tokens.append(token)
            self._replies.append(TokenItem(sequence.id, token, logprobs))
            if len(sequence.tokens) >= sequence.max_tokens:
                self._endings.finish(sequence, "length")
                return
