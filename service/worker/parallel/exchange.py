"""What the ranks exchange: sums, and tensors of some heads.

Over torch.distributed, but for sums of small tensors on CPUs. A decode step waits for two of these
in every layer, and over sockets most of an exchange is waking up threads: `SharedSum`.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(seconds=120)
"""How long a rank waits for the others in an exchange; all of them compute the same meanwhile."""

SLOT = 1 << 20
"""Bytes of the largest part; larger ones take so long that sockets do as well."""
LINE = 64
"""Bytes between flags, so that no two share a line of a cache."""
LOOKS = 2000
"""How often a rank looks before it sleeps in between."""
PAUSE_S = 5e-5


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
        """Wait for the other processes.

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

    # -- what only rank 0 has ---------------------------------------------------------------------

    def from_first(self, number: int) -> int:
        """Return rank 0's number on all ranks."""
        return int(self.sum(torch.tensor([0 if self.rank else number])))

    def send_heads(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Give every other rank its heads of k and v `[tokens, kv_heads, head_dim]`.

        Returns:
            This rank's.
        """
        self.made += 1
        heads = k.shape[1]
        for rank in range(1, self.size):
            own = self.own(heads, rank)
            dist.send(torch.stack([k[:, own], v[:, own]]), rank)
        return k[:, self.own(heads)], v[:, self.own(heads)]

    def receive_heads(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Fill `out` `[2, tokens, own_kv_heads, head_dim]` with what rank 0 sends: k and v."""
        self.made += 1
        dist.recv(out, 0)
        return out[0], out[1]


def is_ordered() -> bool:
    """Return whether this CPU lets others see writes in the order in which they were made."""
    return platform.machine().lower() in ("x86_64", "amd64")


class SharedSum:
    """Sums of small tensors over memory that the ranks share.

    Each rank writes its part into a slot, counts up its flag, and looks at the others' flags. Then
    each adds up the slots in the same order, which gives the same bits. There are two sets of
    slots. A rank writes into a set again when all others have counted beyond it, and they do that
    after they have read it.

        flags   [rank]            sums that the rank has written its part of
        slots   [2][rank][bytes]  parts of even and odd sums

    Args:
        path: a file that all ranks name; it may be deleted when all have opened it.
        patience_s: how long to wait for the others.
    """

    def __init__(self, path: Path, rank: int, size: int, *, patience_s: float) -> None:
        flags = LINE * size
        memory = torch.from_file(
            str(path), shared=True, size=flags + 2 * size * SLOT, dtype=torch.uint8
        )
        self._flags = memory[:flags].view(torch.int64)[:: LINE // 8].numpy()
        self._slots = memory[flags:].view(2, size, SLOT)
        self._rank = rank
        self._patience_s = patience_s
        self._sums = 0

    def takes(self, x: Tensor) -> bool:
        return x.device.type == "cpu" and x.nbytes <= SLOT

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks, in the same shape and dtype on each.

        Raises:
            TimeoutError: a rank did not come.
        """
        self._sums += 1
        slots = self._slots[self._sums % 2, :, : x.nbytes]
        slots[self._rank].view(x.dtype).copy_(x.flatten())
        self._flags[self._rank] = self._sums
        self._wait()
        parts = slots.view(x.dtype)
        wide = torch.float32 if x.is_floating_point() and x.itemsize < 4 else x.dtype
        return parts.sum(0, dtype=wide).to(x.dtype).view(x.shape)

    def _wait(self) -> None:
        for _ in range(LOOKS):
            if self._flags.min() >= self._sums:
                return
            os.sched_yield()
        give_up_at = time.monotonic() + self._patience_s
        while self._flags.min() < self._sums:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"a rank did not come to a sum in {self._patience_s:g} s")
            time.sleep(PAUSE_S)
