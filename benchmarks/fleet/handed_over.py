"""Prefill nodes that stitch and decode nodes that run vLLM: how many of each a load takes, beside
nodes of vLLM alone, and from which prompt length handing over pays.

    python -m benchmarks.fleet.handed_over [--rate 100] [--documents 1000000]

Costs are those that benchmarks/fleet/scale.py assumes of one GPU with an 8B model. A prompt's KV
is handed over in 16 bits; the decode node computes one token of it. A node of vLLM alone computes
every prompt whole: orders of documents are new. The least numbers are looked for with which 95 % of
first tokens come within the SLO, all stages together, and of the tokens after them in TPOT_S.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fleet.scale import (
    ANSWER,
    CHUNK,
    GIB,
    GPU,
    MEMORY_GIB,
    QUESTION,
    REPAIR,
    SEED,
    SLO_S,
    TOP_K,
    TOPIC,
    requests,
)
from benchmarks.fleet.simulator import Fleet, Outcome, Request, Simulation
from kvstitch_tune.records import describe

OUT = Path("benchmarks/results/fleet/handed_over.json")
HANDED_BYTES = 128 * 1024  # a token of KV: 32 layers, 8 heads of 128, keys and values, 16 bits
LINK_S = 1 / 25e9  # seconds a byte, over PCIe and over 200 Gb/s alike
WAYS = {"PCIe, out and in": 2 * LINK_S, "200 Gb/s, and PCIe out and in": 3 * LINK_S}
TPOT_S = 0.02
RUNNING = 256
SHARE = 0.95


def p95(values: list[float]) -> float:
    return sorted(values)[int(SHARE * len(values))]


def run(fleet: Fleet, arrivals: list[Request], stored: int) -> Outcome:
    simulation = Simulation(fleet)
    if stored:
        simulation.fill_as_if_long_served(spread=True, stored=stored, topic=TOPIC)
    return simulation.run(arrivals)


def least(good: Callable[[int], bool], first: int) -> int:
    """Return the least number of nodes that is good, by steps up, then halving."""
    high = max(1, first)
    while not good(high):
        high *= 2
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def simulated(args: argparse.Namespace) -> dict[str, Any]:
    arrivals = list(requests(args.requests, args.rate, args.documents, args.alpha, SEED))
    prompt = TOP_K * CHUNK + QUESTION
    copy_s = prompt * HANDED_BYTES * LINK_S
    handed_s = 2 * copy_s  # out of the prefill node's device, and over the network
    memory = int(MEMORY_GIB * GIB / GPU.token_bytes)
    stitching = Fleet(1, GPU, CHUNK, QUESTION, REPAIR, memory, True, "cost", RUNNING)
    # It copies KV to its device while nothing else runs; one token goes along with a step.
    decoding = Fleet(
        1, replace(GPU, overhead_s=copy_s), CHUNK, 1, 0.0, 0, False, "least_load", RUNNING
    )
    alone = Fleet(1, GPU, CHUNK, QUESTION, REPAIR, 0, False, "least_load", RUNNING)
    prefills = [replace(each, answer=1) for each in arrivals]
    decodes = [replace(each, documents=[]) for each in arrivals]
    seen: dict[tuple[str, int], tuple[float, float]] = {}

    def times(name: str, fleet: Fleet, work: list[Request], workers: int) -> tuple[float, float]:
        if (name, workers) not in seen:
            stored = args.documents if fleet.slower_tiers else 0
            outcome = run(replace(fleet, workers=workers), work, stored)
            seen[name, workers] = p95(outcome.ttft_s), p95(outcome.tpot_s)
        return seen[name, workers]

    def decodes_in_time(workers: int) -> bool:
        ttft, tpot = times("decode", decoding, decodes, workers)
        return ttft <= SLO_S / 5 and tpot <= TPOT_S

    decode = least(decodes_in_time, 4)
    rest_s = SLO_S - handed_s - seen["decode", decode][0]
    prefill = least(lambda n: times("prefill", stitching, prefills, n)[0] <= rest_s, 4)

    def alone_in_time(workers: int) -> bool:
        ttft, tpot = times("alone", alone, arrivals, workers)
        return ttft <= SLO_S and tpot <= TPOT_S

    whole = least(alone_in_time, 16)
    return {
        "prefill_nodes": prefill,
        "decode_nodes": decode,
        "nodes_of_vllm_alone": whole,
        "ttft_p95_s": round(seen["prefill", prefill][0] + handed_s + seen["decode", decode][0], 3),
        "ttft_p95_s_alone": round(seen["alone", whole][0], 3),
        "tpot_p95_s": round(seen["decode", decode][1], 4),
        "tpot_p95_s_alone": round(seen["alone", whole][1], 4),
        "prompt_tokens": prompt,
        "handed_mib": prompt * HANDED_BYTES / 2**20,
        "handed_ms": {n: round(1e3 * prompt * HANDED_BYTES * s, 1) for n, s in WAYS.items()},
        "pays_from_tokens": {name: pays_from(byte_s) for name, byte_s in WAYS.items()},
    }


def pays_from(byte_s: float) -> int:
    """Tokens from which stitching and handing over are sooner than computing all, with the KV in
    the prefill node's memory: it is read over the same PCIe, as it is stored."""
    token_s = GPU.token_s * (1 - REPAIR) - HANDED_BYTES * byte_s - GPU.token_bytes * LINK_S
    return round(GPU.overhead_s / token_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.handed_over",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rate", type=float, default=100.0, help="questions a second")
    add("--documents", type=int, default=1_000_000, help="chunks of 256 tokens, all stored")
    add("--alpha", type=float, default=0.9)
    add("--requests", type=int, default=6000)
    add("--out", type=Path, default=OUT)
    args = parser.parse_args()
    result = {
        "environment": {**describe(), "seed": SEED},
        "asked": {n: v for n, v in vars(args).items() if n != "out"} | {"answer": ANSWER},
        **simulated(args),
    }
    print(json.dumps(result, indent=1))
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
