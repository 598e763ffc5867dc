"""docs/specification.md T12 on the demo model: on average, computing rows anew brings answer and KV
nearer to full prefill, positions not recovered take them further away. (That A3 and CacheBlend come
before LegoLink is the papers' finding on their models; benchmarks/results/fidelity has this
one's.)"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
import torch

from benchmarks.fidelity.compared.configuration import Configuration
from benchmarks.fidelity.measure import Measurer
from benchmarks.fidelity.prompts import of_tasks, tokenizer_of
from benchmarks.fidelity.report.records import Record, Records
from benchmarks.fidelity.runner import found, measure_all
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
TASKS = ("border", "pronoun", "update", "chain")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Record]]]:
    folder = demo_model()
    with torch.inference_mode():
        decoder = load_model(str(folder), dtype="float32", device="cpu")
        prompts = of_tasks(folder, TASKS, chunk_tokens=48, samples=3, seed=5)
        longest = max(prompt.tokens for prompt in prompts)
        measurer = Measurer(decoder, tokenizer_of(folder).decode, longest=longest)
        records = Records(Path(tmp_path_factory.mktemp("order")) / "records.jsonl")
        made = {n: Configuration(n, m, prefix_mode="system") for n, m in METHODS.items()}
        measure_all(measurer, prompts, list(made.values()), records)
        yield {name: found(prompts, c, records) for name, c in made.items()}


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


@pytest.mark.slow
def test_kv_comes_nearer(measured: dict[str, list[Record]]) -> None:
    error = {name: fmean(fmean(r.k_error) for r in rows) for name, rows in measured.items()}
    assert error["vanilla"] < 1e-6
    for name in ("legolink", "cacheblend", "a3", "question_scout"):
        assert error[name] < error["pie"] < error["full_reuse"], error
