"""Measures candidates on a prompt against full prefill of the same prompt.

Full prefill runs once and answers greedily. Every candidate is prefilled from stored KV, timed
alone, and then fed full prefill's answer together with the others, to compare what each would have
said next.

How far next-token distributions are from those of full prefill.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.worker.api import DecoderModel, SequenceKV, evict
from kvstitch.service.worker.methods.api import DenseMethod, ModelFacts, PrefillResult
from kvstitch_methods.samkv.sketch import Sketch
from kvstitch_methods.samkv.sparse_method import SparseMethod
from kvstitch_tune.candidates import FULL_PREFILL, Candidate
from kvstitch_tune.case import NEXT, Case, forced, greedy
from kvstitch_tune.prompts import (
    Prompt,
    SegmentStore,
    compute_sketch,
    kv_pool,
    part_store,
    prefill_prompt,
    prefill_sparse,
)

MOST_TOGETHER = 16
"""Their logits are held too, and a vocabulary is large."""
REMEMBERED = 16
"""Prompts whose full prefill is remembered, because a later stage measures them again."""
_FULL = Candidate(FULL_PREFILL)


@dataclass(frozen=True)
class Trial:
    """What one candidate did on one prompt.

    Attributes:
        prompt: Key of the prompt.
        configuration: Key of the candidate.
        tokens: Of the prompt.
        answer_tokens: Of full prefill's greedy answer, with the end token.
        kl_first: KL(full prefill ‖ candidate) in nats at the first answer token.
        kl: The same, mean over the tokens of full prefill's answer.
        agree_first: 1 if the most likely first token is the same, else 0.
        agreement: Share of the answer's tokens that are the candidate's most likely ones.
        same: 1 if the candidate's greedy answer is full prefill's, else 0.
        lead: Nats by which the candidate's most likely token leads the second, the least of the
            answer up to where it differs: a greater `exact_below` makes it full prefill's.
        operations: Of the prefill, relative to full prefill.
        seconds: Of the prefill, with stored KV in memory.
        full_seconds: Of the full prefill of the same prompt.
        bytes: Stored KV that was at hand.
        kept: Share of the prompt's KV entries that were held while the answer was compared.
    """

    prompt: str
    configuration: str
    tokens: int
    answer_tokens: int
    kl_first: float
    kl: float
    agree_first: float
    agreement: float
    same: float
    lead: float
    operations: float
    seconds: float
    full_seconds: float
    bytes: int
    kept: float


@dataclass(frozen=True)
class _Reference:
    """Full prefill: logits `[m, vocabulary]` along its greedy answer, and what it took."""

    logits: Tensor
    flops: float
    seconds: float

    @property
    def answer(self) -> Tensor:
        return self.logits.argmax(-1)


@dataclass(frozen=True)
class _Prefilled:
    kv: SequenceKV
    result: PrefillResult
    seconds: float
    bytes: int
    kept: float


class TrialRunner:
    """Measures candidates on prompts.

    Args:
        decoder: The model.
        facts: Its sizes and calibration.
        longest: Tokens of the longest prompt.
        memory_bytes: About how much KV is held at the same time; two prompts at least.
    """

    def __init__(
        self, decoder: DecoderModel, facts: ModelFacts, *, longest: int, memory_bytes: int
    ) -> None:
        self._decoder = decoder
        self._facts = facts
        each = longest + NEXT + 2
        self._together = max(1, memory_bytes // (each * decoder.kv_bytes_per_token) - 1)
        self._together = min(self._together, MOST_TOGETHER)
        self._pool = kv_pool(decoder, each * (self._together + 1))
        self._parts = part_store()
        self._references: OrderedDict[str, _Reference] = OrderedDict()

    @torch.inference_mode()
    def measure(self, prompt: Prompt, candidates: Sequence[Candidate]) -> Iterator[list[Trial]]:
        """Yields trials in the order of `candidates`, as many together as fit into memory."""
        store = SegmentStore(self._decoder, self._parts)
        reference = self._reference(prompt, store)
        for start in range(0, len(candidates), self._together):
            part = candidates[start : start + self._together]
            yield self._trials(prompt, part, store, reference)

    def _reference(self, prompt: Prompt, store: SegmentStore) -> _Reference:
        known = self._references.get(prompt.key)
        if known is None:
            done = self._prefill(prompt, _FULL, store)
            logits = greedy(self._decoder, done.kv, prompt.tokens, done.result.logits)
            done.kv.release()
            known = _Reference(logits, done.result.flops, done.seconds)
            self._references[prompt.key] = known
            if len(self._references) > REMEMBERED:
                self._references.popitem(last=False)
        return known

    def _trials(
        self,
        prompt: Prompt,
        candidates: Sequence[Candidate],
        store: SegmentStore,
        reference: _Reference,
    ) -> list[Trial]:
        runs = [self._prefill(prompt, candidate, store) for candidate in candidates]
        taught = reference.answer
        filled = [(run.kv, run.result.logits) for run in runs]
        logits = forced(self._decoder, filled, prompt.tokens, taught)
        trials = [
            _trial(prompt, candidate, run, reference, own)
            for candidate, run, own in zip(candidates, runs, logits, strict=True)
        ]
        for run in runs:
            run.kv.release()
        return trials

    def _prefill(self, prompt: Prompt, candidate: Candidate, store: SegmentStore) -> _Prefilled:
        kv = self._pool.reserve(prompt.tokens + NEXT + 2)
        assert kv is not None, "the pool was made for so many"
        case = Case.of(
            self._decoder, prompt, store, kv,
            prefix_mode=candidate.prefix_mode,
            codec=candidate.codec,
        )  # fmt: skip
        method, eviction = candidate.fusion_method(), candidate.eviction_method()
        if isinstance(method, SparseMethod):
            sketches = self._sketches(prompt, store, candidate.prefix_mode)
            started = time.perf_counter()
            result = prefill_sparse(
                self._decoder, self._facts, case.layout, case.segments, method, kv,
                sketches=sketches,
            )  # fmt: skip
        else:
            assert isinstance(method, DenseMethod)
            started = time.perf_counter()
            result = prefill_prompt(
                self._decoder, case.layout, case.segments, method, kv, eviction=eviction
            )
        seconds = time.perf_counter() - started
        kv.set_length(result.entries_per_head or prompt.tokens)
        if eviction is not None:
            evict(
                self._decoder, self._facts, kv, eviction,
                layout=result.layout, observed=result.observed, room=NEXT + 2,
            )  # fmt: skip
        layers = range(self._decoder.layers)
        kept = sum(kv.kept_tokens(layer) for layer in layers) / len(layers) / prompt.tokens
        return _Prefilled(kv, result, seconds, case.stored_bytes, kept)

    def _sketches(
        self, prompt: Prompt, store: SegmentStore, prefix_mode: str
    ) -> list[Sketch | None]:
        prefixes = store.prefixes(prompt, prefix_mode)
        return [
            compute_sketch(self._decoder, ids, prefix=prefix.ids) if ids else None
            for ids, prefix in zip(prompt.documents, prefixes, strict=True)
        ]


def _trial(
    prompt: Prompt, candidate: Candidate, run: _Prefilled, reference: _Reference, logits: Tensor
) -> Trial:
    kl = divergence(reference.logits, logits)
    agree = agreement(reference.logits, logits)
    return Trial(
        prompt=prompt.key,
        configuration=candidate.key,
        tokens=prompt.tokens,
        answer_tokens=len(kl),
        kl_first=float(kl[0]),
        kl=float(kl.mean()),
        agree_first=float(agree[0]),
        agreement=float(agree.mean()),
        same=float(agree.min()),
        lead=least_lead(logits, agree),
        operations=run.result.flops / reference.flops,
        seconds=run.seconds,
        full_seconds=reference.seconds,
        bytes=run.bytes,
        kept=run.kept,
    )


def divergence(full: Tensor, other: Tensor) -> Tensor:
    """KL(full ‖ other) in nats, from logits `[..., vocabulary]`: `[...]`, not negative."""
    p, q = full.double().log_softmax(-1), other.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0)


def least_lead(logits: Tensor, agree: Tensor) -> float:
    """The least lead of the likeliest token over the second, nats, in logits `[m, vocabulary]` up
    to the first row whose `agree` `[m]` is 0."""
    differs = torch.nonzero(agree == 0).flatten()
    end = int(differs[0]) + 1 if len(differs) else len(logits)
    first, second = logits[:end].float().topk(2).values.unbind(-1)
    return float((first - second).min())


def agreement(full: Tensor, other: Tensor) -> Tensor:
    """1 where the most likely token is the same, else 0; logits `[..., vocabulary]`."""
    return (full.argmax(-1) == other.argmax(-1)).double()
