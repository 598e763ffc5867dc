"""What a kind of device computes otherwise than torch: the place of kernels that plugins bring.

The core computes everything with torch, on any device, beside its kernels for CPUs. Where it asks
`kernels_of` first, a plugin may know a faster way to the same numbers, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.plugins import hooks
from kvstitch.service.worker.kernels.cpu import native


class DeviceKernels:
    """Kernels of one kind of device; this one has none. Where a method may return None, that means
    that torch computes it.

    `q` is `[m, heads, head_dim]`, `k` and `v` `[m, kv_heads, head_dim]`; a cache `kv` is keys after
    RoPE and values, each `[kv_heads, n, head_dim]`; `rope` is a `RotaryTable`.
    """

    # -- rows of hidden states --------------------------------------------------------------------

    def normalise(self, norm: Any, x: Tensor) -> Tensor:
        """Return the norm of x, `[m, width]` or `[m, heads, width]`, by a transformers module."""
        normed: Tensor = norm(x)
        return normed

    def add_and_normalise(self, norm: Any, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """Return x + added, and its norm."""
        x = x + added
        return x, self.normalise(norm, x)

    def multiply_gated(self, gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the activation of the first half of each row times the second."""
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate).mul_(up)

    # -- the KV cache -----------------------------------------------------------------------------

    placer: Callable[..., Any] | None = None
    """What makes the `KVPlacer` that puts stored KV in place; None: the core's."""

    def rotate(self, rope: Any, x: Tensor, positions: Tensor) -> Tensor | None:
        """`RotaryTable.rotate`."""
        return None

    def write(
        self, rope: Any, kv: tuple[Tensor, Tensor], k: Tensor, v: Tensor, rows: Tensor
    ) -> bool:
        """Write k, rotated, and v to rows of a cache; return whether it was done."""
        return False

    def write_with_queries(
        self,
        rope: Any,
        kv: tuple[Tensor, Tensor],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        *,
        into: Tensor | None = None,
        replaced: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | None:
        """`write`, and return q rotated. `into` are the rows of all heads' keys `[m, kv_heads]` in
        a cache without heads, `[rows, head_dim]`; `replaced` is filled with what stood there."""
        return None

    def can_keep(self, k_all: Tensor) -> bool:
        """Return whether `write_with_queries` keeps what it replaces in a cache like this."""
        return False

    def plan_shift(
        self, view: Any, planned: Any, weights: Tensor, first: int
    ) -> Callable[..., None] | None:
        """Return what does as `Shift.apply`, by weights of rows from `first` on, if there is."""
        return None

    def squared_deviation(self, view: Any, *, keys: bool, values: bool) -> Tensor | None:
        """`kvstitch.service.worker.methods.stored_kv.squared_deviation`."""
        return None

    # -- attention --------------------------------------------------------------------------------

    def attend(self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, scale: float) -> Tensor | None:
        """Return attention `[m, heads * head_dim]` of rows that see keys up to themselves."""
        return None

    def attend_with_scores(
        self, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, weights: Tensor, scale: float
    ) -> tuple[Tensor, Tensor] | None:
        """`attend`, and scores of the keys `[n]` fp32, to which each row counts by its weight."""
        return None

    def attend_runs(
        self, q: Tensor, k: Tensor, v: Tensor, runs: Tensor, longest: int, scale: float
    ) -> Tensor | None:
        """Return attention of one row per sequence, in q's shape, to `runs` of a layer (those of a
        decode step's `Batch`), none above `longest`, in a pool's k and v `[rows, head_dim]`."""
        return None

    # -- many layers at once ----------------------------------------------------------------------

    def decode_steps(self, decoder: Any, pool: Any) -> Callable[..., Tensor] | None:
        """Return what takes the place of `BatchDecoder.step` for the base model, if there is."""
        return None

    def recordings(self, decoder: Any, pool: Any) -> Any:
        """Return `Recordings` of a decoder's layers over prompts in a pool, if there can be any."""
        return None


@cache
def kernels_of(device: torch.device) -> DeviceKernels:
    made: DeviceKernels | None = hooks().device_kernels(device=device)
    return made or DeviceKernels()


def why_missing(device: torch.device) -> str | None:
    """Return why torch's slower operations are used on a device; None where kernels are there."""
    if device.type == "cpu":
        return native.why_missing()
    lacks = device.type == "cuda" and type(kernels_of(device)) is DeviceKernels
    return "install kvstitch-gpu" if lacks else None
