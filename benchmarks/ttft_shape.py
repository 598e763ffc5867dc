"""TTFT of stitched prompts over full prefill, on a random-weight Qwen2.5-0.5B shape in bfloat16.

    python -m benchmarks.ttft_shape [--quick] [--threads 1] [--tokens 2048] [--chunks 4]

Chunks are precomputed into the memory tier; each repetition then runs every method once, in turn,
through the engine itself (submit to first token), so that a ratio never compares two moments of a
noisy machine. Ratios are per repetition; the median is the figure. The model's weights are random:
times are those of the real shape, answers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe
from benchmarks.shapes import qwen2_5_0_5b
from kvstore import MemoryTier, TieredStore
from service.records import Chunk, Method, Sampling
from service.worker.addressing import Addressing
from service.worker.engine import Engine
from service.worker.loader import Loader
from service.worker.request import Request, TokenEvent

METHODS = {
    "full prefill": Method("vanilla"),
    "a3 r=0.15": Method("a3", {"ratio": 0.15}),
    "pie": Method("pie"),
}
REFERENCE = "full prefill"
QUESTION_TOKENS = 32
SYSTEM_TOKENS = 16


def measure(*, tokens: int, chunks: int, repetitions: int, threads: int, seed: int) -> Any:
    """Seconds to the first token per method and repetition, as a JSON-ready record."""
    torch.set_num_threads(threads)
    adapter = qwen2_5_0_5b(seed=seed)
    random = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(0, adapter.vocabulary, (count,), generator=random).tolist()

    system = ids(SYSTEM_TOKENS)
    documents = [Chunk(i, ids(tokens // chunks)) for i in range(chunks)]
    question = ids(QUESTION_TOKENS)
    seconds: dict[str, list[float]] = {name: [] for name in METHODS}
    with TieredStore([MemoryTier(1 << 30)]) as store:
        loader = Loader(store, threads=2)
        loader.start()
        addressing = Addressing(adapter, fingerprint=f"random-{seed}", codec="raw")
        engine = Engine(adapter, addressing, store, loader, pool_tokens=tokens + 256)
        with torch.inference_mode():
            for address in engine.admission.addresses(system, documents, "none", ""):
                assert address is not None
                engine.lane.compute_now(address)
        for turn in range(repetitions + 1):
            for name, method in METHODS.items():
                request = Request(
                    f"{name}-{turn}", system, documents, question, method,
                    sampling=Sampling(max_tokens=1),
                )  # fmt: skip
                took = _first_token(engine, request)
                if turn:  # the first turn warms up
                    seconds[name].append(took)
        loader.close()
    ratios = {
        name: [a / b for a, b in zip(took, seconds[REFERENCE], strict=True)]
        for name, took in seconds.items()
    }
    return {
        "what": "TTFT through the engine, memory tier, random-weight Qwen2.5-0.5B shape, bfloat16",
        "tokens": tokens,
        "chunks": chunks,
        "threads": threads,
        "seed": seed,
        "environment": describe(),
        "seconds": seconds,
        "ratio_to_full_prefill": {
            name: {
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
            }
            for name, values in ratios.items()
        },
    }


def _first_token(engine: Engine, request: Request) -> float:
    started = time.perf_counter()
    engine.submit(request)
    first = None
    while first is None or not engine.scheduler.idle:
        for event in engine.step():
            if isinstance(event, TokenEvent) and first is None:
                first = time.perf_counter() - started
    return first


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ttft_shape", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 repetitions instead of 5")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the record as JSON to this file")
    chosen = parser.parse_args()
    record = measure(
        tokens=chosen.tokens,
        chunks=chosen.chunks,
        repetitions=2 if chosen.quick else 5,
        threads=chosen.threads,
        seed=chosen.seed,
    )
    print(f"{record['what']}\n{chosen.tokens} tokens in {chosen.chunks} chunks, "
          f"{chosen.threads} thread(s), medians of paired repetitions")  # fmt: skip
    for name, values in record["seconds"].items():
        ratio = record["ratio_to_full_prefill"][name]
        print(
            f"  {name:14s} {statistics.median(values):7.3f} s   {ratio['median']:.3f} of full "
            f"prefill ({ratio['min']:.3f} to {ratio['max']:.3f})"
        )
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
