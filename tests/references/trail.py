"""The reference of question_trail: scores, seeds, and the rows that are started and continued.

Written from the method's description, on the slow decoder of `prefill.py`; shares are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from tests.references.fusion import (
    always_computed,
    attention_scores,
    edge_tokens,
    pass_with_reused_question,
    reused_question_layers,
    stale_documents,
    top,
)
from tests.references.prefill import Prompt, Reference, Trace


@dataclass(frozen=True)
class Trail:
    """The result of the method on one prompt.

    Attributes:
        layers: layers whose attention counts.
        seeds: rows of the seed pass.
        question_scores: by token, attention from the question.
        total: by token, attention from the question and the seeds.
        started: document rows computed at layers 0 and 1.
        continued: document rows computed from layer 2 on.
        trace: the prompt's computation.
    """

    layers: range
    seeds: list[int]
    question_scores: list[float]
    total: list[float]
    started: list[int]
    continued: list[int]
    trace: Trace


def trail(
    reference: Reference,
    prompt: Prompt,
    ratio: float,
    *,
    edge: int = 2,
    leads: float = 0.1,
    breadth: float = 2.0,
    sure: float = 0.5,
    from_depth: float = 0.33,
    again_from: float = 0.0,
    prefix: Sequence[int] = (),
) -> Trail:
    """The whole method on one prompt without uncached segments."""
    n, depth = len(prompt.ids), reference.layers
    stale = [
        prompt.starts[number] + t
        for number in stale_documents(prompt, prefix)
        for t in range(len(prompt.documents[number - 1]))
    ]
    exact = Fraction(str(ratio))
    stop = max(1, depth - 1)
    used = range(min(math.ceil(Fraction(str(from_depth)) * depth), stop - 1), stop)
    by_layer = attention_scores(reference, prompt)
    first = [sum(by_layer[layer][t] for layer in used) for t in range(n)]

    wanted = math.floor(exact * Fraction(str(leads)) * n)
    if leads and math.floor(exact * n):
        wanted = max(1, wanted)
    seeds = top(first, stale, wanted)
    fixed, placed = always_computed(prompt), reference.placed(prompt)
    total = list(first)
    if seeds:
        seed_pass = reference.stitched(prompt.ids, placed, [sorted({*seeds, *fixed})] * depth)
        seen = torch.zeros(n)
        for layer in used:
            for seed in seeds:
                for head in range(reference.heads):
                    seen += seed_pass.attention[layer][head, seed] * first[seed]
        seen[seeds] = 0
        among = sum(float(seen[t]) for t in stale)
        if among > 0:
            scale = sum(first[t] for t in stale) / among
            total = [first[t] + float(seen[t]) * scale for t in range(n)]
        placed = [(k.clone(), v.clone()) for k, v in placed]
        for layer in range(used.stop):  # the KV that the seed pass computed stays in place
            placed[layer][0][seeds] = seed_pass.k[layer][seeds]
            placed[layer][1][seeds] = seed_pass.v[layer][seeds]

    def best(scores: Sequence[float], among: Sequence[int], share: Fraction) -> list[int]:
        """First tokens, at most half of the rows; then rows by the question's scores, until both
        are the share `sure`; the rest by `scores`."""
        count = math.floor(share * n)
        certain = math.floor(Fraction(str(sure)) * count)
        early = edge_tokens(prompt, edge, prefix)[: certain // 2]
        picked = {*early, *top(first, [t for t in among if t not in early], certain - len(early))}
        picked |= set(edge_tokens(prompt, edge, prefix)[: count // 2])
        others = [t for t in among if t not in picked]
        return sorted([*picked, *top(scores, others, max(0, count - len(picked)))])[: len(among)]

    start = min(Fraction(1), exact * min(Fraction(str(breadth)), 1 + Fraction(depth - 1, 6)))
    started = best(total, stale, start)
    started_rows = sorted({*started, *fixed})
    computed = [started_rows] * depth
    off = [0.0] * n
    if started:
        trace = reference.stitched(prompt.ids, placed, computed)
        for segment, at in zip(prompt.stored, prompt.starts, strict=False):
            for i in range(segment.tokens if segment is not None else 0):
                if at + i in started and segment is not None:
                    k = trace.k_pre[1][at + i] - segment.k_pre[1][i]
                    v = trace.v[1][at + i] - segment.v[1][i]
                    off[at + i] = math.sqrt(float((k**2).sum() + (v**2).sum()))
    continued = best(
        [total[t] * off[t] for t in range(n)], started, (exact * depth - start) / (depth - 1)
    )
    continued_rows = sorted({*continued, *fixed})
    reused_layers = reused_question_layers(reference, prompt, started, again_from, stop, prefix)
    computed = [started_rows] * 2 + [continued_rows] * (depth - 2)
    trace = pass_with_reused_question(reference, prompt, placed, computed, reused_layers)
    return Trail(used, seeds, first, total, started, continued, trace)
