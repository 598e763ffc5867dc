"""The generator: deterministic, held-out names held out, one token per closed word."""

import random

from demo.language import words
from demo.language.grammar import ask, make_document, make_entity, open_names
from demo.language.kinds import KINDS
from demo.language.vocabulary import build_tokenizer
from demo.make_corpus import build


def _text(seed: int) -> list[str]:
    rng = random.Random(seed)
    lines = []
    for kind in KINDS:
        document = make_document(rng, make_entity(rng, kind, "Velen"), 6)
        lines += [document.title, document.text, ask(rng, document.facts[0])]
    return lines


def test_same_seed_same_text() -> None:
    assert _text(3) == _text(3)
    assert _text(3) != _text(4)


def test_held_out_names_share_syllables_but_no_name() -> None:
    seen, held_out = open_names(False), open_names(True)
    assert not set(seen) & set(held_out)
    assert len(held_out) > 100
    for first in words.SYLLABLES_FIRST:
        assert any(name.startswith(first) for name in seen)


def test_every_template_names_its_entity_before_the_value() -> None:
    for relations in KINDS.values():
        for relation in relations:
            for sentence in relation.sentences:
                assert 0 <= sentence.index("{n}") < sentence.index("{v}"), sentence
            for question in relation.questions:
                assert "{n}" in question


def test_closed_words_are_single_tokens_and_names_are_short() -> None:
    tokenizer = build_tokenizer()
    assert all(len(tokenizer.encode(" " + word).ids) == 1 for word in words.CLOSED)
    assert max(len(tokenizer.encode(" " + name).ids) for name in open_names(True)) <= 3
    text = "Zoë's ledger: 17 % off, naïvely — “odd” bytes.\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_corpus_entities_are_told_apart() -> None:
    documents, questions = build()
    assert len(documents) >= 64
    assert len(questions) >= 120
    assert len({d.entity.short for d in documents.values()}) == len(documents)
    held_out = set(open_names(True))
    for document in documents.values():
        assert held_out & set(document.title.split())
    for question in questions:
        assert documents[question.doc_id].entity.name in question.question
        assert question.answer in documents[question.doc_id].text
