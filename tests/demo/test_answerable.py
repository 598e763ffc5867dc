"""Which questions the demo's model can answer from their own documents, and how that is kept."""

import json
from pathlib import Path
from typing import Any

from demo.answerable import is_answerable, mark
from demo.client import Answer, Client
from demo.questions import DemoQuestion, read_demo_questions
from demo.scenario import small

FACT = DemoQuestion("Who?", ("Osei",), ("bakery",))
TWO = DemoQuestion("Larger?", ("Haverling",), ("a", "b"), "comparison", ("Kettlemoor",))
ABSENT = DemoQuestion("Why?", (), (), "absent")


class Canned(Client):
    """A service that always gives the same answer, and keeps what it was asked."""

    def __init__(self, text: str) -> None:
        self.asked: list[dict[str, Any]] = []
        self._text = text

    def ask(
        self, question: str, method: str, ratio: float | None = None, top_k: int = 3, **more: Any
    ) -> Answer:
        self.asked.append({"method": method, "top_k": top_k, **more})
        return Answer(self._text, 0.1, (), {})


def test_a_question_is_asked_over_its_own_documents_by_full_prefill() -> None:
    client = Canned("It is Osei, and Haverling.")
    assert is_answerable(client, small(), FACT) and is_answerable(client, small(), TWO)
    assert not is_answerable(Canned("Nobody."), small(), FACT)
    assert [(a["method"], a["top_k"], a["documents"]) for a in client.asked] == [
        ("vanilla", 1, ["bakery"]),
        ("vanilla", 2, ["a", "b"]),
    ]


def test_what_no_document_answers_is_not_asked() -> None:
    client = Canned("The documents do not say.")
    assert not is_answerable(client, small(), ABSENT) and not client.asked


def test_marks_are_written_beside_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [
        {"split": "test", "kind": "single", "question": f"{letter}?", "answers": ["Kovač"],
         "wrong": [], "documents": ["x"]}
        for letter in "ab"
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    before = read_demo_questions(path)
    mark(path, {"a?": True, "b?": False})
    assert [q.answerable for q in read_demo_questions(path)] == [True, False]
    for old, new in zip(before, read_demo_questions(path), strict=True):
        assert (old.question, old.answers, old.split) == (new.question, new.answers, new.split)
    assert "Kovač" in path.read_text()
