"""A decoder's weights in the form that a kernel takes which computes whole decode steps."""

from __future__ import annotations

from service.worker.kernels.cpu.decode_step import DecoderWeights
from service.worker.model.decoder import DecoderModel
from service.worker.model.layer_weights import FOR_KERNELS, layer_weights


def kernel_weights(decoder: DecoderModel) -> DecoderWeights | None:
    """Return all parameters for a kernel that decodes by itself; None if none can."""
    if not decoder.has_plain_layers or decoder.config.hidden_act not in ("silu", "swish"):
        return None
    if decoder.head_order is not None:
        return None
    layers = list(map(layer_weights, decoder.blocks, decoder.projections))
    stored = [weights for weights in layers if weights is not None]
    head, last = decoder.head, decoder.model.model.norm
    if len(stored) < len(layers) or not isinstance(head, FOR_KERNELS):
        return None
    rope = decoder.ropes[0]
    return DecoderWeights(
        stored, last.weight, head.stored, rope.cos, rope.sin, heads=decoder.heads,
        kv_heads=decoder.kv_heads, eps=last.variance_epsilon, scale=decoder.scale,
    )  # fmt: skip
