"""Where the KV of a prompt is put for another engine, which decodes its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Handed(Protocol):
    """The KV of one prompt, until it is closed."""

    @property
    def place(self) -> str:
        """How the other engine finds it."""

    def close(self) -> None:
        """Take it away; what the other engine has opened stays readable for it."""


class HandOver(Protocol):
    """Puts the KV of prompts where another engine on this machine loads it."""

    def __enter__(self) -> HandOver: ...

    def __exit__(self, *raised: object) -> None:
        """Take away whatever is left."""

    def put(self, layers: Sequence[tuple[Tensor, Tensor]], ids: Sequence[int]) -> Handed:
        """Copy the KV of a prompt with these token ids: of every layer keys after RoPE and values
        `[kv_heads, tokens, head_dim]`. Raises OSError where there is no room."""
