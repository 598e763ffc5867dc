"""SamKV's precompute P1–P6 (specification.md §1.7) on the slow decoder of `prefill.py`: what
is known of a document before any question.

One `Sketch` per document and layer. A document is prefilled alone behind its prefix; the prefix
rows are keys like any other in that pass, but are neither scored nor part of a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.references.prefill import Reference

FLOOR = 1e-8  # smallest attention that the fit's logarithm sees (P5)


def block_ranges(tokens: int, size: int) -> list[range]:
    """Token ranges of the blocks: a grid from 0, the last one may be short."""
    return [range(at, min(at + size, tokens)) for at in range(0, tokens, size)]


def fixed_blocks(count: int) -> list[int]:
    """init (the first) and local (the last two), each once."""
    return sorted({*range(count)[:1], *range(count)[-2:]})


def middle_blocks(count: int) -> list[int]:
    """The rest; none of up to three blocks."""
    return [j for j in range(count) if j not in fixed_blocks(count)]


def tokens_of(blocks: Sequence[int], ranges: Sequence[range]) -> list[int]:
    return [t for j in blocks for t in ranges[j]]


@dataclass
class Sketch:
    """P2–P5 of one document at one layer. Per block; None where no token of the block is scored."""

    ranges: list[range]
    block_keys: Tensor  # [blocks, kv_heads, d], means before RoPE
    anchor: Tensor  # [kv_heads, d], mean over init and local tokens
    local_query: Tensor  # [heads, d], mean over local tokens, before RoPE
    representatives: list[int | None]  # tokens of the document
    masses: list[float | None]  # μ of the representative
    alphas: list[float | None]

    @property
    def middle(self) -> list[int]:
        return middle_blocks(len(self.ranges))

    @property
    def most_important(self) -> int | None:
        """The middle block of the smallest α, lower index among equals: K_max is its mean key."""
        known = [(alpha, j) for j in self.middle if (alpha := self.alphas[j]) is not None]
        return min(known)[1] if known else None

    @property
    def least_important(self) -> int | None:
        """The middle block whose representative has the lowest mass: K_min is its mean key."""
        known = [(mass, j) for j in self.middle if (mass := self.masses[j]) is not None]
        return min(known)[1] if known else None


def token_masses(attention: Tensor, min_later: int = 16) -> list[float | None]:
    """μ_t: mean over all later queries q > t of attention `[T, T]` (P4); None for tokens with
    fewer than `min_later` of them."""
    columns = attention.T.tolist()
    out: list[float | None] = []
    for t, values in enumerate(columns):
        later = values[t + 1 :]
        out.append(math.fsum(later) / len(later) if len(later) >= max(1, min_later) else None)
    return out


def representative(block: range, masses: Sequence[float | None]) -> int | None:
    """ρ: the scored token of the block with the greatest mass, lower index among equals."""
    scored = [(-mass, t) for t in block if (mass := masses[t]) is not None]
    return min(scored)[1] if scored else None


def power_law(values: Sequence[float]) -> float | None:
    """α of the least-squares line log y_x = c − α log x over x = 1, 2, …; None below two points."""
    if len(values) < 2:
        return None
    xs = [math.log(x) for x in range(1, len(values) + 1)]
    ys = [math.log(max(y, FLOOR)) for y in values]
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    covariance = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return -covariance / math.fsum((x - mean_x) ** 2 for x in xs)


def column(attention: Tensor, token: int) -> list[float]:
    """y_x = A[token + x, token] for x = 1, 2, … (P4's second pass)."""
    return attention[token + 1 :, token].tolist()


def sketch_of(
    k_pre: Tensor, q_pre: Tensor, attention: Tensor, block: int, min_later: int = 16
) -> Sketch:
    """P2–P5 from keys `[T, kv_heads, d]`, queries `[T, heads, d]` before RoPE and the head-mean
    attention `[T, T]` among the document's own tokens."""
    ranges = block_ranges(len(k_pre), block)
    local = tokens_of(range(len(ranges))[-2:], ranges)
    fixed = tokens_of(fixed_blocks(len(ranges)), ranges)
    masses = token_masses(attention, min_later)
    chosen = [representative(r, masses) for r in ranges]
    return Sketch(
        ranges=ranges,
        block_keys=torch.stack([k_pre[list(r)].mean(0) for r in ranges]),
        anchor=k_pre[fixed].mean(0),
        local_query=q_pre[local].mean(0),
        representatives=chosen,
        masses=[None if t is None else masses[t] for t in chosen],
        alphas=[None if t is None else power_law(column(attention, t)) for t in chosen],
    )


def document_sketches(
    reference: Reference,
    ids: Sequence[int],
    prefix: Sequence[int] = (),
    block: int = 64,
    min_later: int = 16,
) -> list[Sketch]:
    """One sketch per layer of a document with at least one token."""
    trace, a = reference.vanilla([*prefix, *ids]), len(prefix)
    out = []
    for layer in range(reference.layers):
        q_pre, k_pre, _ = reference.project(layer, trace.hidden[layer])
        attention = trace.attention[layer].mean(0)[a:, a:]
        out.append(sketch_of(k_pre[a:], q_pre[a:], attention, block, min_later))
    return out


def low_outliers(values: Sequence[float], deviations: float = 3.0) -> list[int]:
    """Numbers of the values below mean − `deviations` · population standard deviation (P6)."""
    if not values:
        return []
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return [i for i, v in enumerate(values) if v < mean - deviations * spread]


def outlier_blocks(
    sketches: Sequence[Sketch], pool: str = "document", deviations: float = 3.0
) -> list[list[int]]:
    """Per document, at one layer: blocks of any kind whose α is a low outlier among the scored
    blocks of the document, or (`pool` request) of all documents. Their representatives are the
    outlier tokens."""
    assert pool in ("document", "request")
    scored = [
        (number, j, alpha)
        for number, sketch in enumerate(sketches)
        for j, alpha in enumerate(sketch.alphas)
        if alpha is not None
    ]
    groups = [scored]
    if pool == "document":
        groups = [[s for s in scored if s[0] == number] for number in range(len(sketches))]
    out: list[list[int]] = [[] for _ in sketches]
    for group in groups:
        for i in low_outliers([alpha for _, _, alpha in group], deviations):
            out[group[i][0]].append(group[i][1])
    return out
