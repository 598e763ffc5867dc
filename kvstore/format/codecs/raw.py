"""raw: the unchanged tensor. Decoding gives a view of the stored bytes: never write into it."""

from collections.abc import Sequence

from torch import Tensor

from kvstore.format.chunk_spec import ChunkSpec
from kvstore.format.codecs.base import EncodedPart, Role


class RawCodec:
    """Stores the tensor itself."""

    name = "raw"

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        return (EncodedPart("", spec.torch_dtype, spec.shape),)

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        return (x,)

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        return stored[0]


CODEC = RawCodec()
