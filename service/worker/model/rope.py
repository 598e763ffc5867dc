"""Rotary position embedding: cos and sin tables in fp32, one rotation to the request's positions.

Keys are stored before RoPE and rotated once, in fp32, before they are cast (docs/specification.md
§0). The frequencies come from a freshly built copy of the model's own rotary module, because
casting the model to another dtype may have rounded the original's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from service.errors import ModelRefused
from service.worker.kernels.cpu import rotation
from service.worker.kernels.gpu import rotation_gpu
from service.worker.model.supported import STATIC_ROPE_TYPES


class RotaryTable:
    """Cosines and sines of all positions.

    Attributes:
        cos: `[positions, head_dim / 2]` fp32, multiplied by the model's attention scaling.
        sin: like `cos`.
    """

    def __init__(self, inv_freq: Tensor, scaling: float, positions: int) -> None:
        angles = torch.outer(
            torch.arange(positions, dtype=torch.float32, device=inv_freq.device), inv_freq.float()
        )
        self.cos = angles.cos() * scaling
        self.sin = angles.sin() * scaling

    @classmethod
    def of(cls, config: Any, rotary: Any, positions: int, device: torch.device) -> RotaryTable:
        """The table of a transformers rotary module.

        Raises:
            ModelRefused: the frequencies depend on the prompt's length.
        """
        rope_type = str((config.rope_parameters or {}).get("rope_type", "default"))
        if rope_type not in STATIC_ROPE_TYPES:
            raise ModelRefused(
                f"rope_type {rope_type!r} changes its frequencies with the prompt's length, so "
                "stored keys cannot be moved to another position exactly; served types: "
                + ", ".join(STATIC_ROPE_TYPES)
                + ". Set rope_parameters in the model's config.json to one of them",
                field="model",
            )
        fresh = type(rotary)(config).to(device)
        return cls(fresh.inv_freq, float(fresh.attention_scaling), positions)

    def rotate(self, x: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """x `[rows, heads, head_dim]` rotated to `positions` `[rows]`; x's dtype, or into `out`."""
        if out is None and rotation_gpu.supports(x):
            return rotation_gpu.rotate(x, positions, cos=self.cos, sin=self.sin)
        if out is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        if (kernel := rotation.kernel_for(x, positions, out)) is not None:
            return kernel.rotate(x, out, positions=positions, cos=self.cos, sin=self.sin)
        return self.at(positions)(x, out)

    def at(self, positions: Tensor) -> Rotation:
        """The rotation to `positions` `[rows]`, to be applied to more than one tensor."""
        return Rotation(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))


@dataclass(frozen=True)
class Rotation:
    """Rotates every row to its own position.

    Attributes:
        cos: `[rows, 1, head_dim / 2]` fp32.
        sin: like `cos`.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x `[rows, heads, head_dim]` rotated, in x's dtype or into `out`."""
        half = x.shape[-1] // 2
        left, right = x[..., :half].float(), x[..., half:].float()
        if out is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        out[..., :half] = (left * self.cos).sub_(right * self.sin)
        out[..., half:] = right.mul(self.cos).add_(left * self.sin)
        return out
