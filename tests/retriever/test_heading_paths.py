"""What a chunk of a section is about, although its own text does not say it, is searched."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvstitch.records.documents import DocumentMark
from kvstitch.retriever import Document
from kvstitch.retriever.chunking import ChunkSpan
from kvstitch.retriever.embedders import CountedVectors, Prompts
from kvstitch.retriever.ingest import MAX_PATH_CHARS, heading_paths
from tests.fakes.models import HashingEmbedder
from tests.retriever.conftest import OpenRetriever

TEXT = "# Kettle\n\nIntro.\n\n## Parts\n\nMany.\n\n### Screws\n\nSmall.\n\n## Care\n\nDry it."


def heading(at: int, label: str) -> DocumentMark:
    return DocumentMark(start=at, kind="heading", label=label)


def document(text: str, title: str = "") -> Document:
    starts = [0, *(n + 1 for n, char in enumerate(text) if char == "\n")]
    lines = [(start, text[start:].partition("\n")[0]) for start in starts]
    marks = tuple(heading(n, one.strip("# =")) for n, one in lines if one[:1] in ("#", "="))
    return Document("a", text, title, {}, marks)


def cut(text: str, *pieces: str) -> list[ChunkSpan]:
    starts = [text.index(piece) for piece in pieces]
    return [ChunkSpan(start, start + 1, 1) for start in starts]


def test_headings_above_a_chunk() -> None:
    spans = cut(TEXT, "# Kettle", "Intro", "## Parts", "### Screws", "Small", "## Care", "Dry")
    paths = ["", "Kettle", "Kettle", "Kettle > Parts", "Kettle > Parts > Screws", "Kettle"]
    assert heading_paths(document(TEXT), spans) == [*paths, "Kettle > Care"]
    assert heading_paths(document(TEXT, "Kettle"), spans)[3:] == [
        "Parts", "Parts > Screws", "", "Care",
    ]  # fmt: skip
    # As `embed_part` asks, from somewhere on.
    assert heading_paths(document(TEXT), spans[4:5]) == ["Kettle > Parts > Screws"]


def test_headings_without_levels_and_long_ones() -> None:
    flat = "= Parts\n\nMany.\n\n= Screws\n\nSmall."
    assert heading_paths(document(flat), cut(flat, "Many", "Small")) == ["Parts", "Screws"]
    long = f"# {'a' * 150}\n\n## {'b' * 150}\n\n### {'c' * 250}\n\nText.\n\n## d\n\nMore."
    found = heading_paths(document(long), cut(long, "Text", "More"))
    assert found == ["c" * MAX_PATH_CHARS, f"{'a' * 150} > d"]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("===\nLog\n===\n\nOld\n===\nx1\n\nA\n-\nx2\n\nNew\n===\nx3",
         ["Log > Old", "Log > Old > A", "Log > New"]),
        ("# Log\n\nOld\n---\nx1\n\n### A\nx2\n\nTop\n===\nx3",
         ["Log > Old", "Log > Old > A", "Top"]),
        ("= Log\n\n== Old\nx1\n\n=== A\nx2\n\n== New\nx3",
         ["Log > Old", "Log > Old > A", "Log > New"]),
    ],
    ids=["reStructuredText", "Markdown, underlined", "AsciiDoc"],
)  # fmt: skip
def test_levels_of_other_signs(text: str, paths: list[str]) -> None:
    labels = ["Log", "Old", "A", "Top" if "Top" in text else "New"]
    starts = [text.rindex(line) for label in labels for line in text.split("\n")
              if line.strip("#= ") == label]  # fmt: skip
    marks = tuple(map(heading, starts, labels))
    made = Document("a", text, "", {}, marks)
    assert heading_paths(made, cut(text, "x1", "x2", "x3")) == paths


class Noting(HashingEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        self.texts += texts
        return super().embed(texts)


def test_a_chunk_is_embedded_below_its_headings_and_prefilled_without(
    open_retriever: OpenRetriever,
) -> None:
    embedder = Noting()
    body = "The lid is made of glass, and it is dear. " * 3
    made = document(f"# Kettle\n\n## Parts\n\n{body}", "Kettle")
    result = open_retriever(embedder, max_tokens=16).ingest([made])[0]
    assert embedder.texts[0].startswith("Kettle\n# Kettle")
    assert len(embedder.texts) > 1
    for text, chunk in zip(embedder.texts[1:], result.chunks[1:], strict=True):
        assert text == f"Kettle\nParts\n{chunk.text}" and chunk.heading == "Parts"


def test_what_a_model_wants_before_questions_and_texts(open_retriever: OpenRetriever) -> None:
    embedder = Noting()
    embedder.prompts = Prompts("ask: ", "tell: ")
    retriever = open_retriever(embedder, max_tokens=16)
    result = retriever.ingest([document("The lid is made of glass. " * 9, "Kettle")])[0]
    assert embedder.texts == [f"tell: Kettle\n{chunk.text}" for chunk in result.chunks]
    assert len(result.chunks) > 1

    embedder.texts.clear()
    found = retriever.search("glass lid", 1)
    long = "Our kettle is old. " * 50 + "What is its lid made of?"
    retriever.search(long, 1)
    assert embedder.texts == ["ask: glass lid", f"ask: {long}", "ask: What is its lid made of?"]
    assert found[0].chunk.text in result.chunks[0].text, "what is stored and shown has none"
