"""Question trail, eagerly: evidence, leads, the rows that begin and those that go on.

Written from what the method promises, on the slow decoder of reference.py; shares are exact.
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
    reused_question_layers,
    settled_pass,
    stale_documents,
    top,
)
from tests.references.prefill import Prompt, Reference, Trace


@dataclass(frozen=True)
class Trail:
    """layers: whose attention counts; leads; asked: the question's evidence by token; total: the
    leads' too; begin: rows of layers 0 and 1; go_on: rows from layer 2 on; trace: the prompt."""

    layers: range
    leads: list[int]
    asked: list[float]
    total: list[float]
    begin: list[int]
    go_on: list[int]
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
    again_from: float = 0.33,
    prefix: Sequence[int] = (),
) -> Trail:
    """The whole method on one prompt without cold segments."""
    n, depth = len(prompt.ids), reference.layers
    stale = [
        prompt.starts[number] + t
        for number in stale_documents(prompt, prefix)
        for t in range(len(prompt.documents[number - 1]))
    ]
    exact = Fraction(str(ratio))
    stop = max(1, depth - 1)
    used = range(min(math.ceil(Fraction(str(from_depth)) * depth), stop - 1), stop)
    asked = attention_scores(reference, prompt)
    first = [sum(asked[layer][t] for layer in used) for t in range(n)]

    wanted = math.floor(exact * Fraction(str(leads)) * n)
    if leads and math.floor(exact * n):
        wanted = max(1, wanted)
    led = top(first, stale, wanted)
    fixed, placed = always_computed(prompt), reference.placed(prompt)
    total = list(first)
    if led:
        pass_of_leads = reference.stitched(prompt.ids, placed, [sorted({*led, *fixed})] * depth)
        seen = torch.zeros(n)
        for layer in used:
            for lead in led:
                for head in range(reference.heads):
                    seen += pass_of_leads.attention[layer][head, lead] * first[lead]
        seen[led] = 0
        among = sum(float(seen[t]) for t in stale)
        if among > 0:
            scale = sum(first[t] for t in stale) / among
            total = [first[t] + float(seen[t]) * scale for t in range(n)]
        placed = [(k.clone(), v.clone()) for k, v in placed]
        for layer in range(used.stop):  # what the leads' pass computed stays in place
            placed[layer][0][led] = pass_of_leads.k[layer][led]
            placed[layer][1][led] = pass_of_leads.v[layer][led]

    def best(scores: Sequence[float], among: Sequence[int], share: Fraction) -> list[int]:
        """Edges, at most half; `sure` of the rows (edges among them) by the question's evidence;
        the rest by `scores`."""
        count = math.floor(share * n)
        certain = math.floor(Fraction(str(sure)) * count)
        early = edge_tokens(prompt, edge, prefix)[: certain // 2]
        picked = {*early, *top(first, [t for t in among if t not in early], certain - len(early))}
        picked |= set(edge_tokens(prompt, edge, prefix)[: count // 2])
        others = [t for t in among if t not in picked]
        return sorted([*picked, *top(scores, others, max(0, count - len(picked)))])[: len(among)]

    start = min(Fraction(1), exact * min(Fraction(str(breadth)), 1 + Fraction(depth - 1, 6)))
    begin = best(total, stale, start)
    begun = sorted({*begin, *fixed})
    computed = [begun] * depth
    off = [0.0] * n
    if begin:
        trace = reference.stitched(prompt.ids, placed, computed)
        for segment, at in zip(prompt.stored, prompt.starts, strict=False):
            for i in range(segment.tokens if segment is not None else 0):
                if at + i in begin and segment is not None:
                    k = trace.k_pre[1][at + i] - segment.k_pre[1][i]
                    v = trace.v[1][at + i] - segment.v[1][i]
                    off[at + i] = math.sqrt(float((k**2).sum() + (v**2).sum()))
    go_on = best(
        [total[t] * off[t] for t in range(n)], begin, (exact * depth - start) / (depth - 1)
    )
    goes_on = sorted({*go_on, *fixed})
    settled = reused_question_layers(reference, prompt, begin, again_from, stop, prefix)
    computed = [begun] * 2 + [goes_on] * (depth - 2)
    trace = settled_pass(reference, prompt, placed, computed, settled)
    return Trail(used, led, first, total, begin, go_on, trace)
