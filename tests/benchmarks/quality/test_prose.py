"""The corpus of prose and its questions: size, variety, and answers that stand in the documents."""

import re
from collections import Counter

from benchmarks.quality.tasks.demo_prose import FOLDER
from demo.corpus_files import read_documents
from demo.questions import KINDS, read_demo_questions

DOCUMENTS = {d.doc_id: d for d in read_documents(FOLDER / "documents")}
QUESTIONS = read_demo_questions(FOLDER / "questions.jsonl")


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


def test_questions_name_documents_that_are_there() -> None:
    for question in QUESTIONS:
        assert set(question.documents) <= set(DOCUMENTS), question.question
        assert bool(question.documents) == (question.kind != "absent")
        assert bool(question.answers) == (question.kind != "absent")


def test_every_answer_stands_in_a_document_that_is_named() -> None:
    for question in QUESTIONS:
        texts = [f"{DOCUMENTS[i].title}\n{DOCUMENTS[i].text}" for i in question.documents]
        stands = any(a.casefold() in text.casefold() for a in question.answers for text in texts)
        assert stands or not texts, question.question


def test_a_question_does_not_give_its_answer_away() -> None:
    for question in QUESTIONS:
        if question.kind in ("single", "reworded", "two"):
            assert not question.is_right(question.question), question.question
