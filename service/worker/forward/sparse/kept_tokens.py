"""Some tokens of a document's stored KV, layer by layer. Knows no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvstore import EncodedChunk


class TokenSource(Protocol):
    """Decoded KV of some tokens of a document; `kvstore.EncodedBlocks` is one."""

    def tokens(self, layer: int) -> Tensor:
        """Local token indices, ascending."""
        ...

    def layer(
        self, layer: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """k (before RoPE) and v of these tokens, `[t, kv_heads, d]`."""
        ...


@dataclass(frozen=True)
class WholeChunk:
    """A chunk of which every token is at hand."""

    chunk: EncodedChunk

    def tokens(self, layer: int) -> Tensor:
        return torch.arange(self.chunk.spec.tokens)

    def layer(
        self, layer: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.chunk.layer(layer, device=device)


@dataclass(frozen=True)
class KeptTokens:
    """Tokens of one document from one or two reads (its ends; the middle blocks chosen later)."""

    sources: tuple[TokenSource, ...]

    def rows(
        self, layer: int, tokens: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """k (before RoPE) and v `[len(tokens), kv_heads, d]` of local token indices, which must be
        among those read."""
        index = torch.cat([source.tokens(layer) for source in self.sources]).to(device)
        decoded = [source.layer(layer, device=device) for source in self.sources]
        k, v = (torch.cat(part) for part in zip(*decoded, strict=True))
        order = index.argsort()
        wanted = torch.tensor(tokens, dtype=torch.long, device=device)
        at = order[torch.searchsorted(index[order], wanted)]
        assert index[at].equal(wanted), "a token that was not read"
        return k[at], v[at]
