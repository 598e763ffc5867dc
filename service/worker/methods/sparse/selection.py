"""Which middle blocks of which document a question needs, from sketches (METHODS §1.7, Q2–Q5).

Knows no store, no KV and no request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.methods.sparse.blocks import BlockGrid
from service.worker.methods.sparse.sketch import Sketch

OUTLIER_SIGMAS = 3.0


@dataclass(frozen=True)
class SketchedDocument:
    """A document of the prompt by its place and its sketch."""

    start: int
    grid: BlockGrid
    sketch: Sketch


@dataclass(frozen=True)
class Selection:
    """blocks: per layer (document, block) pairs of middle blocks to keep, ascending, equally many
    in every layer; need: per document the share P of middle blocks it asked for."""

    blocks: list[list[tuple[int, int]]]
    need: list[float]


def personalised(question: Tensor, locals_: Sequence[Tensor], *, bias: bool) -> list[Tensor]:
    """Per document the query it is asked with: the question's, biased by what the other documents'
    local queries share with it (Q2). question and each of locals_ `[L, heads, d]` fp32."""
    own = question.float()
    if not bias or len(locals_) < 2:
        return [own for _ in locals_]
    weighted = []
    for local in (q.float() for q in locals_):
        cosine = torch.cosine_similarity(own.flatten(1), local.flatten(1), dim=1).abs()
        weighted.append(cosine[:, None, None] * local)
    total = torch.stack(weighted).sum(0)
    return [own + (total - part) / (len(locals_) - 1) for part in weighted]


def scores(query: Tensor, keys: Tensor) -> Tensor:
    """s(x) = Σ_h ⟨q[h], x[g(h)]⟩: query `[L, heads, d]`, keys `[L, m, kv_heads, d]` → `[L, m]`."""
    layers, _, kv_heads, d = keys.shape
    grouped = query.view(layers, kv_heads, -1, d).sum(2)
    return torch.einsum("lhd,lmhd->lm", grouped, keys.float())


def need(query: Tensor, document: SketchedDocument, stable_layers: Sequence[int]) -> float:
    """P in [0, 1): how far the best middle block beats the anchor, on the scale down to the worst,
    mean over the stable layers (Q3). Blocks that were not scored (only blocks of fewer than 16
    tokens may not be) are neither."""
    middle = document.grid.middle
    sketch = document.sketch
    if not middle:
        return 0.0
    rows = torch.arange(sketch.alpha.shape[0])
    alpha = sketch.alpha[:, middle]
    mass = sketch.mass[:, middle].masked_fill(~alpha.isfinite(), math.inf)
    best = torch.tensor(middle)[alpha.argmin(1).cpu()]
    worst = torch.tensor(middle)[mass.argmin(1).cpu()]
    keys = torch.stack([sketch.means[rows, best], sketch.means[rows, worst], sketch.anchor], dim=1)
    high, low, anchor = scores(query, keys).unbind(1)
    inside = (low < anchor) & (anchor <= high)
    gap = torch.where(inside, (high - anchor) / (high - low).clamp(min=1e-30), 0.0)
    return float(gap[list(stable_layers)].mean())


def normalised(s: Tensor, query: Tensor, how: str) -> Tensor:
    """Scores `[L, m]` of one document made comparable between documents. softmax: its logarithm,
    which orders alike and cannot underflow to ties."""
    if how == "minmax":
        low, high = s.amin(1, keepdim=True), s.amax(1, keepdim=True)
        spread: Tensor = (s - low) / (high - low).clamp(min=1e-30)
        return spread
    if how == "softmax":
        return s.log_softmax(1)
    lengths = torch.linalg.vector_norm(query.flatten(1), dim=1, keepdim=True)
    fair: Tensor = s / lengths.clamp(min=1e-30)
    return fair


def select(
    documents: Sequence[SketchedDocument],
    queries: Sequence[Tensor],
    *,
    stable_layers: Sequence[int],
    normalise: str = "norm",
    limit: int | None = None,
) -> Selection:
    """Middle blocks per layer (Q3, Q4): each document's best ⌈P·|middle|⌉, of those pooled over
    documents the best ⌈Σ/D⌉, at most `limit`; ties to the lower document and block."""
    layers = queries[0].shape[0] if queries else 0
    wants = [need(q, d, stable_layers) for q, d in zip(queries, documents, strict=True)]
    counts = [
        math.ceil(p * len(d.grid.middle) - 1e-9) for p, d in zip(wants, documents, strict=True)
    ]
    keep = math.ceil(sum(counts) / max(1, len(documents)))
    if limit is not None:
        keep = min(keep, limit)
    pooled: list[list[tuple[float, int, int]]] = [[] for _ in range(layers)]
    for number, (document, query, count) in enumerate(zip(documents, queries, counts, strict=True)):
        middle = document.grid.middle
        if not count:
            continue
        raw = scores(query, document.sketch.means[:, middle])
        fair = normalised(raw, query, normalise)
        order = raw.sort(dim=1, descending=True, stable=True).indices[:, :count].tolist()
        values = fair.tolist()
        for layer in range(layers):
            pooled[layer] += [(-values[layer][i], number, middle[i]) for i in order[layer]]
    return Selection([sorted((d, b) for _, d, b in sorted(p)[:keep]) for p in pooled], wants)


def outliers(documents: Sequence[SketchedDocument], *, pooled: bool) -> list[Tensor]:
    """Per document `[L, m]` bool: blocks whose representative stays important unusually long (P6):
    alpha below mean - 3 std of the layer's blocks, of the document or of the whole request. With
    ten blocks or fewer nothing can be three deviations away."""
    alphas = [d.sketch.alpha.double() for d in documents]
    everything = torch.cat(alphas, dim=1) if alphas else torch.empty(0, 0)
    out = []
    for alpha in alphas:
        among = everything if pooled else alpha
        scored = among.isfinite()
        count = scored.sum(1, keepdim=True).clamp(min=1)
        mean = among.masked_fill(~scored, 0).sum(1, keepdim=True) / count
        gap = (among - mean).masked_fill(~scored, 0)
        bound = mean - OUTLIER_SIGMAS * (gap.square().sum(1, keepdim=True) / count).sqrt()
        out.append(alpha.isfinite() & (alpha < bound))
    return out
