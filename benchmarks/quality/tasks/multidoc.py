"""Our own suites: the demo language's tasks over several documents, and needles in its words.

Splits are seeds: parameters are tuned on `DEVELOPMENT`, tables are made on `TEST`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from benchmarks.quality.sample import TextSample
from demo.language import tasks
from demo.language.tasks.story import draw_names
from demo.language.vocabulary import DOCUMENT, QUESTION, SYSTEM
from demo.language.wording import NEEDLE, NEEDLE_QUESTION, NOISE, RECORD

DEVELOPMENT = (101, 102)
TEST = (1, 2, 3)
ANSWER_TOKENS = 32
CHUNK_TOKENS = 48
"""The demo model's contexts have 150 to 500 tokens; chunks of this size cut through sentences."""
OTHER_KEYS = 6
"""Needles besides the one asked for, as in the task that the model was trained on."""


def generate(
    names: Sequence[str], *, seeds: Sequence[int], samples: int, held_out: bool = True
) -> Iterator[TextSample]:
    """Samples of every task from each seed.

    Seeds and tasks alternate, so that a run that is cut short has some of each. A sample depends
    only on seed, task and number.
    """
    for number in range(samples):
        for seed in seeds:
            for name in names:
                yield _one(name, seed, number, held_out)


def _one(name: str, seed: int, number: int, held_out: bool) -> TextSample:
    drawn = tasks.sample(name, random.Random(f"{seed} {name} {number}"), held_out=held_out)
    return TextSample(
        suite="multidoc",
        task=name,
        number=number,
        instruction=SYSTEM,
        context=drawn.context,
        question=QUESTION.format(question=drawn.question),
        references=drawn.answers,
        metric="exact",
        answer_tokens=ANSWER_TOKENS,
        chat=False,
        details={"seed": seed},
    )


def needles(
    *,
    count: Callable[[str], int],
    lengths: Sequence[int],
    depths: Sequence[int],
    seeds: Sequence[int],
    samples: int,
) -> Iterator[TextSample]:
    """RULER's needle among other needles and noise, for every length and depth, from each seed.

    Args:
        count: number of tokens of a text.
        lengths: tokens of the context.
        depths: position of the needle in percent, rounded to whole sentences.
        seeds: of the samples.
        samples: for each length, depth and seed.
    """
    for number in range(samples):
        for seed in seeds:
            for length in lengths:
                rng = random.Random(f"{seed} needle {number} {length}")
                lines, asked, answer = _needle_lines(count, rng, length)
                for depth in depths:
                    place = round(depth / 100 * len(lines))
                    text = " ".join([*lines[:place], NEEDLE.format(n=asked, v=answer)])
                    text = " ".join([text, *lines[place:]])
                    yield TextSample(
                        suite="short_needle",
                        task="needle",
                        number=number,
                        instruction=SYSTEM,
                        context=DOCUMENT.format(title=RECORD, text=text),
                        question=QUESTION.format(question=NEEDLE_QUESTION.format(n=asked)),
                        references=(answer,),
                        metric="exact",
                        answer_tokens=ANSWER_TOKENS,
                        chat=False,
                        details={"seed": seed, "depth": depth, "length": length},
                    )


def _needle_lines(
    count: Callable[[str], int], rng: random.Random, length: int
) -> tuple[list[str], str, str]:
    """Other needles and as many sentences of noise as fit; the key to ask for, and its number."""
    asked, *others = draw_names(rng, True, 1 + OTHER_KEYS)
    numbers = [str(rng.randint(1_000_000, 9_999_999)) for _ in range(1 + OTHER_KEYS)]
    answer, *rest = numbers
    needle = NEEDLE.format(n=asked, v=answer)
    lines = [NEEDLE.format(n=n, v=v) for n, v in zip(others, rest, strict=True)]
    room = length - count(DOCUMENT.format(title=RECORD, text=needle))
    while lines and count(" ".join(lines)) > room:
        lines.pop()
    while count(" ".join([*lines, NOISE])) <= room:
        lines.append(NOISE)
    rng.shuffle(lines)
    return lines, asked, answer
