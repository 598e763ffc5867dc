"""docs/specification.md T12 on the demo model: on average, computing rows anew brings the answer
nearer to full prefill, positions not recovered take it further away.

The prompts are of tasks that the model was trained on, whose facts stand across chunks' borders."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.quality.configurations import Configuration
from benchmarks.quality.measure import Measurer
from benchmarks.quality.prompt_file import of_file, tokenizer_of
from benchmarks.quality.records import Record
from service.settings import demo_model
from service.worker.api import (
    A3,
    CacheBlend,
    FullReuse,
    LegoLink,
    Pie,
    QuestionScout,
    Vanilla,
    load_model,
)

METHODS = {
    "vanilla": Vanilla(),
    "full_reuse": FullReuse(),
    "pie": Pie(),
    "legolink": LegoLink(4, 4),
    "cacheblend": CacheBlend(0.3),
    "a3": A3(0.3),
    "question_scout": QuestionScout(0.3),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, list[Record]]:
    folder = demo_model()
    decoder = load_model(str(folder), dtype="float32", device="cpu")
    prompts = of_file(folder, Path(__file__).parent / "demo_tasks.jsonl")
    longest = max(prompt.tokens for prompt in prompts)
    measurer = Measurer(decoder, tokenizer_of(folder).decode, longest=longest)
    made = [Configuration(n, m, prefix_mode="system") for n, m in METHODS.items()]
    of_prompts = [measurer.measure(prompt, made) for prompt in prompts]
    return {name: [records[i] for records in of_prompts] for i, name in enumerate(METHODS)}


@pytest.mark.slow
def test_answers_come_nearer(measured: dict[str, list[Record]]) -> None:
    """By the geometric mean: a few prompts with a very large divergence would decide a mean."""
    kl = {
        name: math.exp(fmean(math.log(max(r.kl_first, 1e-9)) for r in rows))
        for name, rows in measured.items()
    }
    assert kl["vanilla"] < 1e-8
    assert kl["pie"] < kl["full_reuse"]
    for name in ("legolink", "cacheblend", "question_scout"):
        assert kl[name] < kl["pie"], kl
    assert kl["question_scout"] < min(kl["a3"], kl["cacheblend"], kl["legolink"]), kl
