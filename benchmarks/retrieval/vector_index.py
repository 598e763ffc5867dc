"""Vector search of a large collection: exact beside inverted lists, in turns.

    python -m benchmarks.retrieval.vector_index --data nq_test.jsonl [--vectors 1000000]

Questions are real (Natural Questions), and so is every passage that answers one. The rest of the
collection are mixtures of two passages' vectors with noise, because nobody has a million passages
here: about as near to one another as texts on the same subject are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from retriever import LocalEmbedder
from retriever.embedders.base import Vectors
from retriever.index.vector_index import VectorIndex
from retriever.scope import DEFAULT_SCOPE
from tuning.environment import describe

OUT = Path("benchmarks/results/vector_index.json")
SEED = 0
BEST = 10
FILTERS = {"none": 1.0, "a tenth": 0.1, "a hundredth": 0.01}
BLOCK = 20_000


def main() -> None:
    """Measures, prints and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="nq_test.jsonl")
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    lines = arguments.data.read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    embedder = LocalEmbedder()
    embedder.start()
    with closing(embedder):
        passages = embedder.embed([f"{row['title']}\n{row['text']}" for row in rows])
        queries = embedder.embed([row["question"] for row in rows[: arguments.questions]])
    print(f"{len(passages)} passages, {len(queries)} questions embedded", flush=True)
    before = _memory_mib("VmRSS")
    lists = VectorIndex(exact_up_to=1)
    _fill(lists, passages, arguments.vectors)
    started, cpu = time.perf_counter(), time.process_time()
    lists.rebuild(DEFAULT_SCOPE)
    built_s, built_cpu_s = time.perf_counter() - started, time.process_time() - cpu
    peak, after = _memory_mib("VmHWM"), _memory_mib("VmRSS")
    print(f"built in {built_s:.0f} s, {built_cpu_s:.0f} s of processor time", flush=True)
    # Filled only now, from the same seed: while lists are built there are copies enough.
    exact = VectorIndex(exact_up_to=arguments.vectors)
    _fill(exact, passages, arguments.vectors)
    random = np.random.default_rng(SEED)
    result: dict[str, Any] = {
        "environment": {**describe(), "seed": SEED},
        "vectors": arguments.vectors,
        "questions": len(queries),
        "build_s": round(built_s, 1),
        "build_cpu_s": round(built_cpu_s, 1),
        "memory_mib": {
            "exact": round(_memory_mib("VmRSS") - after),
            "lists": round(after - before),
            "while_built": round(peak - before),
        },
        "recall_when_built": lists.recall,
        "filters": {
            name: _compared(exact, lists, queries, share, arguments.vectors, random)
            for name, share in FILTERS.items()
        },
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def _fill(index: VectorIndex, passages: Vectors, count: int) -> None:
    """Passages and mixtures of them, the same at every call."""
    random = np.random.default_rng(SEED)
    index.reset(passages.shape[1])
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        if start == 0:
            made = mixtures(passages, size - len(passages), random)
            made = np.concatenate([passages, made])
        else:
            made = mixtures(passages, size, random)
        index.add(list(range(start, start + size)), made)


def mixtures(passages: Vectors, count: int, random: np.random.Generator) -> Vectors:
    first, second = (passages[random.integers(len(passages), size=count)] for _ in range(2))
    share = random.uniform(0.5, 1, size=(count, 1))
    noise = random.normal(size=first.shape) / np.sqrt(first.shape[1])
    mixed = share * first + (1 - share) * second + random.uniform(0, 0.6, (count, 1)) * noise
    scaled: Vectors = (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def _compared(
    exact: VectorIndex,
    lists: VectorIndex,
    queries: Vectors,
    share: float,
    count: int,
    random: np.random.Generator,
) -> dict[str, Any]:
    allowed = None
    if share < 1:
        chosen = random.choice(count, int(count * share), replace=False)
        allowed = frozenset(chosen.tolist())
    times: dict[str, list[float]] = {"exact": [], "lists": []}
    cpu: dict[str, list[float]] = {"exact": [], "lists": []}
    common = 0
    for query in queries:
        found = {}
        for name, index in (("exact", exact), ("lists", lists)):
            started, ran = time.perf_counter(), time.process_time()
            found[name] = {i for i, _ in index.search(query, BEST, allowed)}
            times[name].append(1000 * (time.perf_counter() - started))
            cpu[name].append(1000 * (time.process_time() - ran))
        common += len(found["exact"] & found["lists"])
    return {
        "recall": common / (BEST * len(queries)),
        **{
            f"{name}_ms": {
                "p50": round(statistics.median(values), 2),
                "p95": round(float(np.percentile(values, 95)), 2),
                "cpu_p50": round(statistics.median(cpu[name]), 2),
            }
            for name, values in times.items()
        },
        "ratio_p50": round(
            statistics.median(a / b for a, b in zip(times["lists"], times["exact"], strict=True)), 3
        ),
    }


def _memory_mib(field: str) -> float:
    """Resident memory of this process: `VmRSS` now, `VmHWM` the most that it has been."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
