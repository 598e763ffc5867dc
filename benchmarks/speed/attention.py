"""Attention of rows at scattered indices against sdpa with a mask over every key.

    python -m benchmarks.speed.attention [--threads 1] [--out FILE]

One layer of the Qwen2.5-0.5B shape (14 heads, 2 KV heads of 64) in bfloat16; the rows are 15 % of
the prompt at random indices, its last 32, or all. `sdpa` is torch's kernel on the same tensors: a
boolean mask of rows over all keys, or causal where the rows are all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.speed.paired import run_paired, table, write
from service.worker.attention import attend_rows

HEADS, KV_HEADS, HEAD_DIM = 14, 2, 64
SCALE = HEAD_DIM**-0.5


def measure(
    *, tokens: tuple[int, ...] = (2048, 8192), threads: int = 1, repetitions: int = 5, seed: int = 0
) -> dict[str, Any]:
    """Seconds per case and repetition and the ratio of ours to sdpa, as a JSON-ready record."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    seconds, ratios = {}, {}
    for n in tokens:
        scattered = torch.randperm(n)[: int(0.15 * n)].sort().values
        cases = {"15 %": scattered, "last 32": torch.arange(n - 32, n), "all": torch.arange(n)}
        k, v = torch.randn(2, KV_HEADS, n, HEAD_DIM).bfloat16()
        for name, rows in cases.items():
            q = torch.randn(len(rows), HEADS, HEAD_DIM).bfloat16()
            ways: dict[str, Callable[[], object]] = {
                "ours": partial(attend_rows, q, k, v, rows, SCALE),
                "sdpa": partial(_sdpa, q, k, v, rows),
            }
            with torch.inference_mode():
                paired = run_paired(ways, repetitions)
            case = f"{name} of {n} rows"
            seconds[case] = paired.raw()
            ratios[f"{case}, ours over sdpa"] = paired.ratio("ours", "sdpa")
    return {
        "what": f"attention of one layer, {threads} thread(s), 14 heads, 2 KV heads of 64, "
        "bfloat16",
        "threads": threads,
        "seed": seed,
        "environment": describe(),
        "seconds": seconds,
        "ratios": ratios,
    }


def _sdpa(q: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> Tensor:
    n = k.shape[1]
    heads_first = q.transpose(0, 1).unsqueeze(0)
    mask = None if len(rows) == n else torch.arange(n) <= rows[:, None]
    return F.scaled_dot_product_attention(
        heads_first, k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=SCALE,
        enable_gqa=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.attention", description=__doc__
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    record = measure(threads=chosen.threads, repetitions=chosen.repetitions)
    print(table(record))
    write(record, f"attention_{chosen.threads}", chosen.out)


if __name__ == "__main__":
    # Contended cores spin 10 to 500 times longer without this; set before any OpenMP region.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
