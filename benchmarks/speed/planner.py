"""Never slower than the better of loading everything and computing everything, at any bandwidth.

    python -m benchmarks.speed.planner [--tokens 512] [--layers 4] [--repetitions 3] [--out FILE]

Chunks lie on an SSD behind a throttle (all readers share it; nothing is kept in memory). Each
repetition runs, in turn and per bandwidth: full prefill, the method with the planner off (loads
whatever is stored), and with it on. A ratio is TTFT with the planner over the lesser of the other
two of its repetition. The first repetition is told separately: its planner has never read that
tier. Random weights in the shape of Qwen2.5-0.5B, by default
with fewer layers: bytes and operations shrink alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe
from benchmarks.shapes import qwen2_5_0_5b
from kvstore import EncodedChunk, MemoryTier, SsdTier, TieredStore
from kvstore.tiers.base import Tier
from service.records import Chunk, Method, Report, Sampling
from service.worker.adapters.base import DecoderAdapter
from service.worker.addressing import Address, Addressing
from service.worker.engine import Engine
from service.worker.loader import Loader
from service.worker.request import DoneEvent, FailedEvent, Request, TokenEvent

RESULT = Path("benchmarks/results/speed/planner.json")
MB = 1_000_000
BANDWIDTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)  # MB/s; 0.1: below what this shape needs on a CPU core
METHODS = {"a3": Method("a3", {"ratio": 0.15}), "pie": Method("pie")}
QUESTION_TOKENS, SYSTEM_TOKENS = 32, 16


class Throttled:
    """A tier whose readers together get so many bytes a second; else the tier it stands before."""

    def __init__(self, tier: Tier, bytes_per_s: float) -> None:
        self._tier = tier
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tier, name)

    def read(self, *args: Any, **kwargs: Any) -> EncodedChunk | None:
        chunk = self._tier.read(*args, **kwargs)
        self._pay(chunk.nbytes if chunk is not None else 0)
        return chunk

    def read_ranges(self, *args: Any, **kwargs: Any) -> Any:
        data = self._tier.read_ranges(*args, **kwargs)
        self._pay(data.numel() if data is not None else 0)
        return data

    def _pay(self, nbytes: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._bytes_per_s
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


class Prompt:
    """One prompt of random ids and its chunks."""

    def __init__(self, adapter: DecoderAdapter, tokens: int, chunks: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)

        def ids(count: int) -> list[int]:
            return torch.randint(0, adapter.vocabulary, (count,), generator=random).tolist()

        self.tokens = tokens
        self.system, self.question = ids(SYSTEM_TOKENS), ids(QUESTION_TOKENS)
        self.documents = [Chunk(i, ids(tokens // chunks)) for i in range(chunks)]

    def request(self, name: str, method: Method, max_tokens: int = 1) -> Request:
        sampling = Sampling(max_tokens=max_tokens)
        return Request(name, self.system, self.documents, self.question, method, sampling=sampling)

    def computed(self, adapter: DecoderAdapter) -> dict[str, EncodedChunk]:
        """Key to chunk, precomputed once."""
        with place(adapter, MemoryTier(1 << 33), self.tokens) as engine, torch.inference_mode():
            out = {}
            for address in self.addresses(engine):
                engine.lane.compute_now(address)
                found = engine.streams.read(address).chunk
                assert found is not None
                out[address.key] = found
            return out

    def addresses(self, engine: Engine) -> list[Address]:
        found = engine.admission.addresses(self.system, self.documents, "none", "")
        return [address for address in found if address is not None]


@contextmanager
def place(
    adapter: DecoderAdapter,
    tier: Tier,
    tokens: int,
    chunks: dict[str, EncodedChunk] | None = None,
    *,
    planner: bool = True,
) -> Iterator[Engine]:
    """An engine on a store of that tier alone, which gets the chunks."""
    with TieredStore([tier]) as store:
        for key, chunk in (chunks or {}).items():
            store.put(key, chunk)
        store.flush(60)
        loader = Loader(store, threads=4)
        loader.start()
        addressing = Addressing(adapter, fingerprint="random", codec="raw")
        try:
            yield Engine(
                adapter, addressing, store, loader, pool_tokens=tokens + 512, planner=planner
            )
        finally:
            loader.close()


def first_token(engine: Engine, request: Request) -> tuple[float, Report]:
    """Seconds from asking to the first token; the report."""
    started = time.perf_counter()
    engine.submit(request)
    first, report = 0.0, None
    while report is None:
        if engine.idle:
            time.sleep(0.0005)  # the server would wait to be woken
        for event in engine.step():
            if isinstance(event, TokenEvent) and not first:
                first = time.perf_counter() - started
            if isinstance(event, FailedEvent):
                raise RuntimeError(event.message)
            if isinstance(event, DoneEvent):
                report = event.report
    return first, report


def measure(
    *, tokens: int, chunks: int, layers: int, repetitions: int, threads: int, seed: int
) -> dict[str, Any]:
    """Seconds per method, bandwidth and repetition, as a JSON-ready record."""
    torch.set_num_threads(threads)
    adapter = qwen2_5_0_5b(seed=seed, layers=layers)
    prompt = Prompt(adapter, tokens, chunks, seed)
    stored = prompt.computed(adapter)
    runs: list[dict[str, Any]] = []
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:

        def engine_at(speed: float, planner: bool) -> Engine:
            tier = SsdTier(Path(folder) / f"{speed}-{planner}", 1 << 36)
            slow: Any = Throttled(tier, speed * MB)
            return stack.enter_context(place(adapter, slow, tokens, stored, planner=planner))

        engines = {(b, on): engine_at(b, on) for b in BANDWIDTHS for on in (True, False)}
        for turn in range(repetitions + 1):
            for speed in BANDWIDTHS:
                engine = engines[speed, True]
                full, _ = first_token(engine, prompt.request(f"full-{turn}", Method("vanilla")))
                for name, method in METHODS.items():
                    label = f"{name}-{turn}"
                    planned, report = first_token(engine, prompt.request(label, method))
                    size = sum(chunk.nbytes for chunk in stored.values())
                    loading = float("inf")  # what would take longer than 1.5 prefills is not run
                    if size / (speed * MB) < 1.5 * full:
                        alone = engines[speed, False]
                        loading, _ = first_token(alone, prompt.request(label, method))
                    runs.append(
                        {
                            "turn": turn,
                            "mb_per_s": speed,
                            "method": name,
                            "full_s": full,
                            "load_s": loading if loading < float("inf") else None,
                            "planned_s": planned,
                            "ratio": planned / min(full, loading),
                            "loaded": sum(d.tier != "cold" for d in report.documents),
                        }
                    )
            print(f"turn {turn} of {repetitions} done", flush=True)
        stack.close()
    return {
        "what": "TTFT with the planner over the lesser of loading everything and full prefill",
        "tokens": tokens,
        "chunks": chunks,
        "layers": layers,
        "threads": threads,
        "seed": seed,
        "environment": describe(),
        "runs": runs,
        "summary": summary(runs),
    }


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for speed in BANDWIDTHS:
        for name in METHODS:
            mine = [r for r in runs if (r["mb_per_s"], r["method"]) == (speed, name)]
            later = [r["ratio"] for r in mine if r["turn"]]
            out.append(
                {
                    "mb_per_s": speed,
                    "method": name,
                    "ratio": statistics.median(later),
                    "min": min(later),
                    "max": max(later),
                    "first": mine[0]["ratio"],
                    "loaded": statistics.median(r["loaded"] for r in mine if r["turn"]),
                    "over_full": statistics.median(
                        r["planned_s"] / r["full_s"] for r in mine if r["turn"]
                    ),
                }
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.planner", description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4, help="24 is the real shape")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = vars(parser.parse_args())
    out: Path = given.pop("out")
    record = measure(**given)
    for row in record["summary"]:
        print("  ".join(f"{k} {v:.4g}" if k != "method" else v for k, v in row.items()))
    write(out, record)


def write(out: Path, record: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
