"""Prompts with one fact that is hidden among filler sentences, to measure which heads find it.

They are written in the prompt format of the model folder, and work with any model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from service.errors import PromptTooLong
from service.gateway.api import ModelFolder, ServingTokenizer, load_format, without_bos
from service.prompt import PromptFormat, system_ids

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
        folder: a model folder.
        tokens: about how long needle prompts are.
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
        """One fact at a random position in filler text."""
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
        """A probe whose needle is the only place of `fact` in `text`."""
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
    """`probe`, if it has at most `room` tokens.

    Raises:
        PromptTooLong: it has more.
    """
    if len(probe.ids) > room:
        raise PromptTooLong(
            f"a probe of {len(probe.ids)} tokens does not fit into the {room} that the model "
            "takes beside an answer: give fewer --tokens",
            field="tokens",
        )
    return probe
