"""LegoLink, CacheBlend, question_scout and the exact operation count (docs/specification.md §1.3,
§1.4, §4), on the slow decoder of `prefill.py`.

A method is a list of token sets, one per layer: the rows whose K and V are computed there
(`Reference.stitched`). Ratios are exact decimals of all n prompt tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from tests.references.prefill import Prompt, Reference, Trace, index_mask

RowSets = list[list[int]]  # [layer] -> token indices, ascending


def share(ratio: float, tokens: int) -> int:
    """⌊ratio · tokens⌋, ratio as it was written: 0.29 of 100 is 29."""
    return math.floor(Fraction(str(ratio)) * tokens)


def top(scores: Sequence[float], among: Sequence[int], count: int) -> list[int]:
    """The `count` highest (at most all), lower index first among equals; ascending."""
    return sorted(sorted(among, key=lambda t: (-scores[t], t))[:count])


def cached_documents(prompt: Prompt) -> list[int]:
    """Document tokens with stored KV: all that a method may choose from."""
    return prompt.indices(uncached=False, documents_only=True)


def always_computed(prompt: Prompt) -> list[int]:
    """Q and every segment without stored KV."""
    return sorted({*prompt.indices(uncached=True), *prompt.question_indices})


# -- LegoLink / EPIC (docs/specification.md §1.4) --------------------------------------------------


def legolink_rows(
    prompt: Prompt, k_first: int = 20, k_last: int = 20, *, skip_first_doc: bool = False
) -> list[int]:
    """First and last tokens of each cached document; a shorter document as a whole, and once.

    The first document is the first one that has tokens.
    """
    rows: set[int] = set()
    seen = 0
    for number, ids in enumerate(prompt.documents, 1):
        seen += bool(ids)
        if prompt.stored[number] is None or (skip_first_doc and seen == 1):
            continue
        tokens = range(prompt.starts[number], prompt.starts[number] + len(ids))
        rows |= {*tokens[:k_first], *tokens[max(0, len(ids) - k_last) :]}
    return sorted(rows)


def legolink(
    reference: Reference,
    prompt: Prompt,
    k_first: int = 20,
    k_last: int = 20,
    *,
    skip_first_doc: bool = False,
) -> Trace:
    """Computes these rows, uncached segments and Q, starting from their embeddings."""
    rows = legolink_rows(prompt, k_first, k_last, skip_first_doc=skip_first_doc)
    return reference.forced_rows(prompt, [*rows, *always_computed(prompt)])


# -- CacheBlend (docs/specification.md §1.3) -------------------------------------------------------


def deviation(prompt: Prompt, trace: Trace, layer: int, metric: str = "V") -> list[float]:
    """δ(t) per token: Σ over heads and channels of (fresh − stored)², V or K before RoPE, float32;
    NaN where the pass computed nothing or nothing is stored."""
    fresh = (trace.v if metric == "V" else trace.k_pre)[layer]
    computed = trace.hidden[layer].isfinite().all(-1)
    out = [float("nan")] * trace.n
    for segment, start in zip(prompt.stored, prompt.starts, strict=False):
        if segment is None:
            continue
        stored = (segment.v if metric == "V" else segment.k_pre)[layer]
        for i in range(segment.tokens):
            if computed[start + i]:
                out[start + i] = float(((fresh[start + i] - stored[i]) ** 2).sum())
    return out


def cacheblend_selected(
    reference: Reference,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    metric: str = "V",
    check_layer: int = 1,
) -> RowSets:
    """Re of the check layer, then of the layers after it, one per ratio (those that the model
    has): cached document tokens only, each set the top of the one before by that layer's δ."""
    placed, fixed = reference.placed(prompt), always_computed(prompt)
    every, current = list(range(len(prompt.ids))), cached_documents(prompt)
    computed = [every] * (check_layer + 1)
    out: RowSets = []
    for ratio in ratios[: reference.layers - check_layer]:
        layer = check_layer + len(out)
        missing = reference.layers - len(computed)
        trace = reference.stitched(prompt.ids, placed, [*computed, *[computed[-1]] * missing])
        scores = deviation(prompt, trace, layer, metric)
        current = top(scores, current, share(ratio, len(every)))
        out.append(current)
        computed.append(sorted({*current, *fixed}))
    return out


