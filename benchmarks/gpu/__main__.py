"""The GPU's table: results relative to what the device itself can do, measured in the same run.

    python -m benchmarks.gpu [--quick] [--repetitions 5] [--out FOLDER]

A model with random weights in the shape of Llama-3-8B, bfloat16; chunks are random KV in host
memory. Without a GPU the exit code is 2. `--quick --device cpu` runs the same code at a tiny shape,
which only shows that it runs. `benchmarks/gpu/run.sh` runs the GPU tests before it.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.contexts import contexts
from benchmarks.gpu.kernels import kernels
from benchmarks.gpu.run import Run, synchronised
from benchmarks.gpu.shapes import LLAMA_3_8B, RESULTS, TINY, random_model
from benchmarks.speed.contexts import decode, evict, filled, pool_for
from benchmarks.speed.engines import A3, FULL, METHODS, PIE, SCOUT, Prompt, answer, place
from benchmarks.speed.outcome import Figure, Outcome, at_least, at_most
from benchmarks.speed.paired import Paired, Work, run_paired
from benchmarks.speed.records import save
from benchmarks.speed.report import text
from kvstitch.kvstore import MemoryTier
from kvstitch.kvstore.format.tensor_layout import encoded_layer
from kvstitch.service.worker.api import BatchDecoder, decoder_for, full_prefill_flops
from kvstitch_tune.records import describe


def prefill(run: Run) -> Outcome:
    """Full prefill relative to matrix products, A3 to full prefill, int8 to raw."""
    decoder, number = run.decoder, count()
    prompt = Prompt(decoder, run.tokens, run.chunks, 0)
    ways: dict[str, Work] = {"product": synchronised(decoder, _product(run))}
    sizes: dict[str, int] = {}
    raw, int8 = (MemoryTier(64 << 30) for _ in "ab")
    with (
        place(decoder, raw, len(prompt.ids)) as plain,
        place(decoder, int8, len(prompt.ids), codec="int8") as small,
    ):
        for name, engine in ((A3, plain), ("a3, int8", small)):
            chunks = prompt.random_chunks(engine, decoder)
            for key, chunk in chunks.items():
                engine.store.put(key, chunk)
            sizes[name] = sum(chunk.nbytes for chunk in chunks.values())

            def ttft(engine: Any, method: str) -> None:
                answer(engine, prompt.request(str(next(number)), METHODS[method]))

            ways[name] = synchronised(decoder, partial(ttft, engine, A3))
        for name in (FULL, PIE, SCOUT):
            ways[name] = synchronised(decoder, partial(ttft, plain, name))
        paired = run_paired(ways, run.repetitions)
    work = full_prefill_flops(decoder, len(prompt.ids)) / (2.0 * run.square**3)
    figures = [
        paired.figure(
            f"full prefill of {run.tokens} tokens, operations/s over a matrix product's",
            "product", FULL, at_least(0.5), work,
        ),
        *(
            paired.figure(f"{name} from host memory over full prefill", name, FULL, at_most(0.25))
            for name in (A3, SCOUT, PIE)
        ),
        Figure("bytes of int8 chunks over raw", [sizes["a3, int8"] / sizes[A3]], at_most(0.55)),
        paired.figure("TTFT with int8 chunks over raw", "a3, int8", A3, at_most(1.0)),
    ]  # fmt: skip
    return Outcome(figures, {"seconds": paired.raw(), "bytes": sizes})


def transfer(run: Run) -> Outcome:
    """Copying chunks to the device, relative to one copy of the same number of pinned bytes."""
    decoder = run.decoder
    prompt = Prompt(decoder, run.tokens, run.chunks, 0)
    with place(decoder, MemoryTier(64 << 30), len(prompt.ids)) as engine:
        chunks = list(prompt.random_chunks(engine, decoder).values())
    pinned = torch.empty(sum(c.nbytes for c in chunks), dtype=torch.uint8)
    if decoder.device.type == "cuda":
        pinned = pinned.pin_memory()

    def ours() -> None:
        for layer in range(decoder.layers):
            for chunk in chunks:
                raw = chunk.layer_bytes(layer).to(decoder.device, non_blocking=True)
                encoded_layer(chunk.spec, raw)

    def bare() -> None:
        pinned.to(decoder.device, non_blocking=True)

    ways = {"ours": synchronised(decoder, ours), "bare": synchronised(decoder, bare)}
    paired = run_paired(ways, run.repetitions)
    what = "host to device, bytes/s over pinned"
    figure = paired.figure(what, "bare", "ours", at_least(0.8))
    return Outcome([figure], {"seconds": paired.raw()})


def decoding(run: Run) -> Outcome:
    """TPOT at batch 1 relative to reading weights and KV once; a large batch evicted."""
    decoder, steps = run.decoder, run.steps
    room = steps * (run.repetitions + 1) * 2 + 1
    batch = _fitting(run, run.tokens + room)
    pool = pool_for(decoder, [run.tokens] * batch, room)
    contexts = [filled(pool, run.tokens, room) for _ in range(batch)]
    decoding = BatchDecoder(decoder, pool)
    weights = sum(p.nbytes for p in decoder.model.parameters())
    weights -= decoder.model.get_input_embeddings().weight.nbytes  # only one row of it is read
    once = weights + run.tokens * decoder.kv_bytes_per_token
    source = torch.empty(run.copied, dtype=torch.uint8, device=decoder.device)
    target = torch.empty_like(source)
    ways: dict[str, Work] = {
        "copy": synchronised(decoder, partial(target.copy_, source)),
        "one": synchronised(decoder, partial(decode, decoding, contexts[:1], steps)),
    }
    alone = run_paired(ways, run.repetitions)
    del source, target, ways
    whole = synchronised(decoder, lambda: decode(decoding, contexts, steps))
    before = run_paired({"all": whole}, run.repetitions)
    for number, context in enumerate(contexts):
        evict(context, run.budget / run.tokens, room, seed=number)
    after = run_paired({"evicted": whole}, run.repetitions)
    both = Paired(before.taken | after.taken)
    bound = 2 * run.copied / (once * steps)  # a copy reads and writes
    return Outcome(
        [
            alone.figure(
                "TPOT at batch 1 over (weights + KV) / bandwidth",
                "one", "copy", at_most(1.3), bound,
            ),
            both.figure(
                f"TPOT at batch {batch}, {run.tokens} context, over budget {run.budget}",
                "all", "evicted", at_least(2.5),
            ),
        ],
        {"seconds": alone.raw() | both.raw(), "bytes": once},
    )  # fmt: skip


def _fitting(run: Run, tokens: int) -> int:
    """The largest power of two of contexts, at most `run.batch`, that the device has room for."""
    batch = run.batch
    if run.decoder.device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        # The two buffers of the copy, and a tenth for the products' own memory.
        free = int(0.9 * free) - 2 * run.copied
        while batch > 1 and batch * tokens * run.decoder.kv_bytes_per_token > free:
            batch //= 2
    return batch


def kernel_table(run: Run) -> Outcome:
    """Our kernels relative to what torch offers for the same job."""
    config = run.decoder.config
    return kernels(
        run.decoder.device, run.tokens, run.chunks, run.batch, run.repetitions,
        heads=config.num_attention_heads, kv_heads=run.decoder.kv_heads, d=run.decoder.head_dim,
    )  # fmt: skip


def _product(run: Run) -> Work:
    a, b = (
        torch.randn(run.square, run.square, dtype=torch.bfloat16, device=run.decoder.device)
        for _ in "ab"
    )
    return lambda: a @ b


# What was never measured comes first, in case time runs out.
LINES: dict[str, Callable[[Run], Outcome]] = {
    "gpu_contexts": contexts,
    "gpu_decode": decoding,
    "gpu_prefill": prefill,
    "gpu_kernels": kernel_table,
    "gpu_transfer": transfer,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here: nothing was measured", file=sys.stderr)
        return 2
    sizes = TINY if given.quick else LLAMA_3_8B
    decoder = decoder_for(random_model(sizes, given.device))
    run = Run(decoder, given.repetitions)
    if given.quick:
        run = Run(decoder, given.repetitions, 128, 4, 64, 1 << 20, 3, 32, 2, (64,))
    failed: list[str] = []
    for name, line in LINES.items():
        started = time.perf_counter()
        try:
            with torch.inference_mode():
                outcome = line(run)
        except Exception:  # the other lines are worth as much
            traceback.print_exc()
            failed.append(name)
            continue
        record = {
            "line": name,
            "threads": torch.get_num_threads(),
            "repetitions": given.repetitions,
            "seed": 0,
            "shape": sizes,
            "environment": describe(),
            "took_s": round(time.perf_counter() - started, 1),
            "figures": [figure.to_json() for figure in outcome.figures],
            "notes": list(outcome.notes),
            "samples": dict(outcome.samples),
        }
        save(given.out, record)
        print(f"{name}, {record['took_s']} s\n{text(record)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
