"""What the ranks exchange: sums, and tensors of some heads. Over torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(seconds=120)
"""How long a rank waits for the others in an exchange; all of them compute the same meanwhile."""


class Exchange:
    """One process's end; implements `Ranks`."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.made = 0

    def open(self, meeting: Path, *, gpus: bool) -> None:
        """Wait for the other processes."""
        if gpus:
            torch.cuda.set_device(self.rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            init_method=f"file://{meeting}",
            rank=self.rank,
            world_size=self.size,
            timeout=PATIENCE,
        )
        dist.all_reduce(torch.zeros(1))  # when all are here, the file may go

    def close(self) -> None:
        """Leave the other processes."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def own(self, total: int, rank: int | None = None) -> slice:
        """Return a rank's part of `total` things, by default this rank's; all are about equal."""
        rank = self.rank if rank is None else rank
        return slice(rank * total // self.size, (rank + 1) * total // self.size)

    def sizes(self, total: int) -> list[int]:
        """Return the lengths of all ranks' parts."""
        parts = [self.own(total, rank) for rank in range(self.size)]
        return [part.stop - part.start for part in parts]

    # -- Ranks ------------------------------------------------------------------------------------

    def sum(self, x: Tensor) -> Tensor:
        half = x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)
        # In fp32, so that the sum is rounded once, however many ranks there are.
        return self._reduced(x.float() if half else x, dist.ReduceOp.SUM).to(x.dtype)

    def largest(self, x: Tensor) -> Tensor:
        return self._reduced(x, dist.ReduceOp.MAX)

    def all_heads(self, x: Tensor) -> Tensor:
        self.made += 1
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x)
        return torch.cat(parts)

    def to_first(self, x: Tensor, dim: int, sizes: Sequence[int] | None = None) -> Tensor:
        self.made += 1
        if self.rank:
            dist.send(x.contiguous(), 0)
            return x
        parts = [x]
        for rank in range(1, self.size):
            shape = list(x.shape)
            shape[dim] = sizes[rank] if sizes is not None else shape[dim]
            parts.append(x.new_empty(shape))
            dist.recv(parts[-1], rank)
        return torch.cat(parts, dim)

    def _reduced(self, x: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        self.made += 1
        x = x.contiguous()
        dist.all_reduce(x, operation)
        return x

    # -- what only rank 0 has ---------------------------------------------------------------------

    def from_first(self, number: int) -> int:
        """Return rank 0's number on all ranks."""
        self.made += 1
        told = torch.tensor([number])
        dist.broadcast(told, 0)
        return int(told)

    def heads_from_first(self, out: Tensor, whole: Tensor | None = None) -> Tensor:
        """Give every rank its heads of k and v."""
        self.made += 1
        parts = None
        if whole is not None:
            parts = [part.contiguous() for part in whole.chunk(self.size, 2)]
        dist.scatter(out, parts)
        return out