def cacheblend_computed(
    reference: Reference,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    metric: str = "V",
    check_layer: int = 1,
) -> RowSets:
    """Layers up to the check layer: K, V of all tokens. Layer c + i: those of Re_i (the last one
    from the schedule's end on), of uncached segments and of Q."""
    assert list(ratios) == sorted(ratios, reverse=True) and ratios
    selected = cacheblend_selected(
        reference, prompt, ratios, metric=metric, check_layer=check_layer
    )
    sets = [list(range(len(prompt.ids)))] * (check_layer + 1)
    sets += [sorted({*rows, *always_computed(prompt)}) for rows in selected]
    sets += [sets[-1]] * reference.layers
    return sets[: reference.layers]


def cacheblend(
    reference: Reference,
    prompt: Prompt,
    ratios: Sequence[float],
    *,
    metric: str = "V",
    check_layer: int = 1,
) -> Trace:
    """One ratio: CacheBlend as its code does it. Several: the paper's gradual filtering, where
    layer c + i ranks the rows it computed and writes fresh K, V of all of these."""
    computed = cacheblend_computed(
        reference, prompt, ratios, metric=metric, check_layer=check_layer
    )
    return reference.stitched(prompt.ids, reference.placed(prompt), computed)


# -- question_scout -------------------------------------------------------------------------------


def attention_scores(
    reference: Reference, prompt: Prompt, question: float = 0.5
) -> list[list[float]]:
    """e_l(t) `[layer][token]`: attention that the last question row pays token t in a PIE pass,
    plus `question` times the mean of what all question rows pay it; summed over query heads. Each
    row's softmax runs over all keys up to itself."""
    trace = reference.pie(prompt)
    rows = prompt.question_indices
    out = []
    for weights in trace.attention:
        total = torch.zeros(trace.n)
        for h in range(reference.heads):
            total += weights[h, rows[-1]]
            for j in rows:
                total += weights[h, j] * question / len(rows)
        out.append(total.tolist())
    return out


def stale_documents(prompt: Prompt, prefix: Sequence[int] = ()) -> list[int]:
    """Numbers of the cached documents whose KV can differ from that of full prefill.

    They were precomputed behind `prefix`, and something else stands before them in the prompt.
    """
    cached = [m for m in range(1, len(prompt.starts) - 1) if prompt.stored[m] is not None]
    return [m for m in cached if prompt.ids[: prompt.starts[m]] != list(prefix)]


def edge_tokens(prompt: Prompt, edge: int, prefix: Sequence[int] = ()) -> list[int]:
    """First `edge` tokens of every stale document: all first tokens, then all second tokens, …

    Among equals the lower index comes first.
    """
    out = []
    for depth in range(edge):
        for number in stale_documents(prompt, prefix):
            if depth < len(prompt.documents[number - 1]):
                out.append(prompt.starts[number] + depth)
    return out


