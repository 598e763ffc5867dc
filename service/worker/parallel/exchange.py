"""What the ranks exchange, over torch.distributed: sums, and tensors of some heads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from service.worker.parallel.shared_sum import SharedSum, is_ordered

PATIENCE = timedelta(seconds=120)
"""How long a rank waits for the others in an exchange; all of them compute the same meanwhile."""


class Exchange:
    """One process's end; implements `Ranks`.

    The processes meet through files, and exchange over the loopback interface (gloo between CPUs,
    NCCL between GPUs), small sums on a CPU over shared memory.

    Attributes:
        made: number of exchanges so far, by which ranks can tell whether they are in step.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.made = 0
        self._small: SharedSum | None = None

    def open(self, meeting: Path, *, gpus: bool) -> None:
        """Waits for the other processes.

        Args:
            meeting: a file that does not exist yet, in a folder that nobody else can write to.
            gpus: whether tensors on GPUs are exchanged, too.
        """
        if gpus:
            torch.cuda.set_device(self.rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            init_method=f"file://{meeting}",
            rank=self.rank,
            world_size=self.size,
            timeout=PATIENCE,
        )
        if is_ordered():
            self._small = SharedSum(
                meeting.with_name("sums"),
                self.rank,
                self.size,
                patience_s=PATIENCE.total_seconds(),
            )
        dist.all_reduce(torch.zeros(1))  # when all are here, the files may go

    def close(self) -> None:
        """Leaves the other processes."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def own(self, total: int, rank: int | None = None) -> slice:
        """A rank's part of so many things, by default this rank's: equal parts, or nearly."""
        rank = self.rank if rank is None else rank
        return slice(rank * total // self.size, (rank + 1) * total // self.size)

    def sizes(self, total: int) -> list[int]:
        """Lengths of all ranks' parts."""
        parts = [self.own(total, rank) for rank in range(self.size)]
        return [part.stop - part.start for part in parts]

    # -- Ranks ------------------------------------------------------------------------------------

    def sum(self, x: Tensor) -> Tensor:
        if self._small is not None and self._small.takes(x):
            self.made += 1
            return self._small.sum(x)
        return self._reduced(x, dist.ReduceOp.SUM)

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

    # -- stored heads -----------------------------------------------------------------------------

    def send_heads(self, k: Tensor, v: Tensor) -> None:
        """Rank 0 gives every other rank its heads of k and v `[tokens, kv_heads, head_dim]`."""
        self.made += 1
        heads = k.shape[1]
        for rank in range(1, self.size):
            own = self.own(heads, rank)
            dist.send(torch.stack([k[:, own], v[:, own]]), rank)

    def receive_heads(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Fills `out` `[2, tokens, own_kv_heads, head_dim]` with what rank 0 sends: k and v."""
        self.made += 1
        dist.recv(out, 0)
        return out[0], out[1]
