"""raw: the tensor as it is. Decoding is a view of the stored bytes, so never write into it."""

from collections.abc import Sequence

from torch import Tensor

from kvstore.format.codecs.base import Part, Role
from kvstore.format.spec import ChunkSpec


class RawCodec:
    name = "raw"

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[Part, ...]:
        return (Part("", spec.torch_dtype, spec.shape),)

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        return (x,)

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        return stored[0]


CODEC = RawCodec()
