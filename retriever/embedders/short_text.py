"""BERT's forward pass over one short text, in half of the time that transformers takes.

A question has a dozen tokens. Of transformers' pass over them half is Python, and oneDNN arranging
weights anew in every product. Here Q, K and V are one product, and weights are arranged once (a
second copy of them). Products are made of a multiple of 16 rows, so that there are few shapes, each
of which oneDNN would make a program for; attention sees no padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_TOKENS = 128
"""Of longer texts the products take most of the time, however they are called."""
_ROWS = 16  # of a product, or a multiple; weights are arranged for so many


class _Linear:
    """Linear modules of the same input, as one."""

    def __init__(self, *modules: Any) -> None:
        self.weight = torch.cat([module.weight for module in modules]).detach()
        self.bias = torch.cat([module.bias for module in modules]).detach()
        self.packed = _packs(self.weight.dtype)
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, _ROWS)

    def __call__(self, x: Tensor, then: str = "none") -> Tensor:
        """Map `[tokens, in]` to `[tokens, out]`; `then` is "gelu" or "none"."""
        if self.packed:
            kind = "none" if then == "gelu" else ""  # not the approximation by tanh
            call = torch.ops.mkldnn._linear_pointwise.default  # else it is looked for in each call
            out: Tensor = call(x, self.weight, self.bias, then, [], kind)
            return out
        y = F.linear(x, self.weight, self.bias)
        return F.gelu(y) if then == "gelu" else y


Norm = Callable[[Tensor], Tensor]


def _norm(module: Any) -> Norm:
    weight, bias, eps = module.weight.detach(), module.bias.detach(), module.eps
    return lambda x: torch.layer_norm(x, weight.shape, weight, bias, eps)


class _Layer(NamedTuple):
    qkv: _Linear
    attended: _Linear
    attended_norm: Norm
    up: _Linear
    down: _Linear
    norm: Norm


class ShortTextBert:
    def __init__(self, model: Any) -> None:
        self._heads = int(model.config.num_attention_heads)
        parts = model.embeddings
        with torch.inference_mode():
            self._words = parts.word_embeddings.weight.detach()
            self._type = parts.token_type_embeddings.weight[0].detach()
            self._places = parts.position_embeddings.weight.detach()
            self._norm = _norm(parts.LayerNorm)
            self._layers = [_layer(each) for each in model.encoder.layer]

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether it is a BERT without anything that this pass does not compute."""
        config = model.config
        kind = getattr(config, "position_embedding_type", None) or "absolute"
        known = (config.model_type, config.hidden_act, kind) == ("bert", "gelu", "absolute")
        return known and not config.is_decoder

    def states(self, ids: Tensor) -> Tensor:
        """Return the last hidden states `[tokens, dim]` of token ids `[tokens]`."""
        tokens = len(ids)
        rows = -(-tokens // _ROWS) * _ROWS
        x = F.pad(self._words[ids] + self._type + self._places[:tokens], (0, 0, 0, rows - tokens))
        x = self._norm(x)
        for layer in self._layers:
            qkv = layer.qkv(x)[:tokens].view(tokens, 3, self._heads, -1)
            q, k, v = qkv.permute(1, 2, 0, 3)[:, None]
            seen = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(tokens, -1)
            attended = F.pad(seen, (0, 0, 0, rows - tokens))
            x = layer.attended_norm(layer.attended(attended).add_(x))
            x = layer.norm(layer.down(layer.up(x, "gelu")).add_(x))
        return x[:tokens]


def _layer(module: Any) -> _Layer:
    attention, output = module.attention, module.output
    of = attention.self
    return _Layer(
        _Linear(of.query, of.key, of.value),
        _Linear(attention.output.dense),
        _norm(attention.output.LayerNorm),
        _Linear(module.intermediate.dense),
        _Linear(output.dense),
        _norm(output.LayerNorm),
    )


def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN can arrange weights of this type beforehand, on this CPU."""
    if not torch._C._has_mkldnn:
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
