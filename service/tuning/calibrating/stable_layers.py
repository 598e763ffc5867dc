"""Finds the layers in which SamKV should decide what a question needs (docs/specification.md §1.7,
P7, N*).

In every document, the block whose decay alpha ranks best on average over layers is the one that
stays important. A layer recognises it well if the block's alpha is far below the others' there.
Layers are ordered by how often it is a low outlier (3 standard deviations, which takes more than
ten blocks), then by how many standard deviations below the mean it is on average. The best eighth
of the layers is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from service.worker.api import OUTLIER_SIGMAS, DecoderModel, compute_sketch

LEAST_BLOCKS = 4
"""A document with fewer blocks has no middle block to compare."""


def deviations(alpha: Tensor) -> Tensor:
    """How many standard deviations the best block's alpha is below its layer's mean.

    The best block has the lowest mean rank over layers.

    Args:
        alpha: `[layers, blocks]`; +inf for blocks that were not scored.

    Returns:
        `[layers]`.
    """
    scored = alpha.isfinite().all(0)
    alpha = alpha[:, scored].double()
    order = alpha.sort(dim=1, stable=True).indices
    ranks = order.argsort(dim=1).double()
    best = int(ranks.mean(0).argmin())
    spread = alpha.std(1, correction=0).clamp(min=1e-12)
    return (alpha.mean(1) - alpha[:, best]) / spread


def stable_layers(found: Sequence[Tensor], layers: int) -> tuple[int, ...]:
    """The best eighth of the layers (at least one), ascending, from the documents' deviations."""
    stacked = torch.stack(list(found))
    outliers = (stacked > OUTLIER_SIGMAS).double().sum(0)
    mean = stacked.mean(0)
    order = sorted(range(layers), key=lambda n: (-float(outliers[n]), -float(mean[n]), n))
    return tuple(sorted(order[: math.ceil(layers / 8)]))


@torch.inference_mode()
def decay_of(decoder: DecoderModel, ids: Sequence[int]) -> Tensor:
    """Decay alpha `[layers, blocks]` of one document that is prefilled by itself."""
    return compute_sketch(decoder, ids).alpha.cpu()
