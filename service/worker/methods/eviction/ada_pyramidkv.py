"""Ada-PyramidKV: layers share the budget as in PyramidKV, computed for every prompt, and the heads
of a layer as in Ada-KV (docs/specification.md §2.5; Feng et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from kvstitch.service.worker.methods.eviction.ada_snapkv import Method as AdaSnapKV
from kvstitch.service.worker.methods.eviction.pyramidkv import Method as PyramidKV


@dataclass(frozen=True)
class Method(AdaSnapKV, PyramidKV):
    """SnapKV's ranking; budgets fall from the first layer to the last, and within a layer heads
    with many high scores keep more. The mean over layers and heads is the budget."""
