"""What a long prompt does to those who are reading their answers: TPOT beside it over TPOT alone.

    python -m benchmarks.speed.fairness [--tokens 8192] [--layers 24] [--seconds 120] [--out FILE]

Four streams decode; undisturbed for some tokens, then while a prompt of `tokens` is fused (A3),
then while it is fully prefilled, each until it is done or its time is up. The figure is the time
per token of the streams, mean and median, over the undisturbed of the same run. Chunks
are random KV in memory: nobody reads the answer. Random weights in the shape of Qwen2.5-0.5B.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe
from benchmarks.shapes import qwen2_5_0_5b
from benchmarks.speed.planner import Prompt, place, write
from kvstore import MemoryTier, encode_chunk
from service.records import Method, Sampling
from service.worker.adapters.base import DecoderAdapter
from service.worker.engine import Engine
from service.worker.request import DoneEvent, Request, TokenEvent

RESULT = Path("benchmarks/results/speed/fairness.json")
LONG = {"a3 r=0.15": Method("a3", {"ratio": 0.15}), "full prefill": Method("vanilla")}
STREAMS, STREAM_PROMPT, UNDISTURBED = 4, 64, 20


def random_chunks(engine: Engine, adapter: DecoderAdapter, prompt: Prompt) -> dict[str, Any]:
    chunks = {}
    for address in prompt.addresses(engine):
        layers = [torch.randn(address.spec.shape).to(adapter.dtype) for _ in range(adapter.layers)]
        chunks[address.key] = encode_chunk(address.spec, layers, layers)
    return chunks


def seconds_per_token(engine: Engine, until: Any) -> list[float]:
    """Between neighbouring tokens of a stream, while `until(events)` is not true."""
    out: list[float] = []
    last = time.perf_counter()
    while True:
        events = engine.step()
        if any(isinstance(e, TokenEvent) and e.id == "stream-0" for e in events):
            now = time.perf_counter()
            out.append(now - last)
            last = now
        if until(events):
            return out


def measure(
    *, tokens: int, chunks: int, layers: int, seconds: float, threads: int, seed: int
) -> dict[str, Any]:
    """Seconds per token of four streams, alone and beside long prompts, as a JSON-ready record."""
    torch.set_num_threads(threads)
    adapter = qwen2_5_0_5b(seed=seed, layers=layers)
    prompt = Prompt(adapter, tokens, chunks, seed)
    room = tokens + STREAMS * (STREAM_PROMPT + 4096)
    intervals: dict[str, list[float]] = {}
    finished: dict[str, bool] = {}
    with place(adapter, MemoryTier(1 << 34), room) as engine:
        for key, chunk in random_chunks(engine, adapter, prompt).items():
            engine.store.put(key, chunk)
        for i in range(STREAMS):
            question = prompt.question * (STREAM_PROMPT // len(prompt.question))
            engine.submit(
                Request(
                    f"stream-{i}", [], [], question, Method("vanilla"),
                    sampling=Sampling(max_tokens=4096),
                )
            )  # fmt: skip
        while len(engine.scheduler.running) < STREAMS:
            engine.step()
        for _ in range(3):
            engine.step()
        left = [UNDISTURBED]

        def enough(events: object) -> bool:
            left[0] -= 1
            return left[0] < 0

        intervals["undisturbed"] = seconds_per_token(engine, enough)
        for label, method in LONG.items():
            engine.submit(prompt.request(label, method))
            give_up_at = time.perf_counter() + seconds

            def over(events: Any, label: str = label, give_up_at: float = give_up_at) -> bool:
                if time.perf_counter() > give_up_at:
                    return True
                return any(isinstance(e, DoneEvent) and e.id == label for e in events)

            intervals[label] = seconds_per_token(engine, over)[1:]
            finished[label] = engine.scheduler.find(label) is None
            engine.abort(label, "deadline")
            engine.step()
    alone = intervals["undisturbed"]
    return {
        "what": "seconds per token of four streams beside a long prompt, over undisturbed",
        "tokens": tokens,
        "layers": layers,
        "threads": threads,
        "seed": seed,
        "environment": describe(),
        "seconds_per_token": intervals,
        "summary": {
            label: {
                "tokens": len(beside),
                "finished": finished.get(label, True),
                "mean_s": statistics.fmean(beside),
                "mean_ratio": statistics.fmean(beside) / statistics.fmean(alone),
                "median_ratio": statistics.median(beside) / statistics.median(alone),
                "worst_ratio": max(beside) / statistics.median(alone),
            }
            for label, beside in intervals.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.fairness", description=__doc__
    )
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--layers", type=int, default=24, help="24 is the real shape")
    parser.add_argument("--seconds", type=float, default=120, help="per long prompt, at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = vars(parser.parse_args())
    out: Path = given.pop("out")
    record = measure(**given)
    for label, row in record["summary"].items():
        print(f"{label:14s} " + "  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    write(out, record)


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
