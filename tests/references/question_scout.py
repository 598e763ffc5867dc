"""question_scout (docs/methods.md), on the slow decoder of `prefill.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.references.fusion import always_computed, share, top
from tests.references.prefill import Prompt, Reference, Trace
from tests.references.shift import shifted_pass


@dataclass(frozen=True)
class Scout:
    """The method's parameters.

    Attributes:
        layers: whose attention counts; None for the method's own.
        question: weight of the mean question row beside the last one.
        shift: weight of the mean error.
    """

    ratio: float = 0.15
    layers: Sequence[int] | None = None
    question: float = 2.0
    shift: float = 0.25


def attention_scores(
    reference: Reference, prompt: Prompt, question: float = 2.0
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


def scout_rows(
    reference: Reference, prompt: Prompt, scout: Scout, prefix: Sequence[int] = ()
) -> list[int]:
    """Document rows that are recomputed: the best min(|D_stale|, ⌊ratio · n⌋) of stale documents.

    The middle of five layers on, and all but the last: layers 2 and 3 (⌊0.5 · 5⌉ to ⌊0.9 · 5⌉).
    """
    candidates = [
        prompt.starts[number] + t
        for number in stale_documents(prompt, prefix)
        for t in range(len(prompt.documents[number - 1]))
    ]
    assert reference.layers == 5 or scout.layers is not None
    used = [2, 3] if scout.layers is None else scout.layers
    per_layer = attention_scores(reference, prompt, scout.question)
    total = [sum(per_layer[layer][t] for layer in used) for t in range(len(prompt.ids))]
    return top(total, candidates, share(scout.ratio, len(prompt.ids)))


def question_scout(
    reference: Reference, prompt: Prompt, scout: Scout | None = None, prefix: Sequence[int] = ()
) -> Trace:
    """The whole method: PIE gives the scores; the chosen rows, Q and uncached segments are computed
    and shift the others."""
    scout = scout or Scout()
    rows = scout_rows(reference, prompt, scout, prefix)
    weights = [0.0] * len(prompt.ids)
    for number in stale_documents(prompt, prefix):
        for t in range(len(prompt.documents[number - 1])):
            weights[prompt.starts[number] + t] = scout.shift
    every = sorted({*rows, *always_computed(prompt)})
    return shifted_pass(reference, prompt, every, (rows, rows), (weights, weights))
