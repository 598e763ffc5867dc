"""Selects the middle blocks that a question needs, by the sketches of the documents, and plans
which tokens each layer holds and which it computes anew (specification.md §1.7, Q2 to Q6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.model.model_facts import ModelFacts
from kvstitch_methods.samkv.sketch import BlockGrid, Sketch

OUTLIER_SIGMAS = 3.0


@dataclass(frozen=True)
class SketchedDocument:
    """A document of the prompt with its sketch."""

    start: int  # the document's first row in the prompt
    grid: BlockGrid
    sketch: Sketch


@dataclass(frozen=True)
class SketchedPrompt:
    """What a sparse method knows about a prompt when it makes its plan."""

    layout: PromptLayout
    documents: Sequence[SketchedDocument]  # the non-empty documents in order, each with its sketch
    model: ModelFacts


@dataclass(frozen=True)
class Selection:
    """The middle blocks to keep."""

    # per layer, (document number, block number) pairs, ascending; equally many in every layer
    blocks: list[list[tuple[int, int]]]
    need: list[float]  # per document, the share P of its middle blocks that the question needs


def personalised(question: Tensor, locals_: Sequence[Tensor], *, bias: bool) -> list[Tensor]:
    """Return per document the query `[layers, heads, head_dim]` with which its blocks are scored
    (Q2): the question's mean query, with `bias` plus the mean of the other documents' local
    queries, each weighted by how similar it is to the question's."""
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
    """Return scores s(x) = Σ_h ⟨q[h], x[g(h)]⟩ of block keys, where g(h) is the KV head of query
    head h.
    """
    layers, _, kv_heads, d = keys.shape
    grouped = query.view(layers, kv_heads, -1, d).sum(2)
    return torch.einsum("lhd,lmhd->lm", grouped, keys.float())


def need(query: Tensor, document: SketchedDocument, stable_layers: Sequence[int]) -> float:
    """Return P in [0, 1), the share of the document's middle blocks that is needed (Q3)."""
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
    """Return scores of one document `[layers, m]`, made comparable between documents."""
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
    """Select middle blocks per layer (Q3, Q4): each document proposes its best ⌈P·|middle|⌉ by
    its query `[layers, heads, head_dim]`. Of all proposals, the best ⌈total / documents⌉ are
    kept, at most `limit`. Ties go to the lower document, then to the lower block."""
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
    """Return per document `[layers, blocks]` blocks whose representative token stays important
    for unusually long (P6): whose decay alpha is below the mean of the document's, or of all
    documents' `pooled`, blocks by more than 3 standard deviations."""
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


@dataclass(frozen=True)
class SparsePlan:
    """Per layer, prompt rows of S and the documents, ascending, equally many in every layer. The
    question is no part of the plan: it is always held and computed."""

    kept: list[list[int]]  # per layer, rows whose KV the layer holds
    fresh: list[list[int]]  # per layer, those of the kept rows whose KV is computed anew

    @cached_property
    def rows(self) -> list[list[int]]:
        """Per layer, rows whose hidden state is needed: those that it or a later layer computes."""
        rows: list[list[int]] = []
        later: set[int] = set()
        for computed in reversed(self.fresh):
            later |= set(computed)
            rows.append(sorted(later))
        return rows[::-1]

    @cached_property
    def padding(self) -> list[list[int]]:
        """Per layer, rows that run through it although it does not hold them: their stored KV is
        read for this layer alone."""
        return [
            sorted(set(rows) - set(kept)) for rows, kept in zip(self.rows, self.kept, strict=True)
        ]

    @property
    def recomputed(self) -> set[int]:
        """Rows that at least one layer computes anew."""
        return {t for layer in self.fresh for t in layer}


def fixed_tokens(documents: Sequence[SketchedDocument]) -> list[int]:
    """Return prompt rows of all documents' first and last blocks, ascending."""
    return [d.start + t for d in documents for t in d.grid.indices(d.grid.fixed)]


def recomputed_ends(grid: BlockGrid, share: float) -> list[int]:
    """Return tokens of a document's first and last blocks to compute anew, ascending."""
    ends = grid.indices(grid.fixed)
    if not grid.middle:
        return ends
    most = math.floor(share * grid.tokens + 1e-9)
    first = ends[: min(grid.block, most)]
    rest = ends[grid.block :]
    return first + rest[max(0, len(rest) - (most - len(first))) :]


def make_plan(
    system: int,
    documents: Sequence[SketchedDocument],
    selection: Selection,
    outlier: Sequence[Tensor],
    *,
    recompute: bool,
    max_recomputed: float = 1.0,
) -> SparsePlan:
    """Make SamKV's plan: S is kept and never computed. Computed anew are tokens of the
    documents' first and last blocks, as many as `max_recomputed` allows, and the representatives
    of kept outlier blocks `[layers, blocks]`."""
    edge = fixed_tokens(documents)
    anew = [d.start + t for d in documents for t in recomputed_ends(d.grid, max_recomputed)]
    kept, fresh = [], []
    for layer, blocks in enumerate(selection.blocks):
        middle, marked = [], []
        for number, block in blocks:
            document = documents[number]
            middle += [document.start + t for t in document.grid.span(block)]
            if bool(outlier[number][layer, block]):
                marked.append(document.start + int(document.sketch.representative[layer, block]))
        kept.append(sorted([*range(system), *edge, *middle]))
        fresh.append(sorted([*anew, *marked]) if recompute else [])
    return SparsePlan(kept, fresh)
