"""The KV pool of rank 0, whose every change the others repeat in pools of their own.

The pools hold different heads and equally many rows, so extents are allocated alike on all ranks:
what fits here fits there.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor

from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.parallel.commands import Cache, MakePool, OnKV, Reserve
from service.worker.steps import Ranks

Send = Callable[[object], None]
_POOLS, _CACHES = count(), count()


class SharedPool(KVPool):
    """Rank 0's pool; arguments as those of `KVPool`.

    Args:
        ranks: the processes that have the others.
        send: sends them a command.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        tokens: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks,
        send: Send,
    ) -> None:
        self.number = next(_POOLS)
        self.send = send
        send(MakePool(self.number, tokens))
        super().__init__(
            layers, kv_heads, head_dim, tokens, dtype=dtype, device=device, ranks=ranks
        )

    def reserve(self, tokens: int) -> SharedKV | None:
        kv = super().reserve(tokens)
        if kv is None:
            return None
        number = next(_CACHES)
        self.send(Reserve(self.number, number, tokens))
        return SharedKV(self, kv.start, kv.capacity, number)


class SharedKV(SequenceKV):
    """Rank 0's part of a sequence's KV."""

    def __init__(self, pool: SharedPool, start: Tensor, capacity: Tensor, number: int) -> None:
        super().__init__(pool, start, capacity)
        self.number = number
        self._send = pool.send
        self._released = False

    def set_length(self, tokens: int) -> None:
        super().set_length(tokens)
        self._repeat("set_length", tokens)

    def shrink(self, tokens: int) -> None:
        super().shrink(tokens)
        self._repeat("shrink", tokens)

    def copy_to(self, other: SequenceKV, tokens: int) -> None:
        assert isinstance(other, SharedKV)
        super().copy_to(other, tokens)
        self._repeat("copy_to", Cache(other.number), tokens)

    def release(self) -> None:
        super().release()
        if not self._released:
            self._released = True
            self._repeat("release")

    def _repeat(self, method: str, *arguments: Any) -> None:
        self._send(OnKV(self.number, method, arguments))
