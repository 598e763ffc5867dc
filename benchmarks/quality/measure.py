"""Measures every configuration on one prompt against full prefill of the same prompt.

Full prefill runs once, and the others' answers are compared with its own. Configurations are
prefilled one by one, then decoded together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.quality.configurations import Configuration
from benchmarks.quality.records import Record, Records
from kvstitch.service.worker.api import DecoderModel, Vanilla, full_prefill_flops
from kvstitch.service.worker.methods.api import PrefillResult
from kvstitch_tune.case import NEXT, Case, forced, free, greedy
from kvstitch_tune.prompts import Prompt, SegmentStore, kv_pool, part_store
from kvstitch_tune.trial import agreement, divergence, least_lead

TOGETHER = 32
"""Configurations that are held in memory and decoded at the same time."""


@dataclass(frozen=True)
class Reference:
    """Full prefill of one prompt: logits along its greedy answer, `[m, vocabulary]`, and seconds of
    the prefill, as in `Record`."""

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


class Measurer:
    """Measures configurations on prompts.

    Args:
        decoder: the model.
        decode: turns answer ids into text, for prompts with known answers.
        longest: tokens of the longest prompt.
        together: configurations that are held in memory at the same time.
        adapter: name of the LoRA adapter of configurations that have one.
    """

    def __init__(
        self,
        decoder: DecoderModel,
        decode: Callable[[Sequence[int]], str],
        *,
        longest: int,
        together: int = TOGETHER,
        adapter: str = "",
    ) -> None:
        self._decoder = decoder
        self._decode = decode
        self._together = together
        self._adapter = adapter
        self._clock = time.process_time if decoder.device.type == "cpu" else time.perf_counter
        self._parts = part_store()
        self._pool = kv_pool(decoder, (longest + NEXT + 1) * together)

    @torch.inference_mode()
    def measure(self, prompt: Prompt, configurations: Sequence[Configuration]) -> list[Record]:
        """Records in the order of `configurations`."""
        stores = {
            name: SegmentStore(self._decoder, self._parts, adapter=name)
            for name in ("", self._adapter)
        }
        reference = self._reference(prompt, stores[""])
        records: list[Record] = []
        for start in range(0, len(configurations), self._together):
            runs = [
                self._prefill(
                    configuration, prompt, stores[self._adapter if configuration.adapter else ""]
                )
                for configuration in configurations[start : start + self._together]
            ]
            records += self._records(prompt, runs, reference)
            for run in runs:
                run.case.kv.release()
        return records

    def _reference(self, prompt: Prompt, store: SegmentStore) -> Reference:
        full = Configuration("full prefill", Vanilla(), prefix_mode="none")
        run = self._prefill(full, prompt, store)
        logits = greedy(self._decoder, run.case.kv, prompt.tokens, run.result.logits)
        run.case.kv.release()
        return Reference(logits, run.seconds)

    def _prefill(self, configuration: Configuration, prompt: Prompt, store: SegmentStore) -> _Run:
        kv = self._pool.reserve(prompt.tokens + NEXT + 1)
        assert kv is not None, "the pool holds `together` of the longest prompt"
        case = Case.of(
            self._decoder, prompt, store, kv,
            prefix_mode=configuration.prefix_mode,
            codec=configuration.codec,
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
        agree = [agreement(reference.logits, each) for each in logits]
        made = [
            replace(
                self._record(prompt, run, reference, kl[i], agree[i].tolist()),
                lead=least_lead(logits[i], agree[i]),
            )
            for i, run in enumerate(runs)
        ]
        if not prompt.answers:
            return made
        ends = self._decoder.end_ids
        full_text = self._decode([t for t in reference.answer.tolist() if t not in ends])
        answers = free(self._decoder, kvs, n, taught, logits)
        return [
            replace(record, text=self._decode(ids), full_text=full_text)
            for record, ids in zip(made, answers, strict=True)
        ]

    def _record(
        self, prompt: Prompt, run: _Run, reference: Reference, kl: list[float], agree: list[float]
    ) -> Record:
        first, last = len(prompt.system), run.case.layout.question_start
        count = len(kl) - 1
        return Record(
            prompt=prompt.key,
            configuration=run.configuration.key,
            tokens=prompt.tokens,
            kl_first=kl[0],
            agree_first=agree[0],
            next_count=count,
            kl_next=sum(kl[1:]) / count if count else None,
            agree_next=sum(agree[1:]) / count if count else None,
            rows=sum(first <= row < last for row in run.result.rows.tolist()),
            flops=run.result.flops / full_prefill_flops(self._decoder, prompt.tokens),
            bytes=run.case.stored_bytes if run.configuration.reads_cache else 0,
            seconds=run.seconds,
            full_seconds=reference.seconds,
        )


def measure_all(
    measurer: Measurer,
    prompts: Sequence[Prompt],
    configurations: Sequence[Configuration],
    records: Records,
) -> int:
    """Measures what is missing and records it; on Ctrl-C it stops and keeps what is recorded.

    Returns:
        Number of new records.
    """
    made, started = 0, time.perf_counter()
    todo = [
        (prompt, missing)
        for prompt in prompts
        if (missing := [c for c in configurations if (prompt.key, c.key) not in records])
    ]
    try:
        for done, (prompt, missing) in enumerate(todo, start=1):
            records.add(measurer.measure(prompt, missing))
            made += len(missing)
            each = (time.perf_counter() - started) / done
            print(
                f"{done}/{len(todo)} prompts, {each:.1f} s a prompt, "
                f"{each * (len(todo) - done) / 60:.1f} min left",
                file=sys.stderr,
                flush=True,
            )
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
    return made
