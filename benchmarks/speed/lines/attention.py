"""Attention of rows at scattered positions, relative to torch's sdpa with a mask; no target.

One layer in bfloat16. The rows are a random 15 % of the prompt, its last 32, or all. sdpa gets the
same tensors and a boolean mask over all keys, or is causal if the rows are all.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common.shapes import sizes
from benchmarks.speed.outcome import Figure, Outcome
from benchmarks.speed.paired import run_paired
from benchmarks.speed.setup import Setup
from service.worker.api import attend_rows


def run(setup: Setup) -> Outcome:
    numbers = sizes(setup.shape.model)
    heads, kv_heads = numbers["num_attention_heads"], numbers["num_key_value_heads"]
    head_dim = numbers["hidden_size"] // heads
    scale = head_dim**-0.5
    seconds: dict[str, Any] = {}
    figures: list[Figure] = []
    for n in (setup.shape.tokens, setup.shape.long_tokens):
        scattered = torch.randperm(n)[: int(0.15 * n)].sort().values
        cases = {
            "15 %": scattered,
            "last 32": torch.arange(n - 32, n),
            "all": torch.arange(n),
        }
        k, v = torch.randn(2, kv_heads, n, head_dim).bfloat16()
        for name, rows in cases.items():
            q = torch.randn(len(rows), heads, head_dim).bfloat16()
            with torch.inference_mode():
                paired = run_paired(
                    {
                        "ours": partial(attend_rows, q, k, v, rows, scale),
                        "sdpa": partial(_sdpa, q, k, v, rows, scale),
                    },
                    setup.repetitions,
                )
            what = f"attention of {name} of {n} rows"
            seconds[what] = paired.raw()
            figures.append(paired.figure(f"{what}, over sdpa", "ours", "sdpa"))
    return Outcome(figures, {"seconds": seconds})


def _sdpa(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, scale: float) -> Tensor:
    n = k.shape[1]
    heads_first = q.transpose(0, 1).unsqueeze(0)
    mask = None if len(rows) == n else torch.arange(n) <= rows[:, None]
    return F.scaled_dot_product_attention(
        heads_first, k[None], v[None], attn_mask=mask, is_causal=mask is None, scale=scale,
        enable_gqa=True,
    )  # fmt: skip
