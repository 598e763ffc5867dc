"""Log-probabilities of answer tokens: a log-softmax of the model's logits as they are, before
temperature and top-p. So they are the same for a seed and for a greedy answer with the same
text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from service.messages.replies import TokenLogprobs

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
