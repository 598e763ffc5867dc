"""Measures which heads of a model retrieve, for `eviction.method` headkv (docs/specification.md
§2.6):

    python -m benchmarks.calibrate MODEL_FOLDER [--probes needle|demo] [--samples 32] [--seed 0]

A probe is a prompt with one passage, the needle, that contains the answer. The prompt is prefilled
in full and answered greedily. At every step each query head gets two scores:

    R    1 / |needle| if the position with the most attention is in the needle and holds the token
         that is generated. Counted for probes with more than half of the answer's words.
    R2   among the |needle| positions with the most attention, the attention of those in the needle,
         / |needle|. Counted for probes whose answer has an F1 above one half.

Scores are averaged over probes and normalised to sum 1. They are written to `calibration.json` in
the model folder, where other entries stay. Both scores use the same probes; the published probes of
R2 have the model reason over a longer passage, so this is our version of the published measure.

Source: Wu et al. (2024), Retrieval head; Fu et al. (2024), HeadKV.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.probes import KINDS, Probe, Prober, fits
from service.errors import KvstitchError
from service.tuning.measuring.environment import describe
from service.worker.api import (
    CALIBRATION_FILE,
    DecoderAdapter,
    SequenceKV,
    kv_pool,
    load_model,
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
class Calibration:
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
def answer(adapter: DecoderAdapter, probe: Probe, limit: int) -> Answer:
    """Answers greedily with at most `limit` tokens, and scores the attention of every step."""
    n = len(probe.ids)
    kv = kv_pool(adapter, n + limit).reserve(n + limit)
    assert kv is not None, "the pool was made for it"
    # All but the last token, because its attention is the first to be scored.
    prefill_ids(adapter, probe.ids[:-1], kv=kv)
    kv.set_length(n - 1)
    r = torch.zeros(adapter.layers, adapter.heads)
    r2 = torch.zeros_like(r)
    tokens: list[int] = []
    last = probe.ids[-1]
    while len(tokens) < limit:
        logits, weights = _observed_step(adapter, kv, last, n - 1 + len(tokens))
        last = int(logits.argmax())
        if last in adapter.end_ids:
            break
        tokens.append(last)
        copied, mass = step_scores(weights, probe, last)
        r += copied
        r2 += mass
    return Answer(tokens, r, r2)


def _observed_step(
    adapter: DecoderAdapter, kv: SequenceKV, token: int, position: int
) -> tuple[Tensor, Tensor]:
    """One decode step: logits `[vocabulary]` and attention `[layers, heads, position + 1]`."""
    at = torch.tensor([position], device=adapter.device)
    x = adapter.embed(torch.tensor([token], device=adapter.device))
    seen = []
    for layer in range(adapter.layers):
        q, k, v = adapter.qkv(layer, x)
        k_all, v_all = kv.prompt_layer(layer, position + 1)
        write_rows(adapter.rope, k_all, v_all, k, v, at)
        weights = attention_probabilities(adapter.rope.rotate(q, at), k_all, at, adapter.scale)
        seen.append(weights[:, 0].cpu())
        x = adapter.finish(layer, x, weighted_values(weights, v_all))
    return adapter.logits(x)[0], torch.stack(seen)


def calibrate(
    adapter: DecoderAdapter,
    probes: Iterable[Probe],
    *,
    encode: Callable[[str], Sequence[int]],
    decode: Callable[[Sequence[int]], str],
) -> Calibration:
    """Answers every probe; `decode` makes the text that the service would return."""
    out = Calibration()
    for probe in probes:
        limit = len(encode(probe.answer)) + EXTRA_TOKENS
        fits(probe, adapter.max_context - limit)
        given = answer(adapter, probe, limit)
        out.add(given, probe.answer, decode(given.tokens))
    return out


def write(folder: Path, head_scores: dict[str, list[list[float]]], about: dict[str, Any]) -> Path:
    """Writes head scores to the calibration of a model folder; returns the path."""
    return merge(folder, head_scores=head_scores, head_scores_from=about)


def merge(folder: Path, **fields: Any) -> Path:
    """Writes fields to the calibration of a model folder, atomically; returns the path.

    Other fields stay, unless the file is not a JSON object.
    """
    path = folder / CALIBRATION_FILE
    try:
        before = dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        before = {}
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**before, **fields}) + "\n")
    os.replace(part, path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", type=Path, help="a Hugging Face model folder")
    parser.add_argument("--probes", choices=sorted(KINDS), default="needle")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=1000, help="length of needle prompts, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args(arguments)
    try:
        adapter = load_model(str(args.model), dtype=args.dtype, device=args.device)
        prober = Prober(args.model, tokens=args.tokens)
        found = calibrate(
            adapter,
            (prober.make(args.probes, i, args.seed) for i in range(args.samples)),
            encode=prober.tokenizer.encode_text,
            decode=lambda ids: prober.stops(prober.tokenizer.decode(ids)),
        )
    except KvstitchError as error:
        print(error.message, file=sys.stderr)
        return 1
    answered = {name: tally.answered for name, tally in found.tallies.items()}
    for name, count in answered.items():
        print(f"{name}: {count} of {found.probes} probes answered well enough")
    if set(found.head_scores) != {"R", "R2"}:
        missing = ", ".join(sorted({"R", "R2"} - set(found.head_scores)))
        print(
            f"nothing was written: no head scored for {missing}. The model does not answer these "
            "probes; try the other --probes, shorter --tokens, or another model",
            file=sys.stderr,
        )
        return 1
    about = {
        "probes": args.probes,
        "samples": args.samples,
        "tokens": args.tokens,
        "seed": args.seed,
        "answered": answered,
        "environment": describe(),
    }
    try:
        print(f"written to {write(args.model, found.head_scores, about)}")
    except OSError as error:
        print(f"the model's folder must be writable: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
