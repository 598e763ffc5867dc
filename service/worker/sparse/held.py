"""Some tokens of a document's stored KV, layer by layer. Knows no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class TokenSource(Protocol):
    """Decoded KV of some tokens: per layer local token indices `[t]` ascending, k (before RoPE) and
    v `[t, kv_heads, d]`."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass(frozen=True)
class HeldTokens:
    """Tokens of one document from one or two reads (its ends; the middle blocks chosen later)."""

    sources: tuple[TokenSource, ...]

    def rows(
        self, layer: int, tokens: Sequence[int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """k (before RoPE) and v `[len(tokens), kv_heads, d]` of local token indices, which must be
        among those read."""
        parts = [source.layer(layer) for source in self.sources]
        index = torch.cat([part[0] for part in parts]).to(device)
        k = torch.cat([part[1].to(device) for part in parts])
        v = torch.cat([part[2].to(device) for part in parts])
        order = index.argsort()
        wanted = torch.tensor(tokens, dtype=torch.long, device=device)
        at = order[torch.searchsorted(index[order], wanted)]
        assert index[at].equal(wanted), "a token that was not read"
        return k[at], v[at]
