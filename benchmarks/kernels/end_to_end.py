"""TTFT and TPOT without each kernel, relative to those with all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch

from benchmarks.kernels.without import EVERY, switches
from benchmarks.speed.engines import FULL, METHODS, PIE, SCOUT, Prompt, answer, place, precompute
from benchmarks.speed.paired import Paired, Work, run_paired
from kvstore import MemoryTier
from service.worker.api import DecoderModel, SequenceKV, decode_step
from tuning.single_prompts import kv_pool

STEPS = 5
"""Decode steps of a sample."""
DOCUMENTS = 8
TPOT = {"TPOT, 1 sequence": 1, "TPOT, 8 sequences": 8}


@dataclass
class Decoding:
    """A sequence that is fed the same token again and again."""

    kv: SequenceKV
    prompt: int
    position: int = 0
    lora: str = ""

    @property
    def tokens(self) -> list[int]:
        return [5]

    def restart(self) -> None:
        self.kv.set_length(self.prompt)
        self.position = self.prompt


def without_each(
    decoder: DecoderModel, tokens: int, repetitions: int, seed: int
) -> dict[str, Paired]:
    """Seconds by what is measured, with all kernels and without each.

    Args:
        tokens: of a prompt's documents.
        repetitions: of every measurement.
        seed: of the prompt's random tokens.
    """
    prompt, number = Prompt(decoder, tokens, DOCUMENTS, seed), count()
    jobs: dict[str, Work] = {}
    with place(decoder, MemoryTier(4 << 30), len(prompt.ids)) as engine, torch.inference_mode():
        precompute(engine, prompt)

        def first_token(name: str) -> None:
            answer(engine, prompt.request(str(next(number)), METHODS[name]))

        for name in (FULL, SCOUT, PIE):
            jobs[f"TTFT, {name}"] = partial(first_token, name)
        for name, size in TPOT.items():
            jobs[name] = partial(decode, decoder, sequences(decoder, tokens, size))
        return {job: run_paired(ways(work), repetitions) for job, work in jobs.items()}


def ways(work: Work) -> dict[str, Work]:
    """The work with all kernels, and without each of them."""

    def switched(switch: Callable[[], AbstractContextManager[None]]) -> None:
        with switch():
            work()

    return {name: partial(switched, switch) for name, switch in switches().items()}


def sequences(decoder: DecoderModel, tokens: int, size: int) -> list[Decoding]:
    """Sequences with KV of so many tokens, whatever it holds."""
    room = tokens + STEPS
    pool = kv_pool(decoder, room * size)
    reserved = [pool.reserve(room) for _ in range(size)]
    return [Decoding(kv, tokens) for kv in reserved if kv is not None]


def decode(decoder: DecoderModel, running: list[Decoding]) -> None:
    for sequence in running:
        sequence.restart()
    for _ in range(STEPS):
        decode_step(decoder, running)
        for sequence in running:
            sequence.position += 1


__all__ = ["EVERY", "without_each"]
