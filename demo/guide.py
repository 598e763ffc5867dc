"""Training-only losses that show the model how a look-up is put together.

A look-up needs three things at once, none of which earns anything alone: a value's position must
gather the name it belongs to, the answer's position the name asked for, and one must find the
other. Left to the answer's loss, the shallow model stays on "right attribute, wrong entity" for
thousands of steps. So a linear probe asks for the name in both places, after layer `PROBED`, and
one group of heads of the next layer is told where to look. Nothing of this is exported.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo.decoder import Block, Decoder, rotary, rotate
from demo.samples import Batch

PROBED = 2
"""The probe reads the residual stream behind this layer; the layer after it is shown where."""
GUIDED_HEADS = slice(2, 4)
WEIGHT = 0.5
RATE = 2e-3


class Guide(nn.Module):
    """Probes for the first and last token of an open name."""

    def __init__(self, hidden: int, vocabulary: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(vocabulary, hidden, generator=generator) * 0.02)
        self.last = nn.Parameter(torch.randn(vocabulary, hidden, generator=generator) * 0.02)

    def losses(self, model: Decoder, batch: Batch, stream: Tensor) -> tuple[Tensor, Tensor]:
        """(name loss, link loss) for the residual stream `[rows, tokens, hidden]` behind PROBED."""
        row, position, first, last = batch.names.unbind(1)
        at = F.rms_norm(stream[row, position], stream.shape[-1:])
        named = F.cross_entropy(at @ self.first.T, first) + F.cross_entropy(at @ self.last.T, last)
        layer = model.layers[PROBED + 1]
        assert isinstance(layer, Block)
        attention = layer.self_attn
        row, query, key = batch.links.unbind(1)
        x = layer.input_layernorm(stream)
        rows, tokens, _ = x.shape
        cos, sin = rotary(batch.positions, model.config, x.dtype)
        shape = (rows, tokens, -1, attention.head_dim)
        q = rotate(attention.q_proj(x).view(shape).transpose(1, 2), cos, sin)[:, GUIDED_HEADS]
        k = rotate(attention.k_proj(x).view(shape).transpose(1, 2), cos, sin)[:, -1]
        scores = torch.einsum("nhd,ntd->nht", q[row, :, query], k[row]) * attention.head_dim**-0.5
        scores = scores + batch.mask[row, 0, query][:, None]
        link = -scores.log_softmax(-1)[torch.arange(len(row)), :, key].mean()
        return named, link
