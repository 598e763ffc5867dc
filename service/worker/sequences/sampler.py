"""Next token from logits: greedy, or temperature and top-p with a seed of the request's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from service.records import Sampling


class Sampler:
    """One per sequence: its random stream does not depend on what else runs in the batch."""

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
        """Takes the likeliest token."""
        return self._sampling.temperature <= 0

    def __call__(self, logits: Tensor) -> int:
        """logits `[vocabulary]` fp32 → a token id. Temperature 0 is argmax, lowest id on ties."""
        if self.greedy:
            return int(logits.argmax())
        # In fp64 and less the highest: a temperature next to 0 must not make an infinity of it.
        scores = logits.double().cpu()
        probabilities = ((scores - scores.max()) / self._sampling.temperature).softmax(-1).float()
        if self._sampling.top_p < 1:
            probabilities = _nucleus(probabilities, self._sampling.top_p)
        return int(torch.multinomial(probabilities, 1, generator=self._random))


def sample(samplers: Sequence[Sampler], logits: Tensor) -> list[int]:
    """A token for each of the rows of logits `[samplers, vocabulary]`. A device is waited for once
    for all that are greedy."""
    if not any(sampler.greedy for sampler in samplers):
        return [sampler(row) for sampler, row in zip(samplers, logits, strict=True)]
    best = logits.argmax(-1).tolist()
    rows = zip(samplers, logits, best, strict=True)
    return [likeliest if sampler.greedy else sampler(row) for sampler, row, likeliest in rows]


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The smallest set of tokens whose mass reaches top_p, the most likely one always in it."""
    ordered, index = probabilities.sort(descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p, ordered, torch.zeros_like(ordered))
    kept[0] = ordered[0]
    return torch.zeros_like(probabilities).scatter_(0, index, kept)
