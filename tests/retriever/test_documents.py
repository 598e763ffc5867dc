from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvstitch.retriever.documents import Document, document_revision, validate_document
from kvstitch.retriever.errors import InvalidDocument

DOCUMENT = Document("a", "text", "title", {"x": 1, "y": [None, "é"]})


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth - 1):
        inner = [inner]
    return inner


def test_revision_follows_all_but_the_id() -> None:
    changed = [
        replace(DOCUMENT, text="other"),
        replace(DOCUMENT, title="other"),
        replace(DOCUMENT, metadata={"x": 2}),
        replace(DOCUMENT, text="texttitle", title=""),
    ]
    revisions = {document_revision(document, "c") for document in [DOCUMENT, *changed]}
    assert len(revisions | {document_revision(DOCUMENT, "d")}) == 6
    assert document_revision(replace(DOCUMENT, doc_id="b"), "c") in revisions


def test_order_of_metadata_does_not_matter() -> None:
    turned = replace(DOCUMENT, metadata={"y": [None, "é"], "x": 1})
    assert document_revision(turned, "c") == document_revision(DOCUMENT, "c")


@pytest.mark.parametrize(
    "document",
    [
        Document("", "text"),
        Document("  ", "text"),
        Document("x" * 513, "text"),
        Document("a", "lone \ud83d surrogate"),
        Document("a", "text", "\udc00"),
        Document("a", 3),  # type: ignore[arg-type]
        Document("a", "text", metadata={"x": float("nan")}),
        Document("a", "text", metadata={"x": object()}),
        Document("a", "text", metadata={"x": "\ud83d"}),
        Document("a", "text", metadata={"x": ["\\\0"]}),
        Document("a", "text", metadata={"\0": 1}),
        Document("a", "text", metadata={"x": nested(32)}),
        Document("a", "text", metadata={"x": nested(100_000)}),
    ],
)
def test_what_cannot_be_stored_as_it_is_is_refused(document: Document) -> None:
    with pytest.raises(InvalidDocument):
        validate_document(document)


def test_metadata_that_only_looks_odd_is_fine() -> None:
    validate_document(
        Document("a", "text", metadata={"x": "\\u0000", "y": nested(31), "é\x01": "\n"})
    )
