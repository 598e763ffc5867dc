"""How many threads torch uses."""

from __future__ import annotations

import torch


def set_threads(threads: int) -> None:
    """Sets the number of intra-op threads of this process; 0 leaves torch's default."""
    if threads:
        torch.set_num_threads(threads)
