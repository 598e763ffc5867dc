"""Reads documents and questions from files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.errors import InvalidInput
from loadtest.traffic.routes import CorpusDocument


@dataclass(frozen=True)
class CorpusQuestion:
    """A question.

    Attributes:
        text: the question.
        doc_id: the document that answers it; empty: not known.
    """

    text: str
    doc_id: str = ""


def read_documents(path: Path) -> list[CorpusDocument]:
    """Read a folder of .md files with a title line, or a JSONL file with `doc_id`, `title`, `text`.

    Raises:
        InvalidInput: there are no documents, or a line cannot be read.
    """
    if path.is_dir():
        documents = [_markdown(file) for file in sorted(path.glob("*.md"))]
    else:
        documents = [
            CorpusDocument(
                str(row.get("doc_id") or f"document-{number}"), row.get("title", ""), text
            )
            for number, row in enumerate(read_lines(path), 1)
            if (text := str(row["text"]))
        ]
    if not documents:
        raise InvalidInput(f"{path}: no documents; it must hold .md files or be a JSONL file")
    return documents


def read_questions(path: Path) -> list[CorpusQuestion]:
    """Read a JSONL file with `question` and, where known, `doc_id`.

    Raises:
        InvalidInput: there are no questions, or a line cannot be read.
    """
    questions = [CorpusQuestion(str(r["question"]), r.get("doc_id", "")) for r in read_lines(path)]
    if not questions:
        raise InvalidInput(f"{path}: no questions; each line is an object with a `question`")
    return questions


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read the objects of a JSONL file.

    Raises:
        InvalidInput: a line is not a JSON object; the message names the line.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidInput(f"{path}, line {number}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InvalidInput(f"{path}, line {number}: an object is expected, not {line[:40]}")
        yield row


def _markdown(file: Path) -> CorpusDocument:
    title, _, text = file.read_text(encoding="utf-8").partition("\n")
    return CorpusDocument(file.stem, title.removeprefix("# ").strip(), text.strip())
