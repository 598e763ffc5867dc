"""How far next-token distributions are from those of full prefill."""

from __future__ import annotations

from torch import Tensor


def divergence(full: Tensor, other: Tensor) -> Tensor:
    """KL(full ‖ other) in nats, from logits `[..., vocabulary]`: `[...]`, not negative."""
    p, q = full.double().log_softmax(-1), other.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).clamp_min(0.0)


def agreement(full: Tensor, other: Tensor) -> Tensor:
    """1 where the most likely token is the same, else 0; logits `[..., vocabulary]`."""
    return (full.argmax(-1) == other.argmax(-1)).double()
