"""Changes logits by what the request and the answer so far say about tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from service.messages.requests import Sampling


class LogitAdjustments:
    """Bias, penalties and the shortest length of one answer, as vLLM defines them.

    Args:
        prompt: gives the token ids of the prompt `[n]`, which the repetition penalty counts too.
        end_ids: tokens that end the answer.
    """

    def __init__(
        self, sampling: Sampling, prompt: Callable[[], Tensor], end_ids: Collection[int]
    ) -> None:
        self._sampling = sampling
        self._bias = _items(sampling.logit_bias)
        self._end_ids = torch.tensor(sorted(end_ids), dtype=torch.int64)
        self._seen: set[int] = set()
        if sampling.repetition_penalty != 1:
            self._seen.update(prompt().tolist())
        self._counts: dict[int, int] = {}
        self._tokens = 0

    @staticmethod
    def of(
        sampling: Sampling, prompt: Callable[[], Tensor], end_ids: Collection[int]
    ) -> LogitAdjustments | None:
        """The adjustments that a request asks for; None if it asks for none."""
        plain = Sampling()
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
        if sampling.logit_bias or any(getattr(sampling, n) != getattr(plain, n) for n in names):
            return LogitAdjustments(sampling, prompt, end_ids)
        return None

    def apply(self, logits: Tensor) -> None:
        """Changes logits `[vocabulary]` fp32 in place."""
        if self._tokens < self._sampling.min_tokens:
            logits[self._end_ids] = -torch.inf
        if self._bias is not None:
            logits[self._bias[0]] += self._bias[1]
        if self._seen:
            seen = torch.tensor(list(self._seen), dtype=torch.int64)
            penalty, values = self._sampling.repetition_penalty, logits[seen]
            logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
        counts = _items(self._counts)
        if counts is not None:
            per_token = self._sampling.frequency_penalty * counts[1]
            logits[counts[0]] -= per_token + self._sampling.presence_penalty

    def sampled(self, token: int) -> None:
        """Notes the answer's next token."""
        self._tokens += 1
        if self._sampling.repetition_penalty != 1:
            self._seen.add(token)
        if self._sampling.presence_penalty or self._sampling.frequency_penalty:
            self._counts[token] = self._counts.get(token, 0) + 1


def _items(values: dict[int, float] | dict[int, int]) -> tuple[Tensor, Tensor] | None:
    if not values:
        return None
    numbers = torch.tensor(list(values.values()), dtype=torch.float32)
    return torch.tensor(list(values), dtype=torch.int64), numbers
