"""Sums of small tensors over memory that ranks share: a decode step waits for two in every layer.

Over sockets most of an exchange is waking up threads. Here each rank writes its part into a slot,
counts up its flag, and looks at the others' flags. Then each adds up the slots in the same order,
which gives the same bits. There are two sets of slots. A rank writes into a set again when all
others have counted beyond it, and they do that after they have read it.

    flags   [rank]            sums that the rank has written its part of
    slots   [2][rank][bytes]  parts of even and odd sums
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

import torch
from torch import Tensor

SLOT = 1 << 20
"""Bytes of the largest part; larger ones take so long that sockets do as well."""
LINE = 64
"""Bytes between flags, so that no two share a line of a cache."""
LOOKS = 2000
"""How often a rank looks before it sleeps in between."""
PAUSE_S = 5e-5


def is_ordered() -> bool:
    """Whether this CPU lets others see writes in the order in which they were made."""
    return platform.machine().lower() in ("x86_64", "amd64")


class SharedSum:
    """One rank's view of the memory.

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
        """The sum over all ranks; the same shape and dtype on each.

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
