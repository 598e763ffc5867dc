"""How much of loading hides behind computing: TTFT over the longer of the two alone.

    python -m benchmarks.speed.loading [--tokens 2048] [--layers 24] [--repetitions 5] [--out FILE]

A3 on a random-weight Qwen2.5-0.5B shape, bfloat16. Chunks lie on an SSD, their pages dropped before
every read; once as fast as it is, once throttled so that loading alone takes as long as computing
alone, where nothing hides unless both really go on at once. Each repetition measures in turn:
loading alone (nothing computes), computing alone (chunks in memory), TTFT. Ratios are per
repetition.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe
from benchmarks.shapes import qwen2_5_0_5b
from benchmarks.sparse_ttft import drop_pages
from benchmarks.speed.planner import Prompt, Throttled, first_token, place, write
from kvstore import MemoryTier, SsdTier
from service.records import Method
from service.worker.engine import Engine

RESULT = Path("benchmarks/results/speed/loading.json")
A3 = Method("a3", {"ratio": 0.15})


def load_alone(engine: Engine, prompt: Prompt) -> float:
    """Seconds until every layer of every chunk is there."""
    started = time.perf_counter()
    streams = [engine.streams.join(a, "ssd") for a in prompt.addresses(engine)]
    for stream in streams:
        for part in stream.arrived:
            part.result()
    seconds = time.perf_counter() - started
    assert not any(stream.lost for stream in streams)
    return seconds


def measure(
    *, tokens: int, chunks: int, layers: int, repetitions: int, threads: int, seed: int
) -> dict[str, Any]:
    """Seconds per repetition and tier, as a JSON-ready record."""
    torch.set_num_threads(threads)
    adapter = qwen2_5_0_5b(seed=seed, layers=layers)
    prompt = Prompt(adapter, tokens, chunks, seed)
    stored = prompt.computed(adapter)
    nbytes = sum(chunk.nbytes for chunk in stored.values())
    runs: dict[str, list[dict[str, float]]] = {"ssd": [], "ssd as slow as computing": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        place(adapter, MemoryTier(1 << 33), tokens, stored) as memory,
    ):
        first_token(memory, prompt.request("warm-up", A3))
        pace = first_token(memory, prompt.request("pace", A3))[0]
        for number, label in enumerate(runs):
            path = Path(folder) / str(number)
            tier: Any = SsdTier(path, 1 << 36)
            if number:
                tier = Throttled(tier, nbytes / pace)
            with place(adapter, tier, tokens, stored, planner=False) as engine:
                for turn in range(repetitions):
                    drop_pages(path)
                    loading = load_alone(engine, prompt)
                    computing = first_token(memory, prompt.request(f"c{turn}", A3))[0]
                    drop_pages(path)
                    both, report = first_token(engine, prompt.request(f"b{turn}", A3))
                    runs[label].append(
                        {
                            "load_s": loading,
                            "compute_s": computing,
                            "ttft_s": both,
                            "ratio": both / max(loading, computing),
                            "over_sum": both / (loading + computing),
                            "exposed_s": report.stages["load"],
                        }
                    )
                    print(f"{label}: {turn + 1} of {repetitions}", flush=True)
    return {
        "what": "TTFT of A3 from SSD over the longer of loading alone and computing alone",
        "tokens": tokens,
        "chunks": chunks,
        "layers": layers,
        "bytes": nbytes,
        "threads": threads,
        "seed": seed,
        "environment": describe(),
        "runs": runs,
        "summary": {
            label: {
                name: statistics.median(run[name] for run in mine)
                for name in ("load_s", "compute_s", "ttft_s", "ratio", "over_sum", "exposed_s")
            }
            | {"min": min(r["ratio"] for r in mine), "max": max(r["ratio"] for r in mine)}
            for label, mine in runs.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.loading", description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=24, help="24 is the real shape")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = vars(parser.parse_args())
    out: Path = given.pop("out")
    record = measure(**given)
    for label, row in record["summary"].items():
        print(f"{label:26s} " + "  ".join(f"{name} {value:.3f}" for name, value in row.items()))
    write(out, record)


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
