"""ProphetKV, InfoFlow, FusionRAG, RelaxKV and AgentKVShift (docs/specification.md §1.10), on the
slow decoder of `prefill.py`. Prompts have no uncached segment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tests.references.fusion import cached_documents, top
from tests.references.prefill import Prompt, Reference, Trace, index_mask
from tests.references.shift import shifted_pass

_Mass = list[list[float]]
_known: WeakKeyDictionary[Reference, dict[tuple[object, ...], _Mass]] = WeakKeyDictionary()


def document_share(prompt: Prompt, ratio: float) -> int:
    """⌊ratio · |D|⌋."""
    return math.floor(Fraction(str(ratio)) * len(cached_documents(prompt)))


def question_mass(
    reference: Reference, prompt: Prompt, *, probe: str = "stitched", keys: str = "all"
) -> _Mass:
    """Attention that each token receives from the question, per layer, all heads and rows added.

    probe "query_only": what the question's rows are made from is the question alone. keys
    "documents": only documents' keys share the attention. Remembered, because methods and ratios
    ask for the same few.
    """
    # The last layer's stored KV depends on everything before it.
    stored = [s and (s.offset, s.k_pre[-1].numpy().tobytes()) for s in prompt.stored]
    asked = (*prompt.ids, *prompt.starts, *stored, probe, keys)
    known = _known.setdefault(reference, {})
    if asked not in known:
        known[asked] = _question_mass(reference, prompt, probe, keys)
    return known[asked]


def _question_mass(reference: Reference, prompt: Prompt, probe: str, keys: str) -> _Mass:
    question, documents = prompt.question_indices, cached_documents(prompt)

    def alone(rows: list[int], n: int) -> Tensor:
        mask = index_mask(rows, n)
        mask[:, : question[0]] = False
        return mask

    trace = reference.stitched(
        prompt.ids,
        reference.placed(prompt),
        [question] * reference.layers,
        mask=alone if probe == "query_only" else index_mask,
    )
    among = documents if keys == "documents" else range(trace.n)
    mass = []
    for layer in range(reference.layers):
        received = [0.0] * trace.n
        for row in question:
            seen = [t for t in among if t <= row]
            for head in range(reference.heads):
                group = head // (reference.heads // reference.kv_heads)
                query = trace.q[layer][row, head]
                logits = [float(query @ trace.k[layer][t, group]) for t in seen]
                weights = torch.softmax(torch.tensor(logits) * reference.scale, 0)
                for t, weight in zip(seen, weights.tolist(), strict=True):
                    received[t] += weight
        mass.append(received)
    return mass


def ranked_rows(
    prompt: Prompt, mass: Sequence[Sequence[float]], layers: Sequence[int], ratio: float
) -> list[int]:
    """The best ⌊ratio · |D|⌋ document tokens by the sum over `layers`."""
    scores = [sum(mass[layer][t] for layer in layers) for t in range(len(prompt.ids))]
    return top(scores, cached_documents(prompt), document_share(prompt, ratio))


@dataclass(frozen=True)
class Relaxed:
    """RelaxKV on one prompt: the document rows computed at each layer, and the computation."""

    rows: list[list[int]]
    trace: Trace


def relaxkv(reference: Reference, prompt: Prompt, ratio: float, *, keys: str) -> Relaxed:
    """Every layer's own anchors; a row stays until the last layer that picked it."""
    mass = question_mass(reference, prompt)
    picked = [ranked_rows(prompt, mass, [layer], ratio) for layer in range(reference.layers)]
    rows = [
        sorted({t for later in picked[layer:] for t in later}) for layer in range(reference.layers)
    ]
    question = prompt.question_indices
    allowed = {*range(len(prompt.system)), *rows[0]}

    def few(computed: list[int], n: int) -> Tensor:
        mask = index_mask(computed, n)
        for t in computed:
            if t not in question:
                mask[t] &= torch.tensor([j in allowed for j in range(n)])
        return mask

    trace = reference.stitched(
        prompt.ids,
        reference.placed(prompt),
        [sorted([*of_layer, *question]) for of_layer in rows],
        mask=few if keys == "anchors" else index_mask,
    )
    return Relaxed(rows, trace)


@dataclass(frozen=True)
class Shifted:
    """AgentKVShift on one prompt: its probes, and the computation."""

    key_probes: list[int]
    value_probes: list[int]
    trace: Trace


def agentkvshift(reference: Reference, prompt: Prompt, ratio: float) -> Shifted:
    """Layers 0 and 1 exact; then probes and Q, and every other document token shifted."""
    full, documents = reference.vanilla(prompt.ids), cached_documents(prompt)
    off = [_relative_deviation(full.k_pre[1], prompt, keys=True)]
    off += [_relative_deviation(full.v[1], prompt, keys=False)]
    wanted = document_share(prompt, ratio)
    keys = top(off[0], documents, math.ceil(wanted / 2))
    values = top(off[1], [t for t in documents if t not in keys], wanted - len(keys))
    rows = sorted({*keys, *values, *prompt.question_indices})
    weights = [[min(1.0, each) for each in of] for of in off]
    trace = shifted_pass(
        reference,
        prompt,
        rows,
        (keys, values),
        (weights[0], weights[1]),
        exact=full,
        exact_layers=2,
    )
    return Shifted(keys, values, trace)


def _relative_deviation(exact: Tensor, prompt: Prompt, *, keys: bool) -> list[float]:
    """‖fresh − stored‖ / ‖stored‖ at layer 1 of every token; 0 where nothing is stored."""
    out = [0.0] * len(prompt.ids)
    for segment, start in zip(prompt.stored, prompt.starts, strict=False):
        if segment is not None:
            stored = segment.k_pre[1] if keys else segment.v[1]
            for i in range(segment.tokens):
                gap, length = (exact[start + i] - stored[i]).norm(), stored[i].norm()
                out[start + i] = float(gap / length)
    return out
