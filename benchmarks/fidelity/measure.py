"""Measures every configuration on one prompt against full prefill of the same prompt.

Full prefill runs once, and the KV, attention and greedy answer of the others are compared with its
own. Configurations are prefilled one by one, then decoded together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.report import metrics
from benchmarks.fidelity.report.records import Record
from service.worker.api import DecoderModel, SequenceKV, Vanilla, full_prefill_flops
from service.worker.methods.api import PrefillResult
from tuning.case import NEXT, Case, Filled, forced, free, greedy
from tuning.prompts import Prompt, SegmentStore, part_store
from tuning.single_prompts import kv_pool
from tuning.trial import agreement, divergence

TOGETHER = 32
"""Configurations that are held in memory and decoded at the same time."""


@dataclass(frozen=True)
class Reference:
    """Full prefill of one prompt.

    Attributes:
        k: keys after RoPE, for each layer `[kv_heads, n, d]`.
        v: values, for each layer `[kv_heads, n, d]`.
        maps: the question's attention `[heads, |Q|, n]` at some layers.
        attention_scores: the question's attention summed over layers, heads and rows, `[n]`.
        logits: along the greedy answer, `[m, vocabulary]`.
        seconds: of the prefill, as in `Record`.
    """

    k: list[Tensor]
    v: list[Tensor]
    maps: dict[int, Tensor]
    attention_scores: Tensor
    logits: Tensor
    seconds: float

    @property
    def answer(self) -> Tensor:
        """The greedy answer `[m]`, with the end token if there is one."""
        return self.logits.argmax(-1)


@dataclass(frozen=True)
class _Run:
    """A configuration that is prefilled but not decoded yet."""

    configuration: Configuration
    case: Case
    result: PrefillResult
    seconds: float

    @property
    def filled(self) -> Filled:
        return Filled(self.case.decoder, self.case.layout, self.case.kv, self.result.observed)


class Measurer:
    """Measures configurations on prompts.

    Args:
        decoder: the model.
        decode: turns answer ids into text, for prompts with known answers.
        longest: tokens of the longest prompt.
        together: configurations that are held in memory at the same time.
    """

    def __init__(
        self,
        decoder: DecoderModel,
        decode: Callable[[Sequence[int]], str],
        *,
        longest: int,
        together: int = TOGETHER,
    ) -> None:
        self._decoder = decoder
        self._decode = decode
        self._together = together
        self._depths = metrics.depths(decoder.layers)
        self._clock = time.process_time if decoder.device.type == "cpu" else time.perf_counter
        self._parts = part_store()
        self._pool = kv_pool(decoder, (longest + NEXT + 1) * together)

    @torch.inference_mode()
    def measure(self, prompt: Prompt, configurations: Sequence[Configuration]) -> list[Record]:
        """Records in the order of `configurations`."""
        store = SegmentStore(self._decoder, self._parts)
        reference = self._reference(prompt, store)
        records: list[Record] = []
        for start in range(0, len(configurations), self._together):
            runs = [
                self._prefill(configuration, prompt, store, reference)
                for configuration in configurations[start : start + self._together]
            ]
            records += self._records(prompt, runs, reference)
            for run in runs:
                run.case.kv.release()
        return records

    def _reserve(self, prompt: Prompt) -> SequenceKV:
        kv = self._pool.reserve(prompt.tokens + NEXT + 1)
        assert kv is not None, "the pool holds `together` of the longest prompt"
        return kv

    def _reference(self, prompt: Prompt, store: SegmentStore) -> Reference:
        n, kv = prompt.tokens, self._reserve(prompt)
        case = Case.of(
            self._decoder, prompt, store, kv,
            prefix_mode="none", codec="raw", attention_scores=torch.empty(0),
        )  # fmt: skip
        started = self._clock()
        result = case.prefill(Vanilla())
        seconds = self._clock() - started
        filled = Filled(self._decoder, case.layout, kv, result.observed)
        layers = [filled.layer(layer) for layer in range(self._decoder.layers)]
        k, v = [k.clone() for k, _ in layers], [v.clone() for _, v in layers]
        maps = {depth: filled.question_attention(depth) for depth in self._depths}
        attention_scores = filled.attention_scores()
        kv.set_length(n)
        logits = greedy(self._decoder, kv, n, result.logits)
        kv.release()
        return Reference(k, v, maps, attention_scores, logits, seconds)

    def _prefill(
        self,
        configuration: Configuration,
        prompt: Prompt,
        store: SegmentStore,
        reference: Reference,
    ) -> _Run:
        kv = self._reserve(prompt)
        case = Case.of(
            self._decoder, prompt, store, kv,
            prefix_mode=configuration.prefix_mode,
            codec=configuration.codec,
            attention_scores=reference.attention_scores,
        )  # fmt: skip
        started = self._clock()
        result = configuration.run(case)
        seconds = self._clock() - started
        kv.set_length(prompt.tokens)
        return _Run(configuration, case, result, seconds)

    def _records(self, prompt: Prompt, runs: Sequence[_Run], reference: Reference) -> list[Record]:
        n, taught = prompt.tokens, reference.answer
        kvs = [run.case.kv for run in runs]
        filled = [(run.case.kv, run.result.logits) for run in runs]
        logits = forced(self._decoder, filled, n, taught)
        # One sequence after the other, because a real vocabulary is large.
        kl = [divergence(reference.logits, each).tolist() for each in logits]
        agree = [agreement(reference.logits, each).tolist() for each in logits]
        # What is generated writes only behind the prompts, so their KV stays that of the prefill.
        made: list[Record] = []
        said = free(self._decoder, kvs, n, taught, logits) if prompt.answers else []
        for i, run in enumerate(runs):
            made.append(self._record(prompt, run, reference, kl[i], agree[i]))
            if said:
                text = self._decode(said[i])
                right = text.strip() in prompt.answers
                made[i] = replace(made[i], right=right, text=text, full_text=self._full(reference))
        return made

    def _full(self, reference: Reference) -> str:
        ends = self._decoder.end_ids
        return self._decode([token for token in reference.answer.tolist() if token not in ends])

    def _record(
        self,
        prompt: Prompt,
        run: _Run,
        reference: Reference,
        kl: list[float],
        agree: list[float],
    ) -> Record:
        filled, configuration = run.filled, run.configuration
        first, last = len(prompt.system), run.case.layout.question_start
        documents = slice(first, last)
        layers = [filled.layer(layer) for layer in range(self._decoder.layers)]
        recomputed = [row for row in run.result.rows.tolist() if first <= row < last]
        count = len(kl) - 1
        return Record(
            prompt=prompt.key,
            configuration=configuration.key,
            tokens=prompt.tokens,
            kl_first=kl[0],
            agree_first=agree[0],
            next_count=count,
            kl_next=sum(kl[1:]) / count if count else None,
            agree_next=sum(agree[1:]) / count if count else None,
            right=None,
            rows=len(recomputed),
            hit=metrics.hit_rate(recomputed, reference.attention_scores, documents),
            flops=run.result.flops / full_prefill_flops(self._decoder, prompt.tokens),
            bytes=run.case.stored_bytes if configuration.reads_cache else 0,
            seconds=run.seconds,
            full_seconds=reference.seconds,
            map_l2=[
                metrics.map_distance(reference.maps[depth], filled.question_attention(depth))
                for depth in self._depths
            ],
            k_error=[
                metrics.relative_error(full, k, documents)
                for full, (k, _) in zip(reference.k, layers, strict=True)
            ],
            v_error=[
                metrics.relative_error(full, v, documents)
                for full, (_, v) in zip(reference.v, layers, strict=True)
            ],
        )
