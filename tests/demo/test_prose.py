"""The corpus of prose and its questions: size, variety, and answers that stand in the documents."""

import re
from collections import Counter
from pathlib import Path

from demo.corpus_files import read_documents
from demo.questions import KINDS, SPLITS, DemoQuestion, read_demo_questions
from demo.scenario import PROSE, prose
from demo.scenario import QUESTIONS as QUESTIONS_FILE

DOCUMENTS = {d.doc_id: d for d in read_documents(PROSE / "documents")}
QUESTIONS = read_demo_questions(QUESTIONS_FILE)


def test_there_are_enough_documents_of_the_promised_length() -> None:
    assert len(DOCUMENTS) >= 60
    for document in DOCUMENTS.values():
        assert 150 <= len(f"{document.title} {document.text}".split()) <= 600, document.doc_id


def test_no_sentence_stands_twice() -> None:
    sentences = Counter(
        sentence
        for document in DOCUMENTS.values()
        for sentence in re.split(r"(?<=[.!?])\s+", document.text)
        if len(sentence.split()) > 3
    )
    assert [sentence for sentence, count in sentences.items() if count > 1] == []


def test_every_kind_is_asked_in_both_splits() -> None:
    assert len(QUESTIONS) >= 150
    assert len({q.question for q in QUESTIONS}) == len(QUESTIONS)
    for kind in KINDS:
        counts = Counter(q.split for q in QUESTIONS if q.kind == kind)
        assert min(counts.values()) >= 9, kind


def test_what_no_document_answers_is_not_answerable() -> None:
    for question in QUESTIONS:
        assert not (question.answerable and question.kind == "absent"), question.question


def test_a_number_of_questions_is_drawn_among_the_answerable(tmp_path: Path) -> None:
    for split in SPLITS:
        scenario = prose(tmp_path, split)
        warm_up, drawn = scenario.draw(20)
        assert len(drawn) == 20 and warm_up not in drawn
        assert all(q.answerable and q.split == split for q in (warm_up, *drawn))
        assert {q.kind for q in drawn} == set(scenario.shares)
        _, everything = scenario.draw(None)
        assert {q.answerable for q in everything} == {True, False}


def test_questions_name_documents_that_are_there() -> None:
    for question in QUESTIONS:
        assert set(question.documents) <= set(DOCUMENTS), question.question
        assert bool(question.documents) == (question.kind != "absent")
        assert bool(question.answers) == (question.kind != "absent")


def test_every_answer_stands_in_a_document_that_is_named() -> None:
    for question in QUESTIONS:
        texts = [f"{DOCUMENTS[i].title}\n{DOCUMENTS[i].text}" for i in question.documents]
        bare = DemoQuestion(question.question, question.answers, question.documents)
        assert not texts or any(bare.is_right(text) for text in texts), question.question


def test_a_question_does_not_give_its_answer_away() -> None:
    for question in QUESTIONS:
        if question.kind in ("single", "reworded", "two"):
            assert not question.is_right(question.question), question.question
