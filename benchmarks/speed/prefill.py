"""TTFT of stitched prompts and of transformers' own forward over our full prefill.

    python -m benchmarks.speed.prefill [--threads 1] [--tokens 2048] [--chunks 4] [--out FILE]

Random-weight Qwen2.5-0.5B shape in bfloat16. Ours is submit to first token through the engine, the
chunks in the memory tier; theirs is one forward (sdpa) over the same token ids on an untouched
model of the same weights, with logits of the last row only, as its `generate` does.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe
from benchmarks.shapes import qwen2_5_0_5b, stock_qwen2_5_0_5b
from benchmarks.speed.paired import run_paired, table, write
from kvstore import MemoryTier, TieredStore
from service.records import Chunk, Method, Sampling
from service.worker.addressing import Addressing
from service.worker.engine import Engine
from service.worker.loader import Loader
from service.worker.request import FailedEvent, Request, TokenEvent

OURS, THEIRS = "full prefill", "transformers forward"
METHODS = {
    OURS: Method("vanilla"),
    "a3 r=0.15": Method("a3", {"ratio": 0.15}),
    "question_scout r=0.15": Method("question_scout", {"ratio": 0.15}),
    "pie": Method("pie"),
}
SYSTEM_TOKENS, QUESTION_TOKENS = 16, 32


def measure(
    *, tokens: int = 2048, chunks: int = 4, threads: int = 1, repetitions: int = 5,
    layers: int = 24, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Seconds per way and repetition and their ratios, as a JSON-ready record."""
    torch.set_num_threads(threads)
    adapter = qwen2_5_0_5b(seed=seed, layers=layers)
    stock = stock_qwen2_5_0_5b(seed=seed, layers=layers)
    random = torch.Generator().manual_seed(seed)

    def ids(wanted: int) -> list[int]:
        return torch.randint(0, adapter.vocabulary, (wanted,), generator=random).tolist()

    system, question = ids(SYSTEM_TOKENS), ids(QUESTION_TOKENS)
    documents = [Chunk(i, ids(tokens // chunks)) for i in range(chunks)]
    prompt = torch.tensor([system + [t for d in documents for t in d.ids] + question])
    with TieredStore([MemoryTier(4 << 30)]) as store:
        loader = Loader(store, threads=2)
        loader.start()
        addressing = Addressing(adapter, fingerprint=f"random-{seed}", codec="raw")
        engine = Engine(adapter, addressing, store, loader, pool_tokens=tokens + 256)
        with torch.inference_mode():
            for address in engine.admission.addresses(system, documents, "none", ""):
                assert address is not None
                engine.lane.compute_now(address)
            number = count()

            def answer(method: Method) -> None:
                _first_token(
                    engine,
                    Request(
                        str(next(number)), system, documents, question, method,
                        sampling=Sampling(max_tokens=1),
                    ),
                )  # fmt: skip

            ways: dict[str, Callable[[], object]] = {
                name: partial(answer, method) for name, method in METHODS.items()
            }
            ways[THEIRS] = partial(stock, prompt, use_cache=True, logits_to_keep=1)
            paired = run_paired(ways, repetitions)
        loader.close()
    ratios = {
        f"{name} over full prefill": paired.ratio(name, OURS) for name in METHODS if name != OURS
    }
    ratios["full prefill over transformers forward"] = paired.ratio(OURS, THEIRS)
    for name in METHODS:
        if name != OURS:
            ratios[f"{name} over transformers forward"] = paired.ratio(name, THEIRS)
    return {
        "what": f"TTFT at {tokens} tokens in {chunks} chunks, {threads} thread(s), memory tier, "
        "random-weight Qwen2.5-0.5B shape, bfloat16",
        "tokens": tokens,
        "chunks": chunks,
        "threads": threads,
        "layers": layers,
        "seed": seed,
        "environment": describe(),
        "seconds": paired.raw(),
        "ratios": ratios,
    }


def _first_token(engine: Engine, request: Request) -> None:
    engine.submit(request)
    told = False
    while not engine.scheduler.idle:
        for event in engine.step():
            assert not isinstance(event, FailedEvent), event
            told = told or isinstance(event, TokenEvent)
    assert told


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.prefill", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    record = measure(
        tokens=chosen.tokens,
        chunks=chosen.chunks,
        threads=chosen.threads,
        repetitions=chosen.repetitions,
    )
    print(table(record))
    write(record, f"prefill_{chosen.tokens}_{chosen.threads}", chosen.out)


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
