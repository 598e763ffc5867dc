"""Tasks in which the order of statements decides the answer."""

from __future__ import annotations

import random

from demo.language.grammar import Fact, ask, make_document, make_entity, state
from demo.language.kinds import KINDS
from demo.language.tasks.story import Asked, Hint, Story, draw_names, merged, records, sentence_case
from demo.language.wording import EVENTS

EVENTS_EACH = 3
OTHER_FACTS = 2


def update(rng: random.Random, held_out: bool, entities: int) -> Story:
    """The same sentence is repeated with other values, and the last one is true.

    There are two attributes, each worded the same way for all entities. Every fact is stated two or
    three times, and only the order tells which statement is the last.
    """
    kind = rng.choice(list(KINDS))
    relations = rng.sample(KINDS[kind], 2)
    templates = {r.key: rng.choice(r.sentences) for r in relations}
    sequences, asked = [], []
    for name in draw_names(rng, held_out, entities):
        entity = make_entity(rng, kind, name)
        for relation in relations:
            values = rng.sample(relation.values, rng.randint(2, 3))
            template = templates[relation.key]
            sequences.append([sentence_case(template.format(n=entity.name, v=v)) for v in values])
            asked.append(Asked(ask(rng, Fact(entity, relation, values[-1])), values[-1]))
    return Story(records(rng, merged(rng, sequences), 4), tuple(asked))


def listed(rng: random.Random, held_out: bool, entities: int) -> Story:
    """What happened to an entity, in order, across documents, among other facts about it."""
    event = rng.choice(EVENTS)
    sequences, asked, hints = [], [], []
    for name in draw_names(rng, held_out, entities):
        entity = make_entity(rng, event.kind, name)
        values = rng.sample(event.values, EVENTS_EACH)
        sentences = [sentence_case(event.sentence.format(n=entity.name, v=v)) for v in values]
        stated = tuple(sentence.removesuffix(".") for sentence in sentences)
        for index in range(1, EVENTS_EACH):
            hints.append(Hint(stated[index], stated[index - 1], values[index - 1]))
        others = make_document(rng, entity, OTHER_FACTS)
        for fact in others.facts:
            sentences.insert(rng.randint(0, len(sentences)), state(rng, fact, first=True))
            asked.append(Asked(ask(rng, fact), fact.value, scored=False))
        sequences.append(sentences)
        question = event.question.format(n=entity.name)
        asked.append(Asked(question, ", ".join(values), where=stated))
    return Story(records(rng, merged(rng, sequences), 4), tuple(asked), tuple(hints))
