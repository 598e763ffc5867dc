"""Measures which heads of a model retrieve, for `eviction.method` headkv (docs/specification.md
§2.6).

A probe is a prompt with one passage, the needle, that contains the answer. The prompt is prefilled
in full and answered greedily. At every step each query head gets two scores:

    R    1 / |needle| if the position with the most attention is in the needle and holds the token
         that is generated. Counted for probes with more than half of the answer's words.
    R2   among the |needle| positions with the most attention, the attention of those in the needle,
         / |needle|. Counted for probes whose answer has an F1 above one half.

Scores are averaged over probes and normalised to sum 1. Both use the same probes; the published
probes of R2 have the model reason over a longer passage, so this is our version of the published
measure.

Source: Wu et al. (2024), Retrieval head; Fu et al. (2024), HeadKV.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.tuning.calibrating.needle_probes import Probe, fits
from service.worker.api import (
    DecoderModel,
    SequenceKV,
    kv_pool,
    prefill_ids,
    weighted_values,
    write_rows,
)
from service.worker.methods.api import attention_probabilities, stable_topk

EXTRA_TOKENS = 8  # an answer may have this many tokens more than the expected one
GOOD = 0.5


@dataclass
class Tally:
    """Sum of scores `[layers, heads]` over the probes that were answered well enough."""

    total: Tensor
    answered: int = 0

    def add(self, scores: Tensor) -> None:
        self.total += scores
        self.answered += 1

    @property
    def normalised(self) -> Tensor | None:
        """Scores with sum 1; None if no head scored on any counted probe."""
        mass = self.total.sum()
        return self.total / mass if mass > 0 else None


@dataclass(frozen=True)
class Answer:
    """A greedy answer without end token; its scores `[layers, heads]` fp32, summed over steps."""

    tokens: list[int]
    r: Tensor
    r2: Tensor


@dataclass
class HeadScores:
    """Both measures over a number of probes."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    probes: int = 0

    def add(self, answer: Answer, expected: str, text: str) -> None:
        """Adds an answer; `text` is its text as the service would return it."""
        recall, f1 = word_overlap(expected, text)
        self.probes += 1
        for name, scores, quality in (("R", answer.r, recall), ("R2", answer.r2, f1)):
            tally = self.tallies.setdefault(name, Tally(torch.zeros_like(scores)))
            if quality > GOOD:
                tally.add(scores)

    @property
    def head_scores(self) -> dict[str, list[list[float]]]:
        found = {name: tally.normalised for name, tally in self.tallies.items()}
        return {name: scores.tolist() for name, scores in found.items() if scores is not None}


def word_overlap(expected: str, text: str) -> tuple[float, float]:
    """ROUGE-1 recall and F1 of `text` against `expected`, on lower-case words."""
    wanted, given = (Counter(re.findall(r"\w+", t.lower())) for t in (expected, text))
    common = (wanted & given).total()
    if not common:
        return 0.0, 0.0
    return common / wanted.total(), 2 * common / (wanted.total() + given.total())


def step_scores(weights: Tensor, probe: Probe, generated: int) -> tuple[Tensor, Tensor]:
    """R and R2 of one step, `[layers, heads]` each.

    Args:
        weights: attention of the step, `[layers, heads, keys]`; keys beyond the prompt are earlier
            answer tokens.
        probe: the prompt.
        generated: the token that the step generated.
    """
    span = probe.needle
    top = weights.argmax(-1)
    inside = torch.zeros(weights.shape[-1], dtype=torch.bool)
    inside[span.start : span.stop] = True
    same = torch.zeros_like(inside)
    same[: len(probe.ids)] = torch.tensor(probe.ids) == generated
    copied = (inside & same)[top].float()
    best = stable_topk(weights, len(span))
    mass = (weights.gather(-1, best) * inside[best]).sum(-1)
    return copied / len(span), mass / len(span)


@torch.inference_mode()
def answer(decoder: DecoderModel, probe: Probe, limit: int) -> Answer:
    """Answers greedily with at most `limit` tokens, and scores the attention of every step."""
    n = len(probe.ids)
    kv = kv_pool(decoder, n + limit).reserve(n + limit)
    assert kv is not None, "the pool was made for it"
    # All but the last token, because its attention is the first to be scored.
    prefill_ids(decoder, probe.ids[:-1], kv=kv)
    kv.set_length(n - 1)
    r = torch.zeros(decoder.layers, decoder.heads)
    r2 = torch.zeros_like(r)
    tokens: list[int] = []
    last = probe.ids[-1]
    while len(tokens) < limit:
        logits, weights = _observed_step(decoder, kv, last, n - 1 + len(tokens))
        last = int(logits.argmax())
        if last in decoder.end_ids:
            break
        tokens.append(last)
        copied, mass = step_scores(weights, probe, last)
        r += copied
        r2 += mass
    return Answer(tokens, r, r2)


def _observed_step(
    decoder: DecoderModel, kv: SequenceKV, token: int, position: int
) -> tuple[Tensor, Tensor]:
    """One decode step: logits `[vocabulary]` and attention `[layers, heads, position + 1]`."""
    at = torch.tensor([position], device=decoder.device)
    x = decoder.embed(torch.tensor([token], device=decoder.device))
    seen = []
    for layer in range(decoder.layers):
        q, k, v = decoder.qkv(layer, x)
        k_all, v_all = kv.prompt_layer(layer, position + 1)
        rope = decoder.ropes[layer]
        write_rows(rope, k_all, v_all, k, v, at)
        weights = attention_probabilities(
            rope.rotate(q, at), k_all, at, decoder.scale, rule=decoder.rules[layer]
        )
        seen.append(weights[:, 0].cpu())
        x = decoder.finish(layer, x, weighted_values(weights, v_all))
    return decoder.logits(x)[0], torch.stack(seen)


def calibrate(
    decoder: DecoderModel,
    probes: Iterable[Probe],
    *,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
) -> HeadScores:
    """Answers every probe; `decode` makes the text that the service would return."""
    out = HeadScores()
    for probe in probes:
        limit = len(encode(probe.answer)) + EXTRA_TOKENS
        fits(probe, decoder.max_context - limit)
        given = answer(decoder, probe, limit)
        out.add(given, probe.answer, decode(given.tokens))
    return out
