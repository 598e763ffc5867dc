"""Decoding: our step against transformers' `generate`, and a batch against one sequence.

    python -m benchmarks.speed.decode [--threads 1] [--repetitions 5] [--out FILE]

Random-weight Qwen2.5-0.5B shape in bfloat16. Contexts are random KV of the right size, put into our
pool and into transformers' cache directly, so that only decoding is timed: greedy, every token one
forward of everything, transformers on an untouched model of the same weights. The batch has
contexts of eight different lengths around the one of batch 1; `evicted` is the same batch with
another number of entries left in every layer and KV head.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from benchmarks.environment import describe
from benchmarks.shapes import qwen2_5_0_5b, stock_qwen2_5_0_5b
from benchmarks.speed.paired import run_paired, table, write
from service.records import Sampling
from service.worker.adapters.base import DecoderAdapter
from service.worker.decode import decode_step
from service.worker.kv_pool import KVPool, SequenceKV
from service.worker.sampler import Sampler

BATCH = 8
OURS, EIGHT, EVICTED = "ours, batch 1", "ours, batch 8", "ours, batch 8, evicted"
THEIRS = "transformers generate, batch 1"


@dataclass
class Context:
    """A sequence whose context has been prefilled."""

    kv: SequenceKV
    position: int
    tokens: list[int] = field(default_factory=lambda: [1])


def measure(
    *, context: int = 2048, steps: int = 8, threads: int = 1, repetitions: int = 5,
    layers: int = 24, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Time of `steps` tokens for every way, as a JSON-ready record; ratios are of tokens/s."""
    torch.set_num_threads(threads)
    adapter = qwen2_5_0_5b(seed=seed, layers=layers)
    stock = stock_qwen2_5_0_5b(seed=seed, layers=layers)
    spread = [context + context // 64 * (2 * i - BATCH + 1) for i in range(BATCH)]
    total = sum(spread)
    room = steps * (repetitions + 1) + 1
    pool = KVPool(
        adapter.layers, adapter.kv_heads, adapter.head_dim,
        2 * total + context + (2 * BATCH + 1) * room,
        dtype=adapter.dtype, device=adapter.device,
    )  # fmt: skip
    torch.manual_seed(seed)
    one = [_filled(pool, context, room)]
    eight = [_filled(pool, n, room) for n in spread]
    evicted = [_filled(pool, n, room) for n in spread]
    for number, sequence in enumerate(evicted):
        _evict(sequence.kv, spread[number], room, number)

    ways = {
        OURS: lambda: _decode(adapter, one, steps),
        THEIRS: lambda: _generate(stock, adapter, context, steps),
        EIGHT: lambda: _decode(adapter, eight, steps),
        EVICTED: lambda: _decode(adapter, evicted, steps),
    }
    with torch.inference_mode():
        paired = run_paired(ways, repetitions)
    ratios = {
        "tokens/s over transformers generate": paired.ratio(THEIRS, OURS),
        "tokens/s at batch 8 over batch 1": paired.ratio(OURS, EIGHT, BATCH),
        "tokens/s at batch 8 evicted over batch 8": paired.ratio(EIGHT, EVICTED),
    }
    return {
        "what": f"decoding at {context} tokens of context, {threads} thread(s), random-weight "
        "Qwen2.5-0.5B shape, bfloat16",
        "context": context,
        "steps": steps,
        "threads": threads,
        "layers": layers,
        "seed": seed,
        "environment": describe(),
        "seconds": paired.raw(),
        "ratios": ratios,
    }


def _filled(pool: KVPool, tokens: int, room: int) -> Context:
    kv = pool.reserve(tokens + room)
    assert kv is not None
    for layer in range(len(kv.layers)):
        for store in kv.prompt_layer(layer, tokens):
            store.normal_()
    kv.set_length(tokens)
    return Context(kv, tokens)


def _evict(kv: SequenceKV, tokens: int, room: int, seed: int) -> None:
    """A quarter of the entries on average, between an eighth and three eighths per head."""
    random = torch.Generator().manual_seed(seed)
    for layer, extents in enumerate(kv.layers):
        share = torch.rand(len(extents.start), generator=random) / 4 + 0.125
        kept = [
            torch.randperm(tokens, generator=random)[: int(s * tokens)].sort().values
            for s in share.tolist()
        ]
        kv.keep(layer, kept, room)


def _decode(adapter: DecoderAdapter, sequences: list[Context], steps: int) -> None:
    greedy = Sampler(Sampling(max_tokens=steps))
    for _ in range(steps):
        for sequence, row in zip(sequences, decode_step(adapter, sequences), strict=True):
            sequence.tokens.append(greedy(row))
            sequence.position += 1


def _generate(model: Any, adapter: DecoderAdapter, context: int, steps: int) -> None:
    """transformers' own loop, its cache filled like ours; every token is one of its forwards."""
    cache = DynamicCache(config=adapter.config)
    for layer in range(adapter.layers):
        k, v = torch.zeros(2, 1, adapter.kv_heads, context, adapter.head_dim, dtype=adapter.dtype)
        cache.update(k, v, layer)
    ids = torch.ones(1, context + 1, dtype=torch.long)
    model.generate(
        ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True,
        do_sample=False, max_new_tokens=steps, min_new_tokens=steps, pad_token_id=0,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.decode", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    record = measure(
        context=chosen.context,
        steps=chosen.steps,
        threads=chosen.threads,
        repetitions=chosen.repetitions,
    )
    print(table(record))
    write(record, f"decode_{chosen.threads}", chosen.out)


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
