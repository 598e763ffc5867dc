"""Which tokens may be drawn. Each function sets the weights of the others to 0, in place.

Weights `[vocabulary]` fp32 are probabilities times a constant: the highest is 1.
"""

from __future__ import annotations

from torch import Tensor

SURELY_ENOUGH = (1e-3, 1e-6)
"""Weights from which on tokens are sorted for top-p: few have more, and they are mostly enough."""


def keep_min_p(weights: Tensor, min_p: float) -> None:
    """Keeps tokens that are at least `min_p` times as likely as the likeliest; 0 keeps all."""
    if min_p > 0:
        weights.masked_fill_(weights < min_p, 0)


def keep_top_k(weights: Tensor, top_k: int) -> None:
    """Keeps the `top_k` likeliest tokens, and those as likely as the last of them; 0 keeps all."""
    if 0 < top_k < len(weights):
        weights.masked_fill_(weights < weights.topk(top_k).values[-1], 0)


def keep_top_p(weights: Tensor, top_p: float) -> None:
    """Keeps the smallest set of likeliest tokens that together have `top_p` of the weight.

    The likeliest is always kept; of equally likely ones those with the lowest ids. 1 keeps all.
    """
    if top_p >= 1:
        return
    enough = top_p * float(weights.double().sum())
    for least in (*SURELY_ENOUGH, 0.0):
        index = (weights >= least).nonzero()[:, 0]
        ordered, place = weights[index].double().sort(descending=True, stable=True)
        before = ordered.cumsum(0) - ordered
        if least == 0 or float(before[-1] + ordered[-1]) >= enough:
            break
    kept = index[place[: max(1, int((before < enough).sum()))]]
    values = weights[kept]
    weights.zero_()[kept] = values
