"""Muon for matrices and AdamW for the rest, on fp32 master weights.

Muon orthogonalises the momentum by five Newton-Schulz steps. Matrices of the same shape are
orthogonalised together, which makes it cheap on a CPU.

Source:
    Muon: Jordan et al., 2024.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

MUON_RATE = 0.01
ADAM_RATE = 2e-3
MOMENTUM = 0.95


class MasterOptimizer:
    """Holds fp32 master weights; `step` updates them and copies them into the model's dtype."""

    def __init__(self, model: nn.Module, adam_rate: float = ADAM_RATE) -> None:
        self._adam_rate = adam_rate
        self._groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        self._parameters = dict(model.named_parameters())
        self.master = {n: p.detach().float().clone() for n, p in self._parameters.items()}
        self._rest: list[str] = []
        for name, parameter in self._parameters.items():
            if parameter.ndim == 2 and "embed" not in name:
                self._groups[tuple(parameter.shape)].append(name)
            else:
                self._rest.append(name)
        self._momentum = {
            shape: torch.zeros(len(names), *shape, device=self.master[names[0]].device)
            for shape, names in self._groups.items()
        }
        for name in self._rest:
            self.master[name].requires_grad_(True)
        self._adam = torch.optim.AdamW(
            [self.master[n] for n in self._rest], lr=adam_rate, betas=(0.9, 0.98), weight_decay=0.0
        )

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Makes one update at `scale` times the base rates, and clears the gradients."""
        for shape, names in self._groups.items():
            gradient = torch.stack([self._gradient(name) for name in names])
            momentum = self._momentum[shape]
            momentum.lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalise(gradient.lerp(momentum, MOMENTUM))
            rate = scale * MUON_RATE * max(1.0, shape[0] / shape[1]) ** 0.5
            for name, direction in zip(names, update, strict=True):
                self.master[name].sub_(direction.float(), alpha=rate)
        for name in self._rest:
            self.master[name].grad = self._gradient(name)
        for group in self._adam.param_groups:
            group["lr"] = scale * self._adam_rate
        self._adam.step()
        for name, parameter in self._parameters.items():
            parameter.copy_(self.master[name])
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that `load_state_dict` needs, named like "master/NAME" or "momentum/NAME"."""
        state = {f"master/{name}": tensor.detach() for name, tensor in self.master.items()}
        for shape, names in self._groups.items():
            momenta = zip(names, self._momentum[shape], strict=True)
            state |= {f"momentum/{name}": tensor for name, tensor in momenta}
        for name in self._rest:
            moments = self._adam.state[self.master[name]]
            state |= {f"adam/{name}/{key}": tensor for key, tensor in moments.items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, master in self.master.items():
            master.copy_(state[f"master/{name}"])
            self._parameters[name].copy_(master)
        for shape, names in self._groups.items():
            for momentum, name in zip(self._momentum[shape], names, strict=True):
                momentum.copy_(state[f"momentum/{name}"])
        for name in self._rest:
            prefix = f"adam/{name}/"
            moments = {k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)}
            device = self.master[name].device
            self._adam.state[self.master[name]] = {
                key: tensor if key == "step" else tensor.to(device)
                for key, tensor in moments.items()
            }

    def _gradient(self, name: str) -> Tensor:
        gradient = self._parameters[name].grad
        assert gradient is not None, name
        return gradient.float()


def orthogonalise(gradient: Tensor) -> Tensor:
    """Approximates the nearest semi-orthogonal matrices of `[matrices, rows, columns]`.

    On a CPU it computes in fp32, which is faster than bf16 where the CPU has no bf16 units.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x: Tensor = gradient.bfloat16() if gradient.is_cuda else gradient.float()
    wide = x.shape[1] <= x.shape[2]
    if not wide:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.transpose(1, 2)
