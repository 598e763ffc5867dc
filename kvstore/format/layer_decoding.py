"""A layer's stored bytes back into tensors, on whatever device the bytes are. Knows no header."""

from collections.abc import Sequence

from torch import Tensor

from kvstore.format.buffers import typed_view
from kvstore.format.chunk_spec import ChunkSpec
from kvstore.format.codecs import codec
from kvstore.format.tensor_layout import ROLES, layer_layout


def encoded_layer(spec: ChunkSpec, raw: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """One layer's bytes (uint8) as what the codec stores of k and of v (``Codec.parts``), not
    decoded: views of ``raw`` where aligned."""
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
    """One layer's bytes (uint8) into k (before RoPE) and v ``[tokens, kv_heads, head_dim]``.

    Runs where ``raw`` is, so the wire to a device carries the encoded form. The raw codec returns
    views of ``raw``.
    """
    k, v = encoded_layer(spec, raw)
    chunk_codec = codec(spec.codec)
    return chunk_codec.decode("k", k, spec), chunk_codec.decode("v", v, spec)
