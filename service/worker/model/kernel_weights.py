"""A decoder's weights in the form that a kernel takes which computes whole decode steps."""

from __future__ import annotations

from service.worker.kernels.cpu.decode_step import DecoderWeights, LayerWeights
from service.worker.model.decoder import DecoderModel, is_plain
from service.worker.model.projection import DenseProjection, QuantisedProjection

FOR_KERNELS = (DenseProjection, QuantisedProjection)
"""Projections whose weights a kernel may multiply by itself."""


def kernel_weights(decoder: DecoderModel) -> DecoderWeights | None:
    """Return all parameters for a kernel that decodes by itself; None if none can."""
    if not decoder.has_plain_layers or decoder.config.hidden_act not in ("silu", "swish"):
        return None
    if decoder.head_order is not None:
        return None
    if not all(is_plain(block.input_layernorm) for block in decoder.blocks):
        return None
    layers = [_layer_weights(decoder, layer) for layer in range(decoder.layers)]
    stored = [weights for weights in layers if weights is not None]
    head, last = decoder.head, decoder.model.model.norm
    if len(stored) < len(layers) or not isinstance(head, FOR_KERNELS):
        return None
    rope = decoder.ropes[0]
    return DecoderWeights(
        stored, last.weight, head.stored, rope.cos, rope.sin, heads=decoder.heads,
        kv_heads=decoder.kv_heads, eps=last.variance_epsilon, scale=decoder.scale,
    )  # fmt: skip


def _layer_weights(decoder: DecoderModel, layer: int) -> LayerWeights | None:
    block, parts = decoder.blocks[layer], decoder.projections[layer]
    qkv, o, gate_up, down = parts.qkv, parts.output, parts.gate_up, parts.down
    if not (isinstance(qkv, FOR_KERNELS) and isinstance(o, FOR_KERNELS)):
        return None
    if not (isinstance(gate_up, FOR_KERNELS) and isinstance(down, FOR_KERNELS)):
        return None
    q_norm, k_norm = (getattr(block.self_attn, name, None) for name in ("q_norm", "k_norm"))
    return LayerWeights(
        norm=block.input_layernorm.weight,
        q_norm=q_norm and q_norm.weight, k_norm=k_norm and k_norm.weight,
        mlp_norm=block.post_attention_layernorm.weight,
        qkv=qkv.stored, o=o.stored, gate_up=gate_up.stored, down=down.stored,
    )  # fmt: skip
