"""Deepens a trained model without changing what it computes.

New blocks start with zero output projections, so each adds nothing to the residual stream until
training moves it. They go below and between the trained blocks: the layers that look things up
end in the middle and at the top, as in models of real size.
"""

from __future__ import annotations

from pathlib import Path

import torch

from demo.optimizer import MasterOptimizer

GROWN_FROM = 5
PLACES = (2, 5, 7, 9, 11)
"""Where the trained blocks 0..4 end up among the twelve."""


@torch.no_grad()
def grow(optimizer: MasterOptimizer, shallow: Path, layers: int) -> None:
    """Overwrites the optimiser's master weights with the grown checkpoint."""
    trained = torch.load(shallow, weights_only=True)["optimizer"]["master"]
    place = dict(zip(range(GROWN_FROM), PLACES, strict=True))
    state = optimizer.state_dict()
    for index in set(range(layers)) - set(PLACES):
        for projection in ("self_attn.o_proj", "mlp.down_proj"):
            state["master"][f"layers.{index}.{projection}.weight"].zero_()
    for name, tensor in trained.items():
        parts = name.split(".")
        if parts[0] == "layers":
            parts[1] = str(place[int(parts[1])])
        state["master"][".".join(parts)].copy_(tensor)
    optimizer.load_state_dict(state)
