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
from service.worker.model.supported import ROPE_TYPES_UP_TO_A_LENGTH, STATIC_ROPE_TYPES


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

        Args:
            positions: at most `static_positions`.

        Raises:
            ModelRefused: there is no such type, or it rotates only a part of every head.
        """
        parameters = config.rope_parameters or {}
        if (part := float(parameters.get("partial_rotary_factor", 1.0))) != 1:
            raise ModelRefused(
                f"partial_rotary_factor {part:g}: models that rotate only a part of every head are "
                "not served",
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

    @classmethod
    def none(cls, like: RotaryTable) -> RotaryTable:
        """The table of layers without RoPE: nothing is rotated."""
        table = cls.__new__(cls)
        table.cos, table.sin = torch.ones_like(like.cos), torch.zeros_like(like.sin)
        return table


def static_positions(config: Any) -> int:
    """Positions for which the frequencies do not depend on the prompt's length.

    Raises:
        ModelRefused: the type of RoPE is not known.
    """
    parameters = config.rope_parameters or {}
    rope_type = str(parameters.get("rope_type", "default"))
    limit = int(config.max_position_embeddings)
    if rope_type in STATIC_ROPE_TYPES:
        return limit
    if rope_type not in ROPE_TYPES_UP_TO_A_LENGTH:
        known = ", ".join((*STATIC_ROPE_TYPES, *ROPE_TYPES_UP_TO_A_LENGTH))
        raise ModelRefused(
            f"rope_type {rope_type!r} is not served; served types: {known}", field="model"
        )
    own = getattr(config, "original_max_position_embeddings", None)
    return min(limit, int(parameters.get("original_max_position_embeddings") or own or limit))


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
