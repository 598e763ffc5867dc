"""Fleets that nobody here has: hit rate, goodput, bytes and money by policy and size.

    python -m benchmarks.fleet.scale [--workers 8 64 1024] [--chunks 100000000]

Costs of a worker are assumptions about one GPU with an 8B model (see `GPU`), not measurements; what
is compared is how the policies of `service.gateway.fleet.router` divide the same requests. The
simulator has not been held against real runs yet.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from benchmarks.fleet.simulator import Fleet, Outcome, Request, Simulation
from service.gateway.fleet.router import Policy
from service.records import WorkerLoad
from service.tuning.measuring.environment import describe

OUT = Path("benchmarks/results/fleet/scale.json")
MIB = 1 << 20
# One GPU, 8B parameters, GQA with 8 KV heads: 16 GFLOP a token at 450 TFLOP/s, 128 KiB of KV a
# token, 16 GB of weights read in each decode step, one Redis shard per two GPUs (2 GB/s).
GPU = WorkerLoad(
    token_s=36e-6,
    overhead_s=8e-3,
    step_s=7e-3,
    step_sequence_s=5e-5,
    token_bytes=128 * 1024,
    tiers={"redis": (1e-3, 1e-9)},
)
CHUNK, QUESTION, ANSWER, TOP_K = 256, 64, 128, 8
REPAIR = 0.15
MEMORY_GIB = 128
STORED = 0.1  # of all chunks, in the slower tier
SLO_S = 1.0
DOLLARS_PER_GPU_HOUR = 2.5
SHARD_BYTES_S = 1.8e9
SEED = 0


def requests(count: int, rate: float, chunks: int, alpha: float, seed: int) -> Iterator[Request]:
    """Poisson arrivals; documents by Zipf's law, inverted as if ranks were continuous."""
    source = random.Random(seed)
    power = 1 - alpha
    now = 0.0
    for _ in range(count):
        now += source.expovariate(rate)
        chosen: set[int] = set()
        while len(chosen) < TOP_K:
            rank = ((chunks**power - 1) * source.random() + 1) ** (1 / power)
            chosen.add(int(rank) - 1)
        documents = list(chosen)
        source.shuffle(documents)
        yield Request(now, documents, ANSWER)


def measured(fleet: Fleet, outcome: Outcome, rate: float) -> dict[str, Any]:
    """The figures of a run."""
    ttft = sorted(outcome.ttft_s)
    documents = sum(outcome.places.values())
    answers = len(ttft)
    within = sum(t <= SLO_S for t in ttft) / answers
    slow = outcome.places.get("slow", 0)
    bytes_s = slow * CHUNK * fleet.load.token_bytes / outcome.end
    return {
        "local_hit_rate": round(outcome.local_hit_rate, 4),
        "slow_share": round(slow / documents, 4),
        "ttft_p50_s": round(ttft[answers // 2], 4),
        "ttft_p95_s": round(ttft[int(0.95 * answers)], 4),
        "within_slo": round(within, 4),
        "goodput_per_worker": round(within * rate / fleet.workers, 3),
        "busy": round(outcome.busy_s / outcome.end / fleet.workers, 3),
        "slow_tier_gb_s": round(bytes_s / 1e9, 2),
        "redis_shards": round(bytes_s / SHARD_BYTES_S, 1),
        "dollars_per_million_good_answers": round(
            1e6 * DOLLARS_PER_GPU_HOUR * fleet.workers / 3600 / max(1e-9, within * rate), 1
        ),
    }


def main() -> None:
    """Simulates and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 1024])
    parser.add_argument("--chunks", type=int, default=100_000_000)
    parser.add_argument(
        "--scale",
        type=int,
        default=16,
        help="divides chunks and memory tiers alike: below alpha 1, shares stay the same",
    )
    parser.add_argument("--alpha", type=float, default=0.9)
    parser.add_argument("--rate", type=float, default=8.0, help="requests per second and worker")
    parser.add_argument("--per-worker", type=int, default=150, help="requests")
    parser.add_argument("--requests", type=int, default=12_000, help="at most")
    parser.add_argument("--policies", nargs="+", default=list(get_args(Policy)))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    memory = int(MEMORY_GIB * 1024 * MIB / (CHUNK * GPU.token_bytes)) // args.scale
    rows: list[dict[str, Any]] = []
    for workers in args.workers:
        for policy in args.policies:
            fleet = Fleet(
                workers, GPU, CHUNK, QUESTION, REPAIR, memory, slower_tiers=True, policy=policy
            )
            count = min(args.requests, args.per_worker * workers)
            began = time.perf_counter()
            simulation = Simulation(fleet)
            simulation.fill_as_if_long_served(
                spread=policy == "cost", stored=int(STORED * args.chunks / args.scale)
            )
            rate = args.rate * workers
            outcome = simulation.run(
                requests(count, rate, args.chunks // args.scale, args.alpha, SEED)
            )
            row = {"workers": workers, "policy": policy, "requests": count}
            row |= measured(fleet, outcome, rate)
            row["simulated_in_s"] = round(time.perf_counter() - began, 1)
            rows.append(row)
            print(json.dumps(row), flush=True)
    result = {
        "environment": {**describe(), "seed": SEED},
        "assumed": {
            "load": asdict(replace(GPU)),
            "chunk_tokens": CHUNK,
            "top_k": TOP_K,
            "answer_tokens": ANSWER,
            "repair": REPAIR,
            "memory_gib": MEMORY_GIB,
            "stored_share": STORED,
            "chunks": args.chunks,
            "scale": args.scale,
            "alpha": args.alpha,
            "rate_per_worker": args.rate,
            "slo_ttft_s": SLO_S,
            "dollars_per_gpu_hour": DOLLARS_PER_GPU_HOUR,
            "redis_shard_gb_s": SHARD_BYTES_S / 1e9,
        },
        "rows": rows,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
