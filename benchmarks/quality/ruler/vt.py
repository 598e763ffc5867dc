"""Variable tracking: five names, each set from the one before, among lines of noise."""

from __future__ import annotations

import random
import string
from functools import partial
from itertools import islice, pairwise

from benchmarks.quality.ruler.draft import Draft, Drafter, Setting
from benchmarks.quality.ruler.niah import NOISE
from benchmarks.quality.ruler.words import distinct

NAMES = 5
EXAMPLE_TOKENS = 500
SHORTEST = 1024
_INSTRUCTION = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
)
_QUESTION = "\nQuestion: Find all variables that are assigned the value {value} in the text above."
_ANSWER_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, "
    f"{NAMES} variables are assigned the value {{value}}, they are: "
)


def prepare(setting: Setting) -> Drafter:
    return partial(_draft, setting)


def _draft(setting: Setting, number: int, rng: random.Random) -> Draft:
    values = distinct(lambda: str(rng.randint(10_000, 99_999)))
    example = _solved(_chain(rng, next(values), letters=3), setting)
    chain = _chain(rng, next(values), letters=5)
    return Draft(
        chain.instruction,
        lambda size: f"{example}\n\n{_INSTRUCTION}{chain.context(size)}",
        chain.question,
        chain.answer_prefix,
        chain.references,
        smallest=NAMES,
    )


def _chain(rng: random.Random, value: str, letters: int) -> Draft:
    """A chain of variables, without the worked example."""
    drawn = distinct(lambda: "".join(rng.choices(string.ascii_uppercase, k=letters)))
    names = tuple(islice(drawn, NAMES))
    # All official lines but the first end in a blank.
    chain = [f"VAR {names[0]} = {value}", *(f"VAR {b} = VAR {a} " for a, b in pairwise(names))]
    places = rng.getrandbits(64)

    def context(size: int) -> str:
        laid = [NOISE] * size
        indices = sorted(random.Random(places).sample(range(size), NAMES))
        for earlier, (index, line) in enumerate(zip(indices, chain, strict=True)):
            laid.insert(index + earlier, line)
        return "\n".join(laid)

    return Draft(
        _INSTRUCTION,
        context,
        _QUESTION.format(value=value),
        _ANSWER_PREFIX.format(value=value),
        names,
        smallest=NAMES,
    )


def _solved(chain: Draft, setting: Setting) -> str:
    """The worked example, without its instruction.

    It has at most 500 tokens as in the official code, whatever the length. In texts of less than
    1,024 tokens, which RULER does not have, it has at most an eighth of them. It has at least the
    smallest size.
    """
    budget = EXAMPLE_TOKENS if setting.length >= SHORTEST else setting.length // 8
    size = chain.smallest
    while chain.tokens(size + 1, setting.count) <= budget:
        size += 1
    answer = " ".join(chain.references)
    return f"{chain.context(size)}{chain.question}{chain.answer_prefix} {answer}"
