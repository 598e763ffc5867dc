"""The gated delta rule, whose state a chunk of given inputs maps affinely, in fp32.

    S_t = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ        o_t = S_tᵀ q_t

So a run of rows maps S to A · S + B, and A and B of documents that were precomputed are composed
in whatever order the documents have. `Map` is the mapping, S a state `[heads, key, value]`.

Source: Yang et al., "Gated Delta Networks" (arXiv 2412.06464); the form by blocks of rows with one
triangular system each is that of DeltaNet (arXiv 2406.06484).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64
"""Rows of a block, of which one system is solved."""


class Map(NamedTuple):
    """What some rows make of any state: A · S + B."""

    a: Tensor  # `[heads, key, key]`, or a number a head, `[heads, 1, 1]`
    b: Tensor  # `[heads, key, value]`

    def of(self, state: Tensor | None) -> Tensor:
        """Return the state after these rows; None stands for the first state, 0."""
        if state is None:
            return self.b
        if self.a.shape[1] < self.b.shape[1]:
            return torch.addcmul(self.b, self.a, state)
        return torch.baddbmm(self.b, self.a, state)

    def then(self, later: Map) -> Map:
        """Return the mapping of these rows and then of later ones."""
        return Map(later.a @ self.a, later.of(self.b))


def run(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run rows through the rule.

    Args:
        q: `[m, heads, key]`, scaled; k likewise, of length 1.
        v: `[m, heads, value]`.
        decay: log α `[m, heads]`, at most 0; beta `[m, heads]` in 0 to 1.
        state: before the rows `[heads, key, columns]`, with at least `value` columns. Those behind
            are states of rows whose values are 0, which the rule treats alike.

    Returns:
        What the rows read `[m, heads, columns]`, and the state after them.
    """
    m = len(q)
    q, k, v = (in_blocks(x) for x in (q, k, v))
    decay, beta = (in_blocks(x[..., None])[..., 0] for x in (decay, beta))
    summed = decay.cumsum(-1)  # log of what is left at each row of the block's first state
    between = (summed[..., :, None] - summed[..., None, :]).tril().exp().tril()
    keys_t = k.transpose(-1, -2)
    weighted = k * beta[..., None]
    system = (weighted @ keys_t).mul_(between)
    right = torch.cat([v * beta[..., None], weighted * summed.exp()[..., None]], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    values, read = solved.split([v.shape[-1], k.shape[-1]], -1)
    inside = (q @ keys_t).mul_(between)
    q = q * summed.exp()[..., None]
    keys_t = keys_t * (summed[..., -1:] - summed).exp()[..., None, :]
    left = summed[..., -1].exp()[..., None, None]
    width, out = v.shape[-1], []
    for block in range(len(q)):
        new = torch.matmul(read[block], state).neg_()
        new[..., :width] += values[block]
        out.append(torch.baddbmm(q[block] @ state, inside[block], new))
        state = torch.baddbmm(state * left[block], keys_t[block], new)
    return torch.cat(out, 1)[:, :m].transpose(0, 1), state


def step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one row of each of several sequences, `[sequences, …]` where `run` has rows, whose
    states `[sequences, heads, key, value]` become those after it; return what they read, too."""
    states.mul_(decay.exp()[..., None, None])
    known = (k[..., None, :] @ states).squeeze(-2)
    states.addcmul_(k[..., None], ((v - known) * beta[..., None])[..., None, :])
    return (q[..., None, :] @ states).squeeze(-2), states


def normalised(x: Tensor) -> Tensor:
    """Return vectors `[..., key]` with length 1, as the models were trained."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def in_blocks(x: Tensor) -> Tensor:
    """Return rows `[m, heads, width]` as `[blocks, heads, BLOCK, width]`, with rows of 0 behind
    them, which change nothing; fewer rows than a block's are a smaller block."""
    rows = min(BLOCK, len(x))
    blocks = -(-len(x) // rows)
    padded = x.new_zeros(blocks * rows, *x.shape[1:])
    padded[: len(x)] = x
    return padded.view(blocks, rows, *x.shape[1:]).transpose(1, 2)
