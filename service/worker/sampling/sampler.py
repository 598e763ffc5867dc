"""Chooses the next token from logits, and says how likely it was.

    logits ── bias, penalties ── grammar ──┬── likeliest
                                           └── temperature ── min-p, top-k, top-p ── draw

The order is vLLM's, so that the same fields mean the same; its grammar stands first, which chooses
the same. Log-probabilities are those of the model, before temperature and top-p.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from kvstitch.service.messages.replies import TokenLogprobs
from kvstitch.service.messages.requests import Sampling
from kvstitch.service.worker.sampling.grammar import Grammar

LOWEST_TEMPERATURE = 1e-6
"""Below this, exponents of 32 bits overflow; likelier tokens than the likeliest do not exist."""


class Sampler:
    """Samples the tokens of one sequence, so that they do not depend on others in the batch."""

    def __init__(
        self,
        sampling: Sampling,
        adjustments: LogitAdjustments | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        self._sampling = sampling
        self._adjustments = adjustments
        self._grammar = grammar
        self._random = torch.Generator(device="cpu")
        if sampling.seed is None:
            # the request's seed, or a random one if it has none
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
        """Whether the grammar lets no token follow; blocks if not `ready`."""
        return self._grammar is not None and self._grammar.complete

    @property
    def waits(self) -> bool:
        """Whether its grammar is not yet known to be compiled; `ready` asks."""
        return self._grammar is not None and not self._grammar.compiled

    def ready(self, patience_s: float = 0.0) -> bool:
        """Return whether the next token can be sampled, within so many seconds; raises
        InvalidRequest if the grammar cannot be followed, or takes too much."""
        grammar = self._grammar
        if grammar is None:
            return True
        # One that was late is not waited for until it has been in time again.
        grammar.quick = grammar.ready() or (grammar.quick and grammar.ready(patience_s))
        return grammar.quick

    def close(self) -> None:
        """Give up what follows the grammar."""
        if self._grammar is not None:
            self._grammar.close()

    def forced(self, most: int) -> list[int]:
        """Return at most `most` next tokens, of those that the grammar leaves no choice about."""
        return [] if self._grammar is None else self._grammar.forced()[:most]

    def __call__(self, logits: Tensor) -> int:
        """Sample the answer's next token id from logits `[vocabulary]` fp32; at temperature 0
        the most likely one, with the lowest id on ties. Raises as `ready`."""
        if self.takes_likeliest:
            return int(logits.argmax())
        only = self._grammar.only() if self._grammar is not None else None
        token = self._chosen(logits.to("cpu", torch.float32)) if only is None else only
        if self._adjustments is not None:
            self._adjustments.sampled(token)
        if self._grammar is not None:
            self._grammar.sampled(token)
        return token

    def _chosen(self, scores: Tensor) -> int:
        """Return a token that may come next."""
        if self._adjustments is not None:
            scores = scores.clone()
            self._adjustments.apply(scores)
        # Only those that may come: a word of JSON is often one of a few, of 150,000 tokens.
        allowed = self._grammar.allowed() if self._grammar is not None else None
        if allowed is not None:
            scores = scores.index_select(0, allowed)
        place = int(scores.argmax()) if self._sampling.temperature <= 0 else self._draw(scores)
        return place if allowed is None else int(allowed[place])

    def _draw(self, scores: Tensor) -> int:
        """Return the place of one, by chance."""
        # With the highest score subtracted, so that a temperature near 0 does not overflow.
        temperature = max(self._sampling.temperature, LOWEST_TEMPERATURE)
        weights = (scores - scores.max()).div_(temperature).exp_()
        min_p, top_k = self._sampling.min_p, self._sampling.top_k
        if min_p > 0:
            weights.masked_fill_(weights < min_p, 0)
        if 0 < top_k < len(weights):  # those as likely as the last of them stay, too
            weights.masked_fill_(weights < weights.topk(top_k).values[-1], 0)
        keep_top_p(weights, self._sampling.top_p)
        up_to = weights.double().cumsum(0)
        point = torch.rand((), generator=self._random, dtype=torch.float64) * up_to[-1]
        return int(torch.searchsorted(up_to, point, right=True).clamp_(max=len(up_to) - 1))


SURELY_ENOUGH = (1e-3, 1e-6)
"""Weights from which on tokens are sorted for top-p: few have more, and they are mostly enough."""


def keep_top_p(weights: Tensor, top_p: float) -> None:
    """Keep the smallest set of likeliest tokens that together have `top_p` of the weight."""
    if top_p >= 1:
        return
    enough = top_p * float(weights.double().sum())
    for least in (*SURELY_ENOUGH, 0.0):
        index = (weights >= least).nonzero()[:, 0]
        ordered, place = weights[index].double().sort(descending=True, stable=True)
        before = ordered.cumsum(0) - ordered
        if least == 0 or float(before[-1] + ordered[-1]) >= enough:
            break
    kept = index[place[: max(1, int((before < enough).sum()))]]
    values = weights[kept]
    weights.zero_()[kept] = values


class LogitAdjustments:
    """Bias, penalties and the shortest length of one answer, as vLLM defines them; the
    repetition penalty counts the prompt, too."""

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
        """Return the adjustments that a request asks for; None if it asks for none."""
        plain = Sampling()
        names = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
        if sampling.logit_bias or any(getattr(sampling, n) != getattr(plain, n) for n in names):
            return LogitAdjustments(sampling, prompt, end_ids)
        return None

    def apply(self, logits: Tensor) -> None:
        """Change logits `[vocabulary]` fp32 in place."""
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
        """Note the answer's next token."""
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


# JSON has no infinity: what is as good as impossible gets this, as OpenAI has it.
LEAST = -9999.0


def token_logprobs(
    counts: Sequence[int | None], tokens: Sequence[int], logits: Tensor
) -> list[TokenLogprobs | None]:
    """Return log-probabilities of the sampled tokens, and of as many of the most likely ones as
    each row of logits `[rows, vocabulary]` fp32 asks for; None for a row that asks for nothing."""
    wanted = [row for row, count in enumerate(counts) if count is not None]
    out: list[TokenLogprobs | None] = [None] * len(counts)
    if not wanted:
        return out
    scores = logits if len(wanted) == len(counts) else logits[wanted]
    logprobs = scores.float().log_softmax(-1)
    sampled = torch.tensor([tokens[row] for row in wanted], device=logits.device)
    own = logprobs.gather(-1, sampled[:, None])[:, 0].tolist()
    most = max(counts[row] or 0 for row in wanted)
    likeliest = _likeliest(logprobs, most)
    for row, logprob, top in zip(wanted, own, likeliest, strict=True):
        out[row] = TokenLogprobs(max(LEAST, logprob), top[: counts[row]])
    return out


def _likeliest(logprobs: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """Return (token, log-probability) of each row's `count` most likely tokens, likeliest first."""
    if count == 0:
        return [[] for _ in logprobs]
    least = logprobs.topk(min(count, logprobs.shape[-1]), -1).values[:, -1:]
    rows, ids = (logprobs >= least).nonzero(as_tuple=True)
    values = logprobs[rows, ids].tolist()
    found: list[list[tuple[int, float]]] = [[] for _ in logprobs]
    for row, id, value in zip(rows.tolist(), ids.tolist(), values, strict=True):
        found[row].append((id, max(LEAST, value)))
    return [sorted(row, key=lambda one: (-one[1], one[0]))[:count] for row in found]