def rows_after_question_pass(
    reference: Reference,
    prompt: Prompt,
    ratio: float,
    edge: int = 0,
    *,
    layers: Sequence[int] | None = None,
    prefix: Sequence[int] = (),
) -> list[int]:
    """Document rows that are recomputed, p = min(|D_stale|, ⌊ratio · n⌋) of them.

    First tokens of documents, at most half of ⌊ratio · n⌋; then the other tokens of stale documents
    with the highest scores, summed over `layers` (default: all).
    """
    documents = [
        prompt.starts[number] + t
        for number in stale_documents(prompt, prefix)
        for t in range(len(prompt.documents[number - 1]))
    ]
    p = min(len(documents), share(ratio, len(prompt.ids)))
    per_layer = attention_scores(reference, prompt)
    used = range(reference.layers) if layers is None else layers
    total = [sum(per_layer[layer][t] for layer in used) for t in range(len(prompt.ids))]
    edges = edge_tokens(prompt, edge, prefix)[: share(ratio, len(prompt.ids)) // 2]
    others = [t for t in documents if t not in edges]
    return sorted([*edges, *top(total, others, p - len(edges))])


def question_scout(
    reference: Reference,
    prompt: Prompt,
    ratio: float,
    edge: int = 0,
    *,
    layers: Sequence[int] | None = None,
    prefix: Sequence[int] = (),
    again_from: float = 0.0,
) -> Trace:
    """The whole method: PIE gives the scores, then the chosen rows are computed.

    With them run uncached segments, and Q from layer `reused_layers` on; before it, Q is as in PIE.
    """
    rows = rows_after_question_pass(reference, prompt, ratio, edge, layers=layers, prefix=prefix)
    reused_layers = reused_question_layers(
        reference, prompt, rows, again_from, reference.layers, prefix
    )
    every = sorted({*rows, *always_computed(prompt)})
    return pass_with_reused_question(
        reference, prompt, reference.placed(prompt), [every] * reference.layers, reused_layers
    )


def reused_question_layers(
    reference: Reference,
    prompt: Prompt,
    rows: Sequence[int],
    again_from: float,
    pass_layers: int,
    prefix: Sequence[int] = (),
) -> int:
    """Number of first layers in which Q is reused from a question pass through `pass_layers`.

    0 if `rows` are no stale token or all of them, or if a segment is uncached.
    """
    stale = sum(len(prompt.documents[m - 1]) for m in stale_documents(prompt, prefix))
    if not 0 < len(rows) < stale or prompt.indices(uncached=True):
        return 0
    return min(round(Fraction(str(again_from)) * reference.layers), pass_layers - 1)


def pass_with_reused_question(
    reference: Reference,
    prompt: Prompt,
    placed: Sequence[tuple[Tensor, Tensor]],
    computed: Sequence[Sequence[int]],
    reused_layers: int,
) -> Trace:
    """The `computed` rows of each layer over `placed`; in the first layers Q is as in PIE."""
    first, question_rows = reference.pie(prompt), set(prompt.question_indices)
    placed = [(k.clone(), v.clone()) for k, v in placed]
    computed = [list(rows) for rows in computed]
    for layer in range(reused_layers):
        at = sorted(question_rows)
        placed[layer][0][at], placed[layer][1][at] = first.k[layer][at], first.v[layer][at]
        computed[layer] = [t for t in computed[layer] if t not in question_rows]
    rejoin = (reused_layers, first.hidden[reused_layers]) if reused_layers else None
    trace = reference.stitched(prompt.ids, placed, computed, rejoin=rejoin)
    for layer in range(reused_layers):  # eviction methods read Q's attention there too
        at = sorted(question_rows)
        weights = reference.attention(first.q[layer], trace.k[layer], index_mask(at, trace.n))
        trace.attention[layer][:, at] = weights[:, at]
        trace.hidden[layer][at] = first.hidden[layer][at]
    return trace


# -- operations (docs/specification.md §4) ---------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What a decoder's operation count depends on; the MLP is gated (three matrices)."""

    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int


def visible_pairs(rows: Sequence[int]) -> int:
    """(query, key) pairs of these rows: row t sees the keys 0 .. t."""
    return sum(t + 1 for t in rows)


def flops(
    shape: Shape,
    projected: Sequence[Sequence[int]],
    finished: Sequence[Sequence[int]],
    scored: Sequence[Sequence[int]] | None = None,
) -> int:
    """Multiplications and additions of one prefill, from token sets per layer.

    projected: rows whose q, k, v are computed, 2 · in · out per matrix. finished: rows that attend
    (4 · heads · head_dim per visible pair: scores and mixing) and go through o_proj and MLP.
    scored: rows whose attention is computed once more for a ranking only (half of that per pair).
    One row is unembedded.
    """
    query_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    total = 2 * shape.hidden * shape.vocabulary
    for rows in projected:
        total += len(rows) * 2 * shape.hidden * (query_width + 2 * kv_width)
    for rows in finished:
        total += len(rows) * (2 * query_width * shape.hidden + 3 * 2 * shape.hidden * shape.mlp)
        total += visible_pairs(rows) * 4 * query_width
    for rows in scored or ():
        total += visible_pairs(rows) * 2 * query_width
    return total


def finished_rows(computed: Sequence[Sequence[int]], last: Sequence[int]) -> list[list[int]]:
    """Rows that attend and pass the MLP at each layer: those the next layer computes; after the
    last layer the ones whose output is wanted (the last token, or all rows of that layer)."""
    return [*(list(rows) for rows in computed[1:]), list(last)]
