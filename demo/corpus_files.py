"""Reads the committed corpus of the small demo model, and its questions, from their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
QUESTIONS = HERE / "questions.jsonl"


@dataclass(frozen=True)
class CorpusDocument:
    """One Markdown file: the title without its '#', and the body."""

    doc_id: str
    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """A question, its exact answer, and the one document that holds it."""

    question: str
    answer: str
    doc_id: str


def read_documents(folder: Path = CORPUS) -> list[CorpusDocument]:
    documents = []
    for path in sorted(folder.glob("*.md")):
        title, _, text = path.read_text().partition("\n")
        documents.append(CorpusDocument(path.stem, title.removeprefix("# "), text.strip()))
    return documents


def read_questions(path: Path = QUESTIONS) -> list[Question]:
    return [Question(**json.loads(line)) for line in path.read_text().splitlines()]
