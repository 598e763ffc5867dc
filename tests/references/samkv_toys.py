"""Prompts and made-up layers for the references of SamKV: blocks of 4 tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.references.prefill import Prompt, Reference
from tests.references.samkv import SamKV, samkv
from tests.references.samkv_sketch import Sketch, document_sketches
from tests.service.worker.tiny import D1, D2, D3, Q, S, Tiny, assert_close

SOURCE = random.Random(11)
# 12, 9 and 11 blocks of 4; the last one of two of them is short.
LONG = [[SOURCE.randrange(2, 101) for _ in range(length)] for length in (47, 36, 41)]
SHORT = [D1, D2, D3]  # at most three blocks: no middle
SMALL = {"block": 4, "min_later": 3}

Documents = Sequence[Sequence[int]]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def causal(tokens: int, seed: int = 0) -> Tensor:
    """A random attention matrix."""
    scores = 2 * noise(tokens, tokens, seed=seed)
    return scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf).softmax(-1)


def run(model: Tiny, documents: Documents = LONG, **changes: Any) -> SamKV:
    """S, these documents and Q, in blocks of 4."""
    return samkv(model.reference, S, documents, Q, **{**SMALL, **changes})


def prompt_of(reference: Reference, documents: Documents, prefix: Sequence[int] = ()) -> Prompt:
    stored = [reference.precompute(S), *(reference.precompute(d, prefix) for d in documents)]
    return Prompt(S, [list(d) for d in documents], Q, [*stored])


def same_cache(claim: str, ours: SamKV, k: list[Tensor], v: list[Tensor]) -> None:
    """Kept tokens and question against full caches `[n, kv_heads, d]`."""
    question_rows = list(range(ours.trace.n - len(Q), ours.trace.n))
    for layer, kept in enumerate(ours.kept):
        assert_close(f"{claim}: K", ours.trace.k[layer], k[layer][[*kept, *question_rows]])
        assert_close(f"{claim}: V", ours.trace.v[layer], v[layer][[*kept, *question_rows]])


def with_outliers(
    reference: Reference, documents: Documents, layers: Sequence[int]
) -> list[list[Sketch]]:
    """Own sketches; at these layers every middle block but the first two is a low outlier of α."""
    out = []
    for ids in documents:
        sketches = document_sketches(reference, ids, (), 4, 3)
        for layer in layers:
            sketch = sketches[layer]
            alphas: list[float | None] = [1.0] * len(sketch.ranges)
            for j in sketch.middle[2:]:
                alphas[j] = -1.0
            sketches[layer] = replace(sketch, alphas=alphas)
        out.append(sketches)
    return out


def outlier_run(model: Tiny, layers: Sequence[int], **changes: Any) -> SamKV:
    """Half a deviation is enough here, so the outliers above are found; P from layer 0, all of
    its layers must know enough blocks."""
    sketches = with_outliers(model.reference, LONG, layers)
    return run(model, sketches=sketches, deviations=0.5, stable_layers=range(2), limit=8, **changes)
