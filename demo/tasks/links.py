"""Tasks in which one statement refers to another."""

from __future__ import annotations

import random

from demo import words
from demo.grammar import Document, ask, make_document, make_entity
from demo.kinds import KINDS
from demo.tasks.story import Asked, Hint, Story, draw_names, join, merged, records, sentence_case
from demo.wording import ASSIGN, COPY, LINKS, NOISE, VARIABLE_QUESTION

CHAIN_LENGTH = 3
OWN_FACTS = 1
LINKED_FACTS = 3


def hop(rng: random.Random, held_out: bool, entities: int) -> Story:
    """What is true of the owner of a ship, or of somebody's home; the question names neither.

    The pointing documents come first. Every entity pointed to has the same three attributes.
    The shipped model has not learnt this task.
    """
    link = rng.choice(LINKS)
    names = draw_names(rng, held_out, 2 * entities)
    plain_relations = [r for r in KINDS[link.to_kind] if not r.pair_share]
    pool = tuple(rng.sample(plain_relations, LINKED_FACTS))
    sources, targets, asked, hints = [], [], [], []
    for name, other in zip(names[:entities], names[entities:], strict=True):
        source, target = make_entity(rng, link.kind, name), make_entity(rng, link.to_kind, other)
        plain = make_document(rng, source, OWN_FACTS)
        pointing = sentence_case(link.sentence.format(a=source.name, b=target.name))
        sources.append(Document(source, (*plain.sentences, pointing), plain.facts))
        targets.append(make_document(rng, target, LINKED_FACTS, pool))
        asked.append(Asked(link.question.format(a=source.name), target.name, scored=False))
        role = link.role.format(a=source.name)
        for fact, sentence in zip(targets[-1].facts, targets[-1].sentences, strict=True):
            at = sentence[: sentence.rindex(fact.value)] + fact.value
            hints.append(Hint(at, pointing.removesuffix("."), name))
            question = rng.choice(fact.relation.questions).format(n=role)
            asked.append(Asked(question, fact.value, where=(at,)))
        asked.append(Asked(ask(rng, targets[-1].facts[0]), targets[-1].facts[0].value, False))
    rng.shuffle(targets)
    return Story(join(sources + targets), tuple(asked), tuple(hints))


def chain(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Variables set from one another in several interleaved chains, among noise.

    Only variables set from another variable are scored.
    """
    names = iter(draw_names(rng, held_out, entities * CHAIN_LENGTH))
    sequences, asked, hints = [], [], []
    for value in rng.sample(words.YEARS, entities):
        source = next(names)
        statements = [ASSIGN.format(n=source, v=value)]
        asked.append(Asked(VARIABLE_QUESTION.format(n=source), value, scored=False))
        for depth in range(CHAIN_LENGTH - 1):
            name = next(names)
            statements.append(COPY.format(n=name, v=source))
            before, at = (statement.removesuffix(".") for statement in statements[-2:])
            hints.append(Hint(at, before, value, depth))
            asked.append(Asked(VARIABLE_QUESTION.format(n=name), value, where=(at,)))
            source = name
        sequences.append(statements)
    lines = merged(rng, sequences)
    for _ in range(3):
        lines.insert(rng.randint(0, len(lines)), NOISE)
    return Story(records(rng, lines, 3), tuple(asked), tuple(hints))
