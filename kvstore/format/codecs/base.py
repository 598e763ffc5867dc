"""The protocol of codecs, which turn tensors into the tensors that are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from kvstore.format.chunk_spec import ChunkSpec

Role = Literal["k", "v"]


@dataclass(frozen=True)
class EncodedPart:
    """One stored tensor of one layer's k or v.

    Attributes:
        suffix: what follows `k.{layer}` in its name; `""` for the main tensor.
        dtype: bfloat16, float16, float32, int8 or uint8.
        shape: depends only on the spec, so a header can be checked without its data. The first
            dimension runs along the tokens.
        tokens_per_row: how many tokens share one row. It divides 64, so that each block of 64
            tokens has its own rows and can be decoded alone.
    """

    suffix: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    tokens_per_row: int = 1


class Codec(Protocol):
    """Turns one layer's k or v into parts and back, on the device of the tensors.

    The role is passed because some codecs group keys per channel and values per token. Blocks of 64
    tokens must be independent: encoding a block alone gives the same rows as encoding the whole.
    """

    @property
    def name(self) -> str: ...

    def parts(self, role: Role, spec: ChunkSpec) -> tuple[EncodedPart, ...]:
        """The stored tensors, the main one first."""
        ...

    def encode(self, role: Role, x: Tensor) -> tuple[Tensor, ...]:
        """Encode `x` `[tokens, kv_heads, head_dim]` into tensors that match `parts`.

        Raises:
            ChunkSpecError: `x` holds values that the codec cannot represent.
        """
        ...

    def decode(self, role: Role, stored: Sequence[Tensor], spec: ChunkSpec) -> Tensor:
        """Decode the stored tensors into `[tokens, kv_heads, head_dim]` of `spec.torch_dtype`."""
        ...
