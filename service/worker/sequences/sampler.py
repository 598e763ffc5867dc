"""Samples the next token from logits: greedily, or by temperature and top-p with a seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from service.records import Sampling


class Sampler:
    """Samples the tokens of one sequence, so that they do not depend on others in the batch.

    Attributes:
        seed: the request's seed, or a random one if it has none.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = torch.Generator(device="cpu")
        if sampling.seed is None:
            self.seed = self._random.seed() % 2**31
        else:
            self.seed = sampling.seed
        self._random.manual_seed(self.seed)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self._sampling.temperature <= 0

    def __call__(self, logits: Tensor) -> int:
        """Samples a token id from logits `[vocabulary]` fp32.

        At temperature 0 it is the most likely token, the one with the lowest id on ties.
        """
        if self.greedy:
            return int(logits.argmax())
        # In fp64 and with the highest score subtracted: a temperature near 0 must not overflow.
        scores = logits.double().cpu()
        probabilities = ((scores - scores.max()) / self._sampling.temperature).softmax(-1).float()
        if self._sampling.top_p < 1:
            probabilities = _nucleus(probabilities, self._sampling.top_p)
        return int(torch.multinomial(probabilities, 1, generator=self._random))


def sample(samplers: Sequence[Sampler], logits: Tensor) -> list[int]:
    """Samples one token for each row of logits `[samplers, vocabulary]`.

    All greedy tokens are copied from the device together, because each copy waits for the device.
    """
    if not any(sampler.greedy for sampler in samplers):
        return [sampler(row) for sampler, row in zip(samplers, logits, strict=True)]
    best = logits.argmax(-1).tolist()
    rows = zip(samplers, logits, best, strict=True)
    return [likeliest if sampler.greedy else sampler(row) for sampler, row, likeliest in rows]


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The probabilities of the smallest set of tokens that together reach top_p; zero for others.

    The most likely token is always in the set.
    """
    ordered, index = probabilities.sort(descending=True, stable=True)
    mass_before = ordered.cumsum(-1) - ordered
    kept = torch.where(mass_before < top_p, ordered, torch.zeros_like(ordered))
    kept[0] = ordered[0]
    return torch.zeros_like(probabilities).scatter_(0, index, kept)
