"""Ada-PyramidKV (METHODS §2.5): PyramidKV's layers, Ada-KV's heads.

Feng et al. 2024. AdaKV's code computes the layers' sizes once, from the first prompt; here nothing
is kept between prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.worker.methods.eviction.ada_snapkv import Method as AdaSnapKV
from service.worker.methods.eviction.pyramidkv import Method as PyramidKV


@dataclass(frozen=True)
class Method(AdaSnapKV, PyramidKV):
    """SnapKV's ranking; budgets fall from the first layer to the last, and within a layer heads
    with many high scores keep more. The mean over layers and heads is the budget."""
