"""Fleets that nobody here has: hit rate, goodput, bytes and money by policy and size.

    python -m benchmarks.fleet.scale [--workers 8 64 1024] [--costs costs.json]

Costs of a worker are assumptions about one GPU with an 8B model (`GPU`), not measurements; a file
that holds a measured `WorkerLoad` (`kvstitch.service.messages.replies`) replaces them. What is
compared is how the policies of `kvstitch.service.gateway.fleet.routing.router` divide the same
requests, with a slower tier that all read, and without one.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from benchmarks.fleet.simulator import Fleet, Outcome, Request, Simulation
from kvstitch.service.gateway.fleet.routing.router import Policy
from kvstitch.service.messages.replies import WorkerLoad
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/fleet/scale.json")
GIB = 1 << 30
# One GPU, 8B parameters, GQA with 8 KV heads: 16 GFLOP a token at 450 TFLOP/s, 36 KiB of KV a token
# in int4 (128 in 16 bits), 16 GB of weights read in each decode step, 2 GB/s from the slower tier.
GPU = WorkerLoad(
    token_s=36e-6,
    overhead_s=8e-3,
    step_s=7e-3,
    step_sequence_s=5e-5,
    token_bytes=36 * 1024,
    tiers={"redis": (1e-3, 5e-10)},
)
CHUNK, QUESTION, ANSWER, TOP_K = 256, 64, 128, 8
TOPIC = 32  # documents that are found together
REPAIR = 0.15
MEMORY_GIB = 128
MEMORY_ONLY_RATE = 0.5  # requests where all else is computed, to those with a slower tier
STORED = 0.1  # of all chunks, in the slower tier
SLO_S = 0.5
DOLLARS_PER_GPU_HOUR = 2.5
SHARD_BYTES_S = 1.8e9
SEED = 0


def requests(count: int, rate: float, chunks: int, alpha: float, seed: int) -> Iterator[Request]:
    """Poisson arrivals; topics by Zipf's law, inverted as if ranks were continuous, and of a topic
    any documents."""
    topics = chunks // TOPIC
    source = random.Random(seed)
    power = 1 - alpha
    now = 0.0
    for _ in range(count):
        now += source.expovariate(rate)
        rank = ((topics**power - 1) * source.random() + 1) ** (1 / power)
        first = TOPIC * (int(rank) - 1)
        yield Request(now, source.sample(range(first, first + TOPIC), TOP_K), ANSWER)


def measured(fleet: Fleet, outcome: Outcome, rate: float) -> dict[str, Any]:
    """The figures of a run."""
    ttft = sorted(outcome.ttft_s)
    documents = sum(outcome.places.values())
    answers = len(ttft)
    within = sum(t <= SLO_S for t in ttft) / answers
    bytes_s = outcome.slow_bytes / outcome.end
    return {
        "local_hit_rate": round(outcome.local_hit_rate, 4),
        "slow_share": round(outcome.places.get("slow", 0) / documents, 4),
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


def simulated(
    args: argparse.Namespace,
    load: WorkerLoad,
    workers: int,
    policy: Policy,
    *,
    slower_tier: bool = True,
) -> dict[str, Any]:
    """One fleet under one policy."""
    memory = int(MEMORY_GIB * GIB / load.token_bytes) // args.scale
    fleet = Fleet(
        workers, load, CHUNK, QUESTION, REPAIR, memory, slower_tiers=slower_tier, policy=policy
    )
    count = min(args.requests, args.per_worker * workers)
    began = time.perf_counter()
    simulation = Simulation(fleet)
    simulation.fill_as_if_long_served(
        spread=policy == "cost", stored=int(STORED * args.chunks / args.scale), topic=TOPIC
    )
    rate = args.rate * workers * (1 if slower_tier else MEMORY_ONLY_RATE)
    outcome = simulation.run(requests(count, rate, args.chunks // args.scale, args.alpha, SEED))
    row: dict[str, Any] = {"workers": workers, "slower_tier": slower_tier, "policy": policy}
    row |= {"requests": count, "rate_per_worker": rate / workers}
    row |= measured(fleet, outcome, rate)
    row["simulated_in_s"] = round(time.perf_counter() - began, 1)
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    """Simulates and writes the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=int, nargs="+", default=[8, 64, 1024])
    add("--chunks", type=int, default=100_000_000)
    add("--scale", type=int, default=16, help="divides chunks and memory tiers alike")
    add("--alpha", type=float, default=0.9)
    add("--rate", type=float, default=12.0, help="requests per second and worker")
    add("--tiers", choices=["both", "slower", "memory"], default="both")
    add("--per-worker", type=int, default=150, help="requests")
    add("--requests", type=int, default=12_000, help="at most")
    add("--policies", nargs="+", choices=get_args(Policy), default=list(get_args(Policy)))
    add("--costs", type=Path, help="a WorkerLoad as JSON, instead of the assumed one")
    add("--out", type=Path, default=OUT)
    args = parser.parse_args()
    load = GPU if args.costs is None else WorkerLoad(**json.loads(args.costs.read_text("utf-8")))
    rows = [
        simulated(args, load, workers, policy, slower_tier=slower_tier)
        for workers in args.workers
        for slower_tier in ((True, False) if args.tiers == "both" else (args.tiers == "slower",))
        for policy in args.policies
    ]
    result = {
        "environment": {**describe(), "seed": SEED},
        "assumed": {
            "load": asdict(load),
            "chunk_tokens": CHUNK,
            "question_tokens": QUESTION,
            "top_k": TOP_K,
            "topic_documents": TOPIC,
            "answer_tokens": ANSWER,
            "repair": REPAIR,
            "memory_gib": MEMORY_GIB,
            "stored_share": STORED,
            "chunks": args.chunks,
            "scale": args.scale,
            "alpha": args.alpha,
            "rate_per_worker": args.rate,
            "rate_per_worker_memory_only": args.rate * MEMORY_ONLY_RATE,
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
