"""What a view shows: in every read of the catalog, and as long as the catalog stays as it is."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from kvstitch.retriever import Document, Scope
from kvstitch.retriever.catalog.reading_groups import Remembered
from kvstitch.retriever.documents import CatalogState
from kvstitch.retriever.errors import DocumentHidden, InvalidDocument
from kvstitch.retriever.scope import EVERYTHING, View, joined_readers
from tests.postgresql_server import DATABASES
from tests.retriever.conftest import OpenRetriever

GROUPS = ("a", "b", "ü")


def test_readers_are_one_text_whatever_their_order() -> None:
    assert joined_readers(["b", "a", "b"]) == "a,b" and joined_readers([]) == ""
    with pytest.raises(InvalidDocument, match="2000 bytes"):
        joined_readers([f"group-{number}-{'x' * 50}" for number in range(40)])


@pytest.mark.parametrize("view", [EVERYTHING, View(frozenset()), View(frozenset(["b", "a"]))])
def test_views_have_names(view: View) -> None:
    assert View.named(view.name) == view


@pytest.mark.parametrize("open_database", DATABASES, indirect=True)
def test_every_read_of_the_catalog_shows_what_the_view_does(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    catalog = retriever.catalog
    rng = random.Random(1)
    subsets = [some for size in range(3) for some in combinations(GROUPS, size)]
    for turn in range(3):  # documents get other readers, and what was remembered is forgotten
        readers = {f"d{number}": rng.choice(subsets) for number in range(40)}
        retriever.ingest(
            [Document(name, f"fox {name}", metadata={"x": 1}, readers=joined_readers(groups))
             for name, groups in readers.items()]
        )  # fmt: skip
        for groups in subsets:
            scope = Scope(view=View(frozenset(groups)))
            shown = {n for n, own in readers.items() if not own or set(own) & set(groups)}
            assert {d.doc_id for d in catalog.page(100, scope=scope).documents} == shown
            assert catalog.counts(scope=scope).documents == len(shown)
            assert catalog.collections("", scope.view)[0].documents == len(shown)
            assert catalog.metadata_of(list(readers), scope=scope).keys() == shown
            for name in readers:
                there = name in shown
                assert (catalog.get(name, scope=scope) is not None) == there
                assert (catalog.revision(name, scope=scope) is not None) == there
                assert bool(catalog.chunks_of(name, scope=scope)) == there
            for mode in ("dense", "sparse", "hybrid"):
                found = retriever.search("fox", 100, scope=scope, mode=mode)
                assert {hit.chunk.doc_id for hit in found} == shown, (turn, mode)
    hidden = sorted(readers.keys() - shown)
    assert retriever.delete(hidden, scope=scope) == []
    assert catalog.set_pinned(hidden, True, scope=scope) == []
    [result] = retriever.ingest([Document(hidden[0], "mine")], scope=scope)
    assert isinstance(result.error, DocumentHidden)
    assert len(catalog.page(100).documents) == 40


def test_what_views_show_is_forgotten_when_it_is_too_much_or_old() -> None:
    shown: Remembered[View, list[int]] = Remembered(10, lambda ids: 1 + len(ids))
    now, later = CatalogState(1, "x"), CatalogState(2, "y")
    views = [View(frozenset([name])) for name in "abc"]
    for view in views[:2]:
        shown.remember(view, now, [1, 2, 3])
    assert shown.find(views[0], now) == ([1, 2, 3],) and not shown.find(views[0], later)
    shown.remember(views[2], now, [1])
    shown.remember(views[2], now, [1, 2])
    assert shown.find(views[0], now) and shown.find(views[2], now)
    assert not shown.find(views[1], now), "asked for the longest ago"
