"""What a chunk of a section is about, although its own text does not say it, is searched."""

from __future__ import annotations

from collections.abc import Sequence

from retriever import Document, Mark
from retriever.chunking import ChunkSpan
from retriever.embedders.base import Vectors
from retriever.heading_paths import MAX_PATH_CHARS, heading_paths
from tests.fakes.models import HashingEmbedder
from tests.retriever.conftest import OpenRetriever

TEXT = "# Kettle\n\nIntro.\n\n## Parts\n\nMany.\n\n### Screws\n\nSmall.\n\n## Care\n\nDry it."


def document(text: str, title: str = "") -> Document:
    starts = [0, *(n + 1 for n, char in enumerate(text) if char == "\n")]
    lines = [(start, text[start:].partition("\n")[0]) for start in starts]
    marks = tuple(Mark(n, "heading", one.strip("# =")) for n, one in lines if one[:1] in ("#", "="))
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


class Noting(HashingEmbedder):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
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
