"""Turns the stored bytes of a layer back into tensors, on the device where the bytes are."""

from collections.abc import Sequence

from torch import Tensor

from kvstore.format.buffers import typed_view
from kvstore.format.chunk_spec import ChunkSpec
from kvstore.format.codecs import codec
from kvstore.format.tensor_layout import ROLES, layer_layout


def encoded_layer(spec: ChunkSpec, raw: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Split one layer's bytes (uint8) into the stored tensors of k and of v, without decoding.

    Returns:
        The tensors of `Codec.parts` for k and for v: views of `raw` where it is aligned.
    """
    k, v = (
        [
            typed_view(raw[place.start : place.end], place.dtype, place.shape)
            for place in layer_layout(spec)
            if place.name.startswith(role)
        ]
        for role in ROLES
    )
    return k, v


def decode_layer(spec: ChunkSpec, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Decode one layer's bytes (uint8) on the device where they are.

    Returns:
        k (before RoPE) and v, each `[tokens, kv_heads, head_dim]`. The raw codec returns views of
        `raw`.
    """
    k, v = encoded_layer(spec, raw)
    chunk_codec = codec(spec.codec)
    return chunk_codec.decode("k", k, spec), chunk_codec.decode("v", v, spec)
