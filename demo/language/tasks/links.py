"""Tasks in which one statement refers to another."""

from __future__ import annotations

import random
from dataclasses import replace

from demo.language import words
from demo.language.grammar import Document, ask, make_document, make_entity
from demo.language.kinds import KINDS
from demo.language.tasks.story import (
    SUBJECT,
    Asked,
    Hint,
    Story,
    draw_names,
    join,
    merged,
    records,
    sentence_case,
)
from demo.language.wording import ASSIGN, COPY, LINKS, NOISE, SAME_VALUE_QUESTION, VARIABLE_QUESTION

CHAIN_LENGTH = 3
OWN_FACTS = 1
LINKED_FACTS = 3


def hop(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Facts about the owner of a ship, or about somebody's home; the question does not name them.

    The documents about ships and people come first. All owners, or homes, have the same three
    attributes.
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
        title = "\n" + target.name[: target.name.index(other)] + other
        pointer = pointing[: pointing.index(other)] + other
        hints.append(Hint(pointer, sentence_case(source.name), name, SUBJECT))
        hints.append(Hint(title, pointer, name))
        for fact, sentence in zip(targets[-1].facts, targets[-1].sentences, strict=True):
            at = sentence[: sentence.rindex(fact.value)] + fact.value
            hints.append(Hint(at, title, name, depth=1))
            question = rng.choice(fact.relation.questions).format(n=role)
            asked.append(Asked(question, fact.value, where=(at,)))
        asked.append(Asked(ask(rng, targets[-1].facts[0]), targets[-1].facts[0].value, False))
    rng.shuffle(targets)
    context = join(sources + targets)
    # Two sentences that begin with "It" can be the same; the guide leaves both out then.
    clear = [h for h in hints if context.count(h.at) == 1 or h.at.startswith("\n")]
    asked = [
        a if all(context.count(w) == 1 for w in a.where) else replace(a, where=()) for a in asked
    ]
    return Story(context, tuple(asked), tuple(clear))


def chain(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Variables set from one another in several interleaved chains, among noise.

    Only variables set from another variable are scored.
    """
    context, chains, hints = _chains(rng, held_out, entities)
    asked = [
        Asked(VARIABLE_QUESTION.format(n=name), value, scored=index > 0, where=(at,) * (index > 0))
        for value, variables in chains
        for index, (name, at) in enumerate(variables)
    ]
    return Story(context, tuple(asked), hints)


def vt(rng: random.Random, held_out: bool, entities: int) -> Story:
    """RULER's variable tracking: all variables that have a given value, in order."""
    context, chains, hints = _chains(rng, held_out, max(3, entities - 1))
    asked = []
    for value, variables in chains:
        answer = ", ".join(name for name, _ in variables)
        where = tuple(at for _, at in variables)
        asked.append(Asked(SAME_VALUE_QUESTION.format(v=value), answer, where=where))
        for name, at in variables[1:]:
            question = VARIABLE_QUESTION.format(n=name)
            asked.append(Asked(question, value, scored=False, where=(at,)))
    return Story(context, tuple(asked), hints)


def _chains(
    rng: random.Random, held_out: bool, count: int
) -> tuple[str, list[tuple[str, list[tuple[str, str]]]], tuple[Hint, ...]]:
    """Writes several chains of variables into one context.

    Returns:
        The context; for every chain its value and its variables with their statements; the hints.
    """
    names = iter(draw_names(rng, held_out, count * CHAIN_LENGTH))
    sequences, chains, hints = [], [], []
    for value in rng.sample(words.YEARS, count):
        source = next(names)
        statements = [ASSIGN.format(n=source, v=value)]
        variables = [(source, statements[0].removesuffix("."))]
        hints.append(Hint(variables[0][1], f"VAR {source}", source, SUBJECT))
        for depth in range(CHAIN_LENGTH - 1):
            name = next(names)
            statements.append(COPY.format(n=name, v=source))
            at = statements[-1].removesuffix(".")
            hints.append(Hint(at, variables[-1][1], value, depth))
            hints.append(Hint(at, f"VAR {name}", name, SUBJECT))
            variables.append((name, at))
            source = name
        sequences.append(statements)
        chains.append((value, variables))
    lines = merged(rng, sequences)
    for _ in range(3):
        lines.insert(rng.randint(0, len(lines)), NOISE)
    return records(rng, lines, 3), chains, tuple(hints)
