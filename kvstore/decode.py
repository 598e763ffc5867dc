"""A layer's stored bytes back into tensors, on whatever device the bytes are. Knows no header."""

from torch import Tensor

from kvstore.buffers import typed_view
from kvstore.codecs import codec
from kvstore.layout import ROLES, layer_layout
from kvstore.spec import ChunkSpec


def decode_layer(spec: ChunkSpec, raw: Tensor) -> tuple[Tensor, Tensor]:
    """One layer's bytes (uint8) into k (before RoPE) and v ``[tokens, kv_heads, head_dim]``.

    Runs where ``raw`` is, so the wire to a device carries the encoded form. The raw codec returns
    views of ``raw``.
    """
    places = layer_layout(spec)
    chunk_codec = codec(spec.codec)
    decoded = []
    for role in ROLES:
        stored = [
            typed_view(raw[place.start : place.end], place.dtype, place.shape)
            for place in places
            if place.name.startswith(role)
        ]
        decoded.append(chunk_codec.decode(role, stored, spec))
    return decoded[0], decoded[1]
