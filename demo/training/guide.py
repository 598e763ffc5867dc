"""The guide: losses, used in training only, that show the model how to solve a task.

Copying several tokens and following a reference take two steps of attention, and neither step alone
improves any answer. Trained on answers alone, a small model stays at chance for millions of tokens.
So two heads of one KV group in some layers are shown which token to attend to ("links"), and the
hidden state after such a layer is trained to predict what should have been found ("hints"). The
guide is not part of the exported model and changes no mask.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from demo.training.decoder import Block, Decoder, rotary, rotate
from demo.training.guide_layers import HINT_LAYERS, PREVIOUS_LAYER
from demo.training.samples import Batch


def guide_loss(model: Decoder, batch: Batch, streams: list[Tensor]) -> Tensor:
    """Sums the mean loss of the links of every layer, and the mean loss of hints of every depth.

    Args:
        streams: The input of every layer, each `[rows, tokens, hidden]`.
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
    """Cross-entropy of the attention of heads 0 and 1 of a layer, which share KV head 0."""
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
    """Links `[tokens, 4]` from every token to the one before it in the same segment."""
    same = batch.segments[:, 1:] == batch.segments[:, :-1]
    row, place = (same & (batch.segments[:, 1:] >= 0)).nonzero().unbind(1)
    return torch.stack((row, torch.full_like(row, layer), place + 1, place), dim=1)
