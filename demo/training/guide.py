"""Training-only losses that show the model how a task is put together.

Copying several tokens and following a reference take two steps of attention, neither of which
earns anything alone; left to the answers' loss, a small model stays at chance for millions of
tokens. So two heads of one KV group in some layers are shown where to look, and the stream behind
such a layer what it should have found. Nothing of this is exported. No mask is involved.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.training.decoder import Block, Decoder, rotary, rotate
from demo.training.guide_layers import HINT_LAYERS, PREVIOUS_LAYER
from demo.training.samples import Batch


def guide_loss(model: Decoder, batch: Batch, streams: list[Tensor]) -> Tensor:
    """Sum over layers of the mean loss of their links, plus the mean loss of hints.

    `streams[i]` `[rows, tokens, hidden]` is the residual stream in front of layer i.
    """
    _, layers, _, _ = batch.links.unbind(1)
    links = {layer: batch.links[layers == layer] for layer in set(layers.tolist())}
    links[PREVIOUS_LAYER] = _previous(batch, PREVIOUS_LAYER)
    loss = sum(
        (_link_loss(model, batch, streams[i], i, links[i]) for i in links),
        torch.zeros((), device=batch.ids.device),
    )
    for depth, layer in enumerate(HINT_LAYERS):
        row, _, place, token = batch.hints[batch.hints[:, 1] == depth].unbind(1)
        if len(row):
            behind = model.norm(streams[layer + 1][row, place])
            loss = loss + F.cross_entropy(model.logits(behind), token)
    return loss


def _link_loss(model: Decoder, batch: Batch, x: Tensor, index: int, links: Tensor) -> Tensor:
    """Cross-entropy of heads 0 and 1 of layer `index`, which share KV head 0."""
    layer = model.layers[index]
    assert isinstance(layer, Block)
    attention = layer.self_attn
    x = layer.input_layernorm(x)
    rows, tokens, _ = x.shape
    width = attention.head_dim
    cos, sin = rotary(batch.positions, model.config, x.dtype)
    q = F.linear(x, attention.q_proj.weight[: 2 * width])
    k = F.linear(x, attention.k_proj.weight[:width])
    q = rotate(q.view(rows, tokens, 2, width).transpose(1, 2), cos, sin)
    k = rotate(k.view(rows, tokens, 1, width).transpose(1, 2), cos, sin)
    scores = q @ k.transpose(2, 3) * width**-0.5 + batch.mask
    row, _, query, key = links.unbind(1)
    chosen = scores[row, :, query].log_softmax(-1)
    loss: Tensor = -chosen.gather(2, key[:, None, None].expand(-1, 2, 1)).mean()
    return loss


def _previous(batch: Batch, layer: int) -> Tensor:
    """Links `[tokens, 4]` of every token to the one before it in its own segment."""
    same = batch.segments[:, 1:] == batch.segments[:, :-1]
    row, place = (same & (batch.segments[:, 1:] >= 0)).nonzero().unbind(1)
    return torch.stack((row, torch.full_like(row, layer), place + 1, place), dim=1)
