"""Chooses the next token from logits.

    logits ── grammar, bias, penalties ──┬── likeliest
                                         └── temperature ── min-p, top-k, top-p ── draw

The order is vLLM's, so that the same fields mean the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from service.messages.requests import Sampling
from service.worker.sequences.sampling import candidates
from service.worker.sequences.sampling.grammar import PendingGrammar
from service.worker.sequences.sampling.logit_adjustments import LogitAdjustments

LOWEST_TEMPERATURE = 1e-6
"""Below this, exponents of 32 bits overflow; likelier tokens than the likeliest do not exist."""


class Sampler:
    """Samples the tokens of one sequence, so that they do not depend on others in the batch.

    Args:
        adjustments: changes the logits by what the answer holds so far; None for no change.
        grammar: what the answer must be; None for anything.

    Attributes:
        seed: the request's seed, or a random one if it has none.
    """

    def __init__(
        self,
        sampling: Sampling,
        adjustments: LogitAdjustments | None = None,
        grammar: PendingGrammar | None = None,
    ) -> None:
        self._sampling = sampling
        self._adjustments = adjustments
        self._grammar = grammar
        self._random = torch.Generator(device="cpu")
        if sampling.seed is None:
            self.seed = self._random.seed() % 2**31
        else:
            self.seed = sampling.seed
        self._random.manual_seed(self.seed)

    @property
    def takes_likeliest(self) -> bool:
        """Whether the most likely token is always taken, as the model gives it."""
        greedy = self._sampling.temperature <= 0
        return greedy and self._adjustments is None and self._grammar is None

    @property
    def complete(self) -> bool:
        """Whether the grammar lets no token follow those that were sampled."""
        return self._grammar is not None and self._grammar.get().complete

    def forced(self, most: int) -> list[int]:
        """At most `most` next tokens, of those that the grammar leaves no choice about."""
        return [] if self._grammar is None else self._grammar.get().forced()[:most]

    def __call__(self, logits: Tensor) -> int:
        """Samples a token id from logits `[vocabulary]` fp32. It counts as the answer's next one.

        At temperature 0 it is the most likely token, the one with the lowest id on ties.

        Raises:
            InvalidRequest: the grammar has become too complex to follow.
        """
        if self.takes_likeliest:
            return int(logits.argmax())
        scores = logits.to("cpu", torch.float32, copy=True)
        if self._grammar is not None:
            self._grammar.get().mask(scores)
        if self._adjustments is not None:
            self._adjustments.apply(scores)
        token = int(scores.argmax()) if self._sampling.temperature <= 0 else self._draw(scores)
        if self._adjustments is not None:
            self._adjustments.sampled(token)
        if self._grammar is not None:
            self._grammar.get().sampled(token)
        return token

    def _draw(self, scores: Tensor) -> int:
        # With the highest score subtracted, so that a temperature near 0 does not overflow.
        temperature = max(self._sampling.temperature, LOWEST_TEMPERATURE)
        weights = scores.sub_(scores.max()).div_(temperature).exp_()
        candidates.keep_min_p(weights, self._sampling.min_p)
        candidates.keep_top_k(weights, self._sampling.top_k)
        candidates.keep_top_p(weights, self._sampling.top_p)
        up_to = weights.double().cumsum(0)
        point = torch.rand((), generator=self._random, dtype=torch.float64) * up_to[-1]
        return int(torch.searchsorted(up_to, point, right=True).clamp_(max=len(up_to) - 1))
