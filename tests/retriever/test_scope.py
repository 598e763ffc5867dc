"""Tenants and collections may have equal names and texts, and never see one another's."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from kvstitch.retriever import DocFilter, Document, Scope, parse_filter
from kvstitch.retriever.errors import InvalidQuery
from tests.retriever.conftest import OpenRetriever

SCOPES = [Scope(tenant, name) for tenant, name in product(("", "acme", "bolt"), ("default", "x"))]


def document(scope: Scope) -> Document:
    return Document("same", f"the fox of {scope}", metadata={"lang": "en"})


def test_scopes_share_nothing(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    for scope in SCOPES:
        [result] = retriever.ingest([document(scope)], scope=scope)
        assert result.status == "created"
    english = DocFilter(where=parse_filter({"lang": "en"}))
    for scope in SCOPES:
        for doc_filter in (None, DocFilter(("same",)), english):
            [hit] = retriever.search("the fox", 99, doc_filter, scope=scope)
            assert hit.chunk.text == document(scope).text
        stored = retriever.catalog.get("same", scope=scope)
        assert stored is not None and stored.text == document(scope).text
        [info] = retriever.catalog.page(scope=scope).documents
        assert info == replace(stored, text=None, marks=None)
        [chunk] = retriever.catalog.chunks_of("same", scope=scope)
        assert chunk.text == document(scope).text
        counts = retriever.catalog.counts(scope=scope)
        assert (counts.documents, counts.chunks, counts.tokens) == (1, 1, chunk.tokens)
    assert retriever.catalog.counts().documents == len(SCOPES)
    assert [(n.collection, n.documents) for n in retriever.catalog.collections("acme")] == [
        ("default", 1),
        ("x", 1),
    ]


def test_changes_stay_in_their_scope(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    ours, theirs = Scope("acme"), Scope("bolt")
    for scope in (ours, theirs):
        retriever.ingest([document(scope)], scope=scope)
    retriever.ingest([Document("same", "another text")], scope=ours)
    assert retriever.catalog.set_pinned(["same", "unknown"], True, scope=ours) == ["same"]
    assert retriever.search("fox", 9, scope=theirs)[0].chunk.text == document(theirs).text
    assert [info.pinned for info in retriever.catalog.page(scope=theirs).documents] == [False]
    assert len(retriever.delete(["same"], scope=ours)) == 1
    assert retriever.search("fox", 9, scope=ours) == []
    assert retriever.delete(["same"], scope=ours) == []
    assert len(retriever.search("fox", 9, scope=theirs)) == 1
    assert retriever.catalog.collections("acme") == []


def test_pin_stays_over_revisions_and_restarts(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest([Document("a", "one"), Document("b", "two")])
    retriever.catalog.set_pinned(["a"], True)
    retriever.save()
    retriever.ingest([Document("a", "another one")])
    retriever.close()
    retriever = open_retriever()

    def pinned() -> list[str]:
        return [info.doc_id for info in retriever.catalog.page().documents if info.pinned]

    assert pinned() == ["a"]
    retriever.catalog.set_pinned(["a", "b"], False)
    assert pinned() == []


def test_restart_keeps_scopes_apart(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    for scope in SCOPES:
        retriever.ingest([document(scope)], scope=scope)
    for save in (True, False):  # the saved index, then one rebuilt from the catalog
        if save:
            retriever.save()
        else:
            retriever.ingest([Document("more", "one more")])
        retriever.close()
        retriever = open_retriever()
        for scope in SCOPES[1:]:
            [hit] = retriever.search("the fox", 99, scope=scope)
            assert hit.chunk.text == document(scope).text


def test_an_unknown_scope_is_empty(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest([Document("a", "text")])
    nowhere = Scope("nobody", "nothing")
    assert retriever.search("text", 5, scope=nowhere) == []
    assert retriever.catalog.get("a", scope=nowhere) is None
    assert retriever.catalog.page(scope=nowhere).documents == []
    assert retriever.catalog.chunks_of("a", scope=nowhere) == []
    assert retriever.delete(["a"], scope=nowhere) == []
    assert retriever.catalog.set_pinned(["a"], True, scope=nowhere) == []
    assert retriever.catalog.collections("nobody") == []
    assert retriever.catalog.counts(scope=nowhere).documents == 0


@pytest.mark.parametrize(
    ("tenant", "collection"), [("", ""), ("", " "), ("x" * 129, "a"), ("a", "\ud800"), ("a", 3)]
)
def test_names_that_cannot_be_stored_are_refused(tenant: str, collection: str) -> None:
    with pytest.raises(InvalidQuery):
        Scope(tenant, collection)
