"""Answers a prompt with one method after the other, decoding greedily by the engine's own steps.

Dense methods run in the engine's layer loop, SamKV in its own, from sketches in blocks of any size
(the store's are of 64) that did not go through int8; Multi-InfLLM decodes by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.quality.compared import Compared
from benchmarks.quality.multi_infllm import Context, MultiInfLLM, relevance
from service.worker.api import DecoderModel, SamKV
from service.worker.methods.api import ModelFacts, Sketch
from tuning.case import NEXT, Case, greedy
from tuning.head_scores import word_overlap
from tuning.prompts import Prompt, SegmentStore, part_store
from tuning.single_prompts import compute_sketch, kv_pool, prefill_sparse


@dataclass(frozen=True)
class Answer:
    """What one method said to one prompt. right: it is one of the known answers; f1: words in
    common with the best of them. kept, recomputed: shares of the documents' tokens, of a layer's
    (Multi-InfLLM: seen by the question's last row) and of all that some layer computes. seconds:
    the prompt alone, on whatever else the machine does."""

    prompt: str
    configuration: str
    text: str
    right: bool
    f1: float
    kept: float
    recomputed: float
    seconds: float


@dataclass(frozen=True)
class _Said:
    tokens: list[int]
    kept: float
    recomputed: float
    seconds: float


class Answerer:
    """`decode` turns answer ids into text; `longest` is the longest prompt's tokens."""

    def __init__(
        self,
        decoder: DecoderModel,
        facts: ModelFacts,
        decode: Callable[[Sequence[int]], str],
        *,
        longest: int,
    ) -> None:
        self._decoder, self._facts, self._decode = decoder, facts, decode
        self._sketches: dict[object, Sketch] = {}  # of the prompt at hand
        self._parts = part_store()
        self._pool = kv_pool(decoder, longest + NEXT + 1)

    @torch.inference_mode()
    def measure(self, prompt: Prompt, configurations: Sequence[Compared]) -> list[Answer]:
        """Answers in the order of `configurations`."""
        self._sketches.clear()
        store = SegmentStore(self._decoder, self._parts)
        return [self._answer(prompt, compared, store) for compared in configurations]

    def _answer(self, prompt: Prompt, compared: Compared, store: SegmentStore) -> Answer:
        kv = self._pool.reserve(prompt.tokens + NEXT + 1)
        assert kv is not None, "the pool holds the longest prompt"
        case = Case.of(
            self._decoder, prompt, store, kv,
            prefix_mode=compared.prefix_mode, codec="raw", attention_scores=torch.empty(0),
        )  # fmt: skip
        prefixes = [p.ids for p in store.prefixes(prompt, compared.prefix_mode)]
        try:
            if isinstance(compared.method, MultiInfLLM):
                said = self._by_itself(prompt, case, prefixes, compared.method)
            else:
                said = self._prefilled(prompt, case, prefixes, compared)
        finally:
            kv.release()
        ends = self._decoder.end_ids
        text = self._decode([t for t in said.tokens if t not in ends]).strip()
        return Answer(
            prompt.key,
            compared.key,
            text,
            text in prompt.answers,
            max((word_overlap(answer, text)[1] for answer in prompt.answers), default=0.0),
            said.kept,
            said.recomputed,
            said.seconds,
        )

    def _prefilled(
        self, prompt: Prompt, case: Case, prefixes: Sequence[Sequence[int]], compared: Compared
    ) -> _Said:
        method = compared.method
        assert not isinstance(method, MultiInfLLM)
        if isinstance(method, SamKV):
            sketches = self._prompt_sketches(prompt, case, prefixes, compared.block)
            started = time.perf_counter()
            result = prefill_sparse(
                self._decoder,
                self._facts,
                case.layout,
                case.segments,
                method,
                case.kv,
                sketches=sketches,
                block=compared.block,
            )
        else:
            started = time.perf_counter()
            result = case.prefill(method)
        seconds = time.perf_counter() - started
        held = result.entries_per_head or prompt.tokens
        case.kv.set_length(held)
        logits = greedy(self._decoder, case.kv, prompt.tokens, result.logits)
        first, last = len(prompt.system), case.layout.question_start
        documents = max(1, last - first)
        fresh = int(((result.rows >= first) & (result.rows < last)).sum())
        kept = (held - len(prompt.system) - len(prompt.question)) / documents
        return _Said(logits.argmax(-1).tolist(), kept, fresh / documents, seconds)

    def _by_itself(
        self, prompt: Prompt, case: Case, prefixes: Sequence[Sequence[int]], method: MultiInfLLM
    ) -> _Said:
        segments = [(prompt.system, ()), *zip(prompt.documents, prefixes, strict=True)]
        scores = [
            relevance(self._decoder, ids, before, method.local) if ids else None
            for ids, before in segments
        ]
        context = Context(self._decoder, case.layout, case.segments, scores, method)
        started = time.perf_counter()
        logits = context.extend(prompt.question)
        seconds, kept = time.perf_counter() - started, context.kept
        tokens = [int(logits.argmax())]
        while tokens[-1] not in self._decoder.end_ids and len(tokens) <= NEXT:
            tokens.append(int(context.extend(tokens[-1:]).argmax()))
        return _Said(tokens, kept, 0.0, seconds)

    def _prompt_sketches(
        self, prompt: Prompt, case: Case, prefixes: Sequence[Sequence[int]], block: int
    ) -> list[Sketch | None]:
        """Sketches of the documents; None for empty ones."""
        found: list[Sketch | None] = []
        for ids, prefix, stored in zip(prompt.documents, prefixes, case.segments[1:], strict=True):
            key = (ids, tuple(prefix), block)
            if stored is not None and key not in self._sketches:
                self._sketches[key] = compute_sketch(self._decoder, ids, prefix=prefix, block=block)
            found.append(None if stored is None else self._sketches[key])
        return found
