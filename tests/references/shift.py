"""A pass in which tokens that are not computed are shifted by what computed ones of their document
were wrong by (docs/specification.md §1.10), on the slow decoder of `prefill.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.references.prefill import Prompt, Reference, Trace, index_mask

Weights = Sequence[float]  # by token


def shifted_pass(
    reference: Reference,
    prompt: Prompt,
    rows: Sequence[int],
    probes: tuple[Sequence[int], Sequence[int]],
    weights: tuple[Weights, Weights],
    *,
    exact: Trace | None = None,
    exact_layers: int = 0,
) -> Trace:
    """Computes `rows` at every layer; every other token of a document with a probe gets its weight
    times the mean of fresh minus stored over the document's probes, from layer 1 on.

    Args:
        probes: rows by which keys (before RoPE), and by which values, are shifted.
        weights: of keys and of values.
        exact: a full prefill whose first `exact_layers` layers are taken as they are.
    """
    n = len(prompt.ids)
    trace = Trace(n)
    x = torch.full((n, reference.w["model.embed_tokens.weight"].shape[1]), float("nan"))
    x[list(rows)] = reference.embed(prompt.ids)[list(rows)]
    for layer in range(reference.layers):
        if exact is not None and layer < exact_layers:
            for kept, whole in zip(_lists(trace), _lists(exact), strict=True):
                kept.append(whole[layer])
            x = torch.full_like(x, float("nan"))
            x[list(rows)] = exact.hidden[layer + 1][list(rows)]
            continue
        q, k_pre, v = reference.project(layer, x)
        k_all, v_all = torch.full_like(k_pre, float("nan")), torch.full_like(v, float("nan"))
        for segment, start in zip(prompt.stored, prompt.starts, strict=False):
            if segment is None:
                continue
            for fresh, old, into, of, weight in (
                (k_pre, segment.k_pre[layer], k_all, probes[0], weights[0]),
                (v, segment.v[layer], v_all, probes[1], weights[1]),
            ):
                inside = range(start, start + segment.tokens)
                gaps = [fresh[t] - old[t - start] for t in of if t in inside and layer > 0]
                for t in inside:
                    into[t] = old[t - start]
                    if gaps:
                        into[t] += weight[t] * sum(gaps) / len(gaps)
        k_all[list(rows)], v_all[list(rows)] = k_pre[list(rows)], v[list(rows)]
        k_all = reference.rotate(k_all, range(n), layer)
        q = reference.rotate(q, range(n), layer)
        visible = index_mask(sorted(rows), n) & reference.within(layer, range(n), range(n))
        attention = reference.attention(q, k_all, visible, layer)
        trace.hidden.append(x)
        trace.q.append(q)
        trace.k.append(k_all)
        trace.v.append(v_all)
        trace.k_pre.append(k_pre)
        trace.attention.append(attention)
        x = reference.block_tail(layer, x, reference.mix(attention, v_all))
    trace.logits = reference.head(x)
    return trace


def _lists(trace: Trace) -> tuple[list[Tensor], ...]:
    return trace.hidden, trace.q, trace.k, trace.v, trace.k_pre, trace.attention
