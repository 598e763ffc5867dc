"""A prompt and the shortest way to measure configurations on it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.quality.configurations import Configuration
from benchmarks.quality.measure import Measurer
from benchmarks.quality.records import Record
from kvstitch_tune.prompts import Prompt
from tests.service.worker.tiny import Q, S, Tiny


def a_prompt(seed: int = 0, sizes: Sequence[int] = (11, 6, 0, 9)) -> Prompt:
    draw = random.Random(seed)
    documents = tuple(tuple(draw.randrange(2, 100) for _ in range(size)) for size in sizes)
    return Prompt(f"task {seed % 2}", tuple(S), documents, tuple(Q), ("7 7",))


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def measured(
    model: Tiny, *configurations: Configuration, prompt: Prompt | None = None
) -> list[Record]:
    prompt = prompt or a_prompt()
    return Measurer(model.decoder, decode, longest=prompt.tokens).measure(prompt, configurations)
