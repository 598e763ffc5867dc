"""The demo's pages and questions: sizes, and answers that stand in pages and not in questions."""

from collections import Counter

from demo.questions import read_demo_questions
from demo.scenario import QUESTIONS as FILE
from demo.scenario import documents, draw

PAGES = {page.doc_id: page for page in documents()}
QUESTIONS = read_demo_questions(FILE)


def test_five_pages_make_a_prompt_of_two_thousand_tokens() -> None:
    assert len(PAGES) >= 60
    for page in PAGES.values():  # a token of English text has four characters, of a table three
        assert 1000 <= len(page.text) <= 1900, page.doc_id


def test_every_answer_stands_in_a_page_that_is_named() -> None:
    assert len({question.question for question in QUESTIONS}) == len(QUESTIONS) >= 60
    for question in QUESTIONS:
        texts = [f"{PAGES[page].title}\n{PAGES[page].text}" for page in question.documents]
        assert any(a in text for a in question.answers for text in texts), question.question


def test_a_question_does_not_give_its_answer_away() -> None:
    for question in QUESTIONS:
        assert question.kind == "comparison" or not question.is_right(question.question)
        assert (question.kind == "comparison") == bool(question.wrong), question.question


def test_the_same_answerable_questions_are_drawn_every_time() -> None:
    drawn = draw(10)
    assert drawn == draw(10)
    chosen = [drawn.warm_up, drawn.race, *drawn.asked]
    assert len({question.question for question in chosen}) == 12
    assert all(question.answerable for question in chosen)
    assert draw(None).asked == QUESTIONS


def test_questions_are_of_three_kinds() -> None:
    kinds = Counter(question.kind for question in QUESTIONS)
    assert set(kinds) == {"single", "reworded", "comparison"} and min(kinds.values()) >= 8
