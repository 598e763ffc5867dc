"""Rotary position embedding: cos and sin tables in fp32, one rotation to the request's positions.

Keys are stored before RoPE and rotated once, in fp32, before they are cast (docs/specification.md
§0). The frequencies come from a freshly built copy of the model's own rotary module, because
casting the model to another dtype may have rounded the original's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstitch.service.errors import ModelRefused
from kvstitch.service.worker.kernels.cpu import rotation
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.model.folder_checks import rope_fault, served_context


class RotaryTable:
    """Cosines and sines of all positions."""

    def __init__(self, inv_freq: Tensor, scaling: float, positions: int) -> None:
        self.rotated = 2 * len(inv_freq)  # how many of a head's dimensions are rotated
        angles = torch.outer(
            torch.arange(positions, dtype=torch.float32, device=inv_freq.device), inv_freq.float()
        )
        # `[positions, head_dim / 2]` fp32, multiplied by the model's attention scaling
        self.cos = angles.cos() * scaling
        self.sin = angles.sin() * scaling  # like `cos`

    @classmethod
    def of(
        cls,
        config: Any,
        rotary: Any,
        positions: int,
        device: torch.device,
        *,
        head_dim: int,
        layer_type: str | None = None,
    ) -> RotaryTable:
        """Return the table of a transformers rotary module, or of its layers of one type, for at
        most `static_positions`. Where it rotates only a part of `head_dim`, the table leaves the
        others as they are, for heads in `halves_order`."""
        fresh = type(rotary)(config).to(device)
        prefix = f"{layer_type}_" if layer_type else ""
        inv_freq: Tensor = getattr(fresh, prefix + "inv_freq")
        table = cls(inv_freq, float(getattr(fresh, prefix + "attention_scaling")), positions)
        if (still := head_dim // 2 - len(inv_freq)) > 0:
            table.cos = F.pad(table.cos, (0, still), value=1.0)
            table.sin = F.pad(table.sin, (0, still))
        return table

    def rotate(self, x: Tensor, positions: Tensor, out: Tensor | None = None) -> Tensor:
        """Rotate x `[rows, heads, head_dim]` to `positions` `[rows]`, into `out` if it is given."""
        if out is None:
            if (rotated := kernels_of(x.device).rotate(self, x, positions)) is not None:
                return rotated
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        if rotation.supports(x, positions, out):
            return rotation.rotate(x, out, positions=positions, cos=self.cos, sin=self.sin)
        return self.at(positions)(x, out)

    def unrotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return what `rotate` made x of, but for rounding: x `[rows, heads, head_dim]`."""
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        scale = cos.square() + sin.square()  # of attention scaling, squared
        return Rotation(cos / scale, -sin / scale)(x)

    def at(self, positions: Tensor) -> Rotation:
        """Return the rotation to `positions` `[rows]`, to be applied to more than one tensor."""
        return Rotation(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1))

    @classmethod
    def none(cls, like: RotaryTable) -> RotaryTable:
        """Return the table of layers without RoPE: nothing is rotated."""
        table = cls.__new__(cls)
        table.rotated = like.rotated
        table.cos, table.sin = torch.ones_like(like.cos), torch.zeros_like(like.sin)
        return table


def static_positions(config: Any) -> int:
    """Return positions for which the frequencies do not depend on the prompt's length; raises
    ModelRefused if the type of RoPE is not known."""
    facts = config.to_dict()
    if fault := rope_fault(config.name_or_path, facts):
        raise ModelRefused(f"{fault.problem}: {fault.remedy}", field="model")
    return served_context(facts) or int(config.max_position_embeddings)


def halves_order(head_dim: int, *, rotated: int, interleaved: bool = False) -> Tensor | None:
    """Return the order of a head's dimensions in which i and i + head_dim / 2 turn together."""
    turned, still = list(range(rotated)), list(range(rotated, head_dim))
    half = rotated // 2
    left, right = (turned[::2], turned[1::2]) if interleaved else (turned[:half], turned[half:])
    middle = len(still) // 2
    order = [*left, *still[:middle], *right, *still[middle:]]
    return None if order == [*turned, *still] else torch.tensor(order)


@dataclass(frozen=True)
class Rotation:
    """Rotates every row to its own position."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Rotate x `[rows, heads, head_dim]`, in x's dtype or into `out`."""
        half = x.shape[-1] // 2
        left, right = x[..., :half].float(), x[..., half:].float()
        if out is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        out[..., :half] = (left * self.cos).sub_(right * self.sin)
        out[..., half:] = right.mul(self.cos).add_(left * self.sin)
        return out
