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

Prompts with one fact that is hidden among filler sentences, to measure which heads find it.

They are written in the prompt format of the model folder, and work with any model.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from kvstitch.service.errors import PromptTooLong
from kvstitch.service.gateway.prompts.model_folder import ModelFolder, load_format, without_bos
from kvstitch.service.gateway.prompts.tokenizer import ServingTokenizer
from kvstitch.service.prompt import PromptFormat, system_ids
from kvstitch.service.worker.api import DecoderModel, Vanilla, decode_step
from kvstitch.service.worker.methods.api import PromptLayout, stable_topk
from kvstitch_tune.case import Answering, Case, Filled
from kvstitch_tune.prompts import kv_pool, prefill_ids

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
    """R and R2 of one step, `[layers, heads]` each."""
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
    pool = kv_pool(decoder, 2 * (n + limit))
    kv, again = pool.reserve(n + limit), pool.reserve(n + limit)
    assert kv is not None and again is not None, "the pool was made for them"
    found = prefill_ids(decoder, probe.ids, kv=kv)
    kv.set_length(n)
    each = Answering(kv, n, [int(found.logits.argmax())])
    while each.tokens[-1] not in decoder.end_ids and len(each.tokens) < limit:
        each.tokens.append(int(decode_step(decoder, [each])[0].argmax()))
    tokens = [token for token in each.tokens if token not in decoder.end_ids]
    r = torch.zeros(decoder.layers, decoder.heads)
    r2 = torch.zeros_like(r)
    # What the row before each token of the answer attends to, in one prefill more.
    asked = [probe.ids[-1], *tokens[:-1]]
    layout = PromptLayout.of(probe.ids[:-1], [], asked, uncached=[True], device=decoder.device)
    case = Case(decoder, layout, [None], again)
    filled = Filled(decoder, layout, again, case.prefill(Vanilla()).observed)
    weights = torch.stack([filled.question_attention(i).cpu() for i in range(decoder.layers)])
    for row, token in enumerate(tokens):
        copied, mass = step_scores(weights[:, :, row], probe, token)
        r += copied
        r2 += mass
    return Answer(tokens, r, r2)


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


FILLER = (
    "The grass is green and the sky is blue.",
    "A train left the station at noon.",
    "Most of the shops on the square close early in winter.",
    "The children walked home along the river.",
    "It rained on the hills for most of the week.",
    "An old bridge connects the two parts of the town.",
    "The baker opens before anyone else is awake.",
    "Nobody could remember who had planted the trees.",
)
PLACES = (
    *("Berlin", "Boston", "Cairo", "Chicago", "Delhi", "Dublin", "Geneva", "Lisbon", "London"),
    *("Madrid", "Moscow", "Paris", "Prague", "Rome", "Sydney", "Tokyo", "Toronto", "Vienna"),
)
NEEDLE = "The secret number of {place} is {number}."
ASK = "What is the secret number of {place}?"


@dataclass(frozen=True)
class Probe:
    """A probe. `needle` are the positions in `ids` of the sentence with the answer."""

    ids: tuple[int, ...]
    needle: range
    answer: str


class Prober:
    """Makes probes for the model in `folder`; the i-th depends only on the seed and i.

    Args:
        folder: A model folder.
        tokens: About how long needle prompts are.
    """

    def __init__(self, folder: Path, *, tokens: int = 1000) -> None:
        files = ModelFolder(folder)
        fmt = load_format(files)
        self.tokenizer = ServingTokenizer(files, bos=fmt.bos)
        self.format: PromptFormat = without_bos(fmt, self.tokenizer.bos_text)
        self._tokens = tokens

    def stops(self, text: str) -> str:
        """`text` up to where the service would stop, without surrounding white space."""
        ends = [at for stop in self.format.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))].strip()

    def needle(self, rng: random.Random) -> Probe:
        """Return one fact at a random position in filler text."""
        place, value = rng.choice(PLACES), str(rng.randint(1_000_000, 9_999_999))
        fact = NEEDLE.format(place=place, number=value)
        sentences: list[str] = []
        each = [len(self.tokenizer.encode_text(" " + text)) for text in FILLER]
        length = 0
        while length < self._tokens or not sentences:
            chosen = rng.randrange(len(FILLER))
            sentences.append(FILLER[chosen])
            length += each[chosen]
        sentences.insert(rng.randint(0, len(sentences)), fact)
        text = self.format.render_document("", " ".join(sentences))
        return self.hidden(text, fact, ASK.format(place=place), value)

    def hidden(self, text: str, fact: str, question: str, answer: str) -> Probe:
        """Return a probe whose needle is the only place of `fact` in `text`."""
        first = text.index(fact)
        last = first + len(fact)
        system = system_ids(self.format, self.tokenizer)
        inside = [
            i
            for i, (a, b) in enumerate(self.tokenizer.encode_offsets(text))
            if a < last and b > first
        ]
        asked = self.tokenizer.encode_template(self.format.question, question=question)
        ids = (*system, *self.tokenizer.encode_text(text), *asked)
        needle = range(len(system) + inside[0], len(system) + inside[-1] + 1)
        return Probe(ids, needle, answer)


def fits(probe: Probe, room: int) -> Probe:
    """`probe`, if it has at most `room` tokens."""
    if len(probe.ids) > room:
        raise PromptTooLong(
            f"a probe of {len(probe.ids)} tokens does not fit into the {room} that the model "
            "takes beside an answer: give fewer --tokens",
            field="tokens",
        )
    return probe
