"""The demo language as a benchmark: named tasks, from which one question at a time is drawn.

    sample = sample("pronoun", random.Random(7))
    ids = [BOS, *encode(SYSTEM)], then chunks(tokenizer, sample.context, 48), then
          encode(QUESTION.format(question=sample.question))

An answer is right if the generated text, stripped, is one of `answers`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tokenizers import Tokenizer

from demo.language.tasks.counts import cwe, fwe
from demo.language.tasks.facts import border, pronoun, single
from demo.language.tasks.links import chain, hop, vt
from demo.language.tasks.needle import niah, niah_multiquery, niah_multivalue, niah_prose
from demo.language.tasks.order import listed, update
from demo.language.tasks.story import Asked, Story, Task

__all__ = ["LEARNT", "TASKS", "Asked", "Story", "Task", "TaskSample", "chunks", "sample"]

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("single", "one fact among documents about rivals", single),
        Task("border", "long asides between a name and its value", border),
        Task("pronoun", "facts behind a pronoun, named documents apart", pronoun),
        Task("update", "the last of identical statements holds", update),
        Task("list", "three values of one entity, in order, across documents", listed),
        Task("hop", "a fact about the owner or the home of the one named", hop),
        Task("chain", "variables copied from variables, five chains", chain),
        Task("niah", "RULER's needles, seven keys, in its noise", niah),
        Task("niah_multivalue", "all three numbers of one key, of three keys", niah_multivalue),
        Task("niah_multiquery", "the numbers of two or three keys, of six", niah_multiquery),
        Task("niah_prose", "needles of four keys between sentences of documents", niah_prose),
        Task("vt", "RULER's variable tracking: all variables of one value, four chains", vt),
        Task("cwe", "RULER's most common words of a numbered list", cwe),
        Task("fwe", "RULER's most frequent coded words", fwe),
    )
}

LEARNT = (
    "single",
    "border",
    "pronoun",
    "update",
    "list",
    "hop",
    "chain",
    "niah",
    "niah_multiquery",
    "niah_prose",
)
"""Tasks the shipped model answers at 80 % or more with full prefill; see
service/demo_model/README.md."""


@dataclass(frozen=True)
class TaskSample:
    """One question, the context that answers it, and the texts that count as right."""

    task: str
    context: str
    question: str
    answers: tuple[str, ...]


def sample(task: str, rng: random.Random, *, held_out: bool = True) -> TaskSample:
    """Draws a new story and a scored question of it; by default names are unseen in training."""
    chosen = TASKS[task]
    story = chosen.write(rng, held_out, chosen.entities)
    asked = rng.choice([a for a in story.asked if a.scored])
    return TaskSample(task, story.context, asked.question, (asked.answer,))


def chunks(tokenizer: Tokenizer, context: str, tokens_per_chunk: int) -> list[list[int]]:
    """Encodes a context, and cuts it every `tokens_per_chunk` ids; the last may be shorter."""
    ids: list[int] = tokenizer.encode(context, add_special_tokens=False).ids
    return [ids[i : i + tokens_per_chunk] for i in range(0, len(ids), tokens_per_chunk)]
