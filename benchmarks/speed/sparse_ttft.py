"""Compares SamKV with methods that read whole chunks, when chunks come from a slow tier.

    python -m benchmarks.speed.sparse_ttft [--passages 10] [--tokens 1024] [--repetitions 3]

A model with random weights in the shape of Qwen2.5-0.5B, bfloat16. The documents are in one tier
only, so every byte is read: an SSD whose pages are dropped from the page cache before every
request, or a real Redis. Each repetition runs full prefill once and every method once per tier, in
turn; ratios are computed within a repetition. Bytes are the store's counters, pool memory is the
request's peak. Times and bytes are those of the real shape. Answers are meaningless, and which
blocks a random question needs is arbitrary, up to the limit `max_kept`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.engine import open_engine, precompute_now
from benchmarks.common.redis import redis_url
from benchmarks.common.shapes import qwen2_5_0_5b
from kvstitch_tune.environment import describe
from kvstore import MemoryTier, RedisTier, SsdTier, TieredStore
from kvstore.tiers.base import Tier
from service.messages.replies import Done, TokenItem
from service.messages.reports import Report
from service.messages.requests import ChunkTokens, Generate, Method, Sampling
from service.worker.api import DecoderModel, Engine

FULL = "full prefill"
METHODS = {
    "samkv overwrite": Method("samkv", {"update": "overwrite"}),
    "samkv fusion": Method("samkv", {"update": "fusion"}),
    "a3 r=0.15": Method("a3", {"ratio": 0.15}),
    "question_scout r=0.15": Method("question_scout", {"ratio": 0.15}),
    "pie": Method("pie"),
}
READS = ("read", "read_blocks", "read_extra")
QUESTION_TOKENS = 32
SYSTEM_TOKENS = 16


@dataclass(frozen=True)
class Prompt:
    system: list[int]
    documents: list[ChunkTokens]
    question: list[int]


@dataclass
class Place:
    """An engine on a store of one tier, and a function that drops the tier's page cache."""

    engine: Engine
    store: TieredStore
    tier: str
    cool: Callable[[], None]


@contextmanager
def place(
    decoder: DecoderModel, tier: Tier, pool: int, cool: Callable[[], None]
) -> Iterator[Place]:
    with (
        TieredStore([tier]) as store,
        open_engine(decoder, store, pool_tokens=pool, sketches=True) as engine,
    ):
        yield Place(engine, store, tier.name, cool)


def drop_pages(folder: Path) -> None:
    """Drops the files from the page cache, so that the next read goes to the disk."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def ask(where: Place, name: str, prompt: Prompt, method: Method) -> dict[str, Any]:
    """Seconds to the first token, bytes read from the tier, pool tokens held at the peak."""
    where.cool()
    before, free = _bytes(where), 1.0
    request = Generate(
        name,
        prompt.system,
        prompt.documents,
        prompt.question,
        method,
        sampling=Sampling(max_tokens=2),
    )
    started = time.perf_counter()
    where.engine.submit(request)
    first, report = 0.0, None
    while report is None:
        for event in where.engine.step():
            if isinstance(event, TokenItem) and not first:
                first = time.perf_counter() - started
            if isinstance(event, Done):
                report = event.report
        free = min(free, where.engine.pool.free_share)
    return {
        "seconds": first,
        "bytes": _bytes(where) - before,
        "pool_tokens": round((1 - free) * where.engine.pool.tokens),
        **_facts(report),
    }


def _facts(report: Report) -> dict[str, Any]:
    return {
        "kept_ratio": report.kept_ratio,
        "recomputed_ratio": report.recomputed_ratio,
        "flops": report.flops / report.full_prefill_flops,
        "tiers": sorted({d.tier for d in report.documents}),
        "stages": report.stages,
    }


def _bytes(where: Place) -> int:
    stats = where.store.stats().tier(where.tier)
    return sum(int(stats.bytes.get(op, 0)) for op in READS)


def measure(
    *, passages: int, tokens: int, repetitions: int, threads: int, seed: int, layers: int
) -> dict[str, Any]:
    torch.set_num_threads(threads)
    decoder = qwen2_5_0_5b(seed=seed, layers=layers)
    random = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(0, decoder.vocabulary, (count,), generator=random).tolist()

    prompt = Prompt(
        ids(SYSTEM_TOKENS),
        [ChunkTokens(i, ids(tokens)) for i in range(passages)],
        ids(QUESTION_TOKENS),
    )
    pool = passages * tokens + 256
    runs: list[dict[str, dict[str, Any]]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_url() as url,
        place(decoder, SsdTier(folder, 1 << 36), pool, lambda: drop_pages(Path(folder))) as ssd,
        place(decoder, RedisTier(url), pool, lambda: None) as redis,
        place(decoder, MemoryTier(1 << 20), pool, lambda: None) as nowhere,
    ):
        with torch.inference_mode():
            for where in (ssd, redis):
                addresses = where.engine.admission.addresses(
                    prompt.system, prompt.documents, "none", ""
                )
                for address in addresses:
                    assert address is not None
                    precompute_now(where.engine, address)
                where.store.flush(60)
        for turn in range(repetitions):
            run = {FULL: ask(nowhere, f"full-{turn}", prompt, Method("vanilla"))}
            for where in (ssd, redis):
                for name, method in METHODS.items():
                    label = f"{name}, {where.tier}"
                    run[label] = ask(where, f"{label}-{turn}", prompt, method)
            runs.append(run)
            print(f"repetition {turn + 1} of {repetitions} done", flush=True)
    return {
        "what": "TTFT, bytes and pool memory by method and tier, random-weight Qwen2.5-0.5B shape",
        "passages": passages,
        "tokens": tokens,
        "layers": layers,
        "threads": threads,
        "seed": seed,
        "environment": describe(),
        "runs": runs,
        "summary": summary(runs),
    }


def summary(runs: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Medians, and ratios to full prefill within each repetition."""
    out = {}
    whole = {label.rpartition(", ")[2]: label for label in runs[0] if label.startswith("pie,")}
    a3 = {label.rpartition(", ")[2]: label for label in runs[0] if label.startswith("a3")}
    for label in runs[0]:
        tier = label.rpartition(", ")[2]

        def middle(figure: Callable[[dict[str, dict[str, Any]]], float]) -> float:
            return statistics.median(figure(run) for run in runs)

        row = {
            "seconds": middle(lambda run, at=label: run[at]["seconds"]),  # type: ignore[misc]
            "ttft_ratio": middle(
                lambda run, at=label: run[at]["seconds"] / run[FULL]["seconds"]  # type: ignore[misc]
            ),
            "kept_ratio": runs[0][label]["kept_ratio"],
            "recomputed_ratio": runs[0][label]["recomputed_ratio"],
            "flops_ratio": runs[0][label]["flops"],
            "pool_tokens": runs[0][label]["pool_tokens"],
        }
        if label != FULL:
            row["bytes"] = runs[0][label]["bytes"]
            row["bytes_of_full_caches"] = runs[0][label]["bytes"] / runs[0][whole[tier]]["bytes"]
            row["pool_of_a3"] = runs[0][label]["pool_tokens"] / runs[0][a3[tier]]["pool_tokens"]
        out[label] = row
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.sparse_ttft", description=__doc__
    )
    parser.add_argument("--passages", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=1024, help="per passage")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=24, help="24 is the real shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record as JSON to this file")
    given = parser.parse_args()
    settings = {name: value for name, value in vars(given).items() if name != "out"}
    record = measure(**settings)
    for label, row in record["summary"].items():
        print(f"{label:30s} " + "  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
