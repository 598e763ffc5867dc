"""Conversations over Natural Questions in which the retriever finds other passages at every turn.

Turn 1 asks a question whose passage stands among its nearest ones. Every further turn asks the next
question of the same neighbourhood: its passage and the nearest to it take the places of some of the
passages before, and all are shuffled. Every second one also asks for what was said before, so that
an answer cannot do without the history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.quality.tasks.natural_questions import Asked
from benchmarks.quality.tasks.retrieved import Embed, Passage, nearest

ASKED = "{question}? Explain it in two or three sentences."
ASKED_AGAIN = (
    "{question}? Answer in one sentence. "
    "Then repeat in a sentence each what you have told me before."
)


@dataclass(frozen=True)
class DrawnTurn:
    """One question of a conversation and the passages in the order of its prompt."""

    question: str
    passages: tuple[Passage, ...]


def draw(
    asked: Sequence[Asked],
    embed: Embed,
    *,
    conversations: int,
    turns: int = 6,
    passages: int = 8,
    new: int = 3,
    seed: int = 1,
) -> Iterator[tuple[DrawnTurn, ...]]:
    """Yield conversations; more of them keep the first ones.

    Args:
        passages: of every prompt.
        new: how many of them were not there at the turn before.
    """
    pool = list(dict.fromkeys(each.passage for each in asked))
    of_passage = {each.passage: each for each in reversed(asked)}
    firsts = random.Random(seed).sample(list(of_passage.values()), conversations)
    around = nearest([each.question for each in firsts], pool, embed)
    topics = [
        [first, *(of_passage[p] for p in near if p != first.passage)][:turns]
        for first, near in zip(firsts, around, strict=True)
    ]
    ranked = iter(nearest([each.question for row in topics for each in row], pool, embed))
    for number, row in enumerate(topics):
        rng = random.Random(f"{seed} {number}")
        shown: list[Passage] = []
        used: set[Passage] = set()
        out: list[DrawnTurn] = []
        for turn, topic in enumerate(row):
            count = new if turn else passages
            near = dict.fromkeys((topic.passage, *next(ranked)))
            fresh = [p for p in near if p not in used][:count]
            stay = rng.sample([p for p in shown if p != topic.passage], passages - len(fresh))
            shown = [*fresh, *stay]
            rng.shuffle(shown)
            used.update(shown)
            text = ASKED_AGAIN if turn and turn % 2 == 0 else ASKED
            out.append(DrawnTurn(text.format(question=topic.question), tuple(shown)))
        yield tuple(out)
