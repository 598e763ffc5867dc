"""Stored KV of some tokens of a document, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvstore import EncodedChunk


class TokenSource(Protocol):
    """KV of some tokens of a document; `kvstore.EncodedBlocks` is one."""

    def tokens(self, layer: int) -> Tensor:
        """Return indices of these tokens within the document, ascending."""

    def layer(
        self, layer: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return keys (before RoPE) and values of these tokens, each `[t, kv_heads, head_dim]`."""


@dataclass(frozen=True)
class WholeChunk:
    """All tokens of a chunk."""

    chunk: EncodedChunk

    def tokens(self, layer: int) -> Tensor:
        return torch.arange(self.chunk.spec.tokens)

    def layer(
        self, layer: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.chunk.layer(layer, device=device)


@dataclass(frozen=True)
class KeptTokens:
    """The tokens that were read of one document."""

    sources: tuple[TokenSource, ...]

    def rows(
        self, layer: int, tokens: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return KV of some tokens at a layer."""
        read = torch.cat([source.tokens(layer) for source in self.sources]).to(device)
        decoded = [source.layer(layer, device=device) for source in self.sources]
        k, v = (torch.cat(part) for part in zip(*decoded, strict=True))
        order = read.argsort()
        wanted = torch.tensor(tokens, dtype=torch.long, device=device)
        index = order[torch.searchsorted(read[order], wanted)]
        assert read[index].equal(wanted), "a token that was not read"
        return k[index], v[index]
