"""The rule of Mamba-2, whose state a run of rows only fades and adds to, in fp32.

    S_t = α_t S_{t−1} + k_t v_tᵀ        o_t = S_tᵀ q_t

So A of a `Map` is a number a head. Heads of a group share queries and keys (C and B of the paper),
and products of all of a group are one.

Source: Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvstitch.service.worker.model.gated_delta import in_blocks


def run(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run rows through the rule.

    Args:
        q: `[m, groups, key]`; k likewise.
        v: `[m, heads, value]`.
        decay: log α `[m, heads]`, at most 0.
        state: before the rows `[heads, key, columns]`, with at least `value` columns. Those behind
            are states of rows whose values are 0.

    Returns:
        What the rows read `[m, heads, columns]`, and the state after them.
    """
    m, groups, (heads, key, columns), width = len(q), q.shape[1], state.shape, v.shape[-1]
    share = heads // groups
    q, k, v, decay = (in_blocks(x) for x in (q, k, v, decay[..., None]))
    blocks, _, rows, _ = v.shape
    summed = decay[..., 0].cumsum(-1)  # log of what is left at each row of the block's first state
    between = (summed[..., :, None] - summed[..., None, :]).tril().exp().tril()
    keys_t = k.transpose(-1, -2)
    seen = (q @ keys_t).repeat_interleave(share, 1).mul_(between)
    inside = seen @ v
    last = v * (summed[..., -1:] - summed).exp()[..., None]
    last = last.view(blocks, groups, share, rows, width).transpose(2, 3)
    added = keys_t @ last.reshape(blocks, groups, rows, share * width)
    added = added.view(blocks, groups, key, share, width).transpose(2, 3)
    left, faded, out = summed[..., -1].exp()[..., None, None], summed.exp()[..., None], []
    for block in range(blocks):
        of_group = state.view(groups, share, key, columns).transpose(1, 2)
        read = q[block] @ of_group.reshape(groups, key, share * columns)
        read = read.view(groups, rows, share, columns).transpose(1, 2).reshape(heads, rows, -1)
        read = read * faded[block]
        read[..., :width] += inside[block]
        out.append(read)
        state = state * left[block]
        state[..., :width] += added[block].reshape(heads, key, width)
    return torch.cat(out, 1)[:, :m].transpose(0, 1), state


def step(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Run one row of each of several sequences, `[sequences, …]` where `run` has rows, whose
    states `[sequences, heads, key, value]` become those after it; return what they read, too."""
    share = v.shape[1] // k.shape[1]
    q, k = q.repeat_interleave(share, 1), k.repeat_interleave(share, 1)
    states.mul_(decay.exp()[..., None, None]).addcmul_(k[..., None], v[..., None, :])
    return (q[..., None, :] @ states).squeeze(-2), states
