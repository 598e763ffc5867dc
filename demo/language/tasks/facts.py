"""Tasks in which one sentence holds the answer; what is difficult is whom it is about."""

from __future__ import annotations

import random

from demo.language.grammar import Document, Entity, Fact, ask, make_document, make_entity
from demo.language.kinds import KINDS
from demo.language.tasks.story import Asked, Story, draw_names, join, sentence_case
from demo.language.wording import ASIDES, PRONOUNS


def single(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Two to `entities` documents as in the demo corpus, mostly of one kind."""
    count = rng.randint(min(2, entities), entities)
    kind = rng.choice(list(KINDS))
    documents = []
    for name in draw_names(rng, held_out, count):
        own = kind if rng.random() < 0.85 else rng.choice(list(KINDS))
        documents.append(make_document(rng, make_entity(rng, own, name), rng.randint(5, 6)))
    return _story(rng, documents)


def pronoun(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Each document names its entity in title and first sentence only; the rest is "it".

    All entities are of one kind and one pronoun and draw from the same six attributes. Only
    facts behind a pronoun are scored.
    """
    kind = rng.choice(list(KINDS))
    pool = tuple(rng.sample(KINDS[kind], 6))
    drawn: list[Entity] = []
    for name in draw_names(rng, held_out, entities):
        entity = make_entity(rng, kind, name)
        while drawn and entity.pronoun != drawn[0].pronoun:
            entity = make_entity(rng, kind, name)
        drawn.append(entity)
    documents = []
    for entity in drawn:
        plain = make_document(rng, entity, rng.randint(5, 6), pool)
        rest = tuple(_by_pronoun(rng, fact) for fact in plain.facts[1:])
        documents.append(Document(entity, (plain.sentences[0], *rest), plain.facts))
    return _story(rng, documents, unscored=1)


def border(rng: random.Random, held_out: bool, entities: int) -> Story:
    """Long asides separate a name from its value, so that a chunk border can fall between them."""
    kind = rng.choice(list(KINDS))
    pool = tuple(rng.sample(KINDS[kind], 3))
    documents = []
    for name in draw_names(rng, held_out, entities):
        plain = make_document(rng, make_entity(rng, kind, name), 2, pool)
        sentences = tuple(_with_aside(rng, fact) for fact in plain.facts)
        documents.append(Document(plain.entity, sentences, plain.facts))
    return _story(rng, documents)


def _story(rng: random.Random, documents: list[Document], unscored: int = 0) -> Story:
    """Asks for every fact; the first `unscored` facts of a document do not count."""
    asked = [
        Asked(ask(rng, fact), fact.value, scored=index >= unscored)
        for document in documents
        for index, fact in enumerate(document.facts)
    ]
    return Story(join(documents), tuple(asked))


def _by_pronoun(rng: random.Random, fact: Fact) -> str:
    template = rng.choice(fact.relation.sentences)
    subject = fact.entity.pronoun
    if not template.startswith("{n}"):
        subject = PRONOUNS[subject]
    return sentence_case(template.format(n=subject, v=fact.value))


def _with_aside(rng: random.Random, fact: Fact) -> str:
    template = rng.choice(fact.relation.sentences)
    asides = " and ".join(rng.sample(ASIDES, rng.randint(1, 2)))
    text = template.format(n=f"{fact.entity.name}, {asides},", v=fact.value)
    return sentence_case(text)
