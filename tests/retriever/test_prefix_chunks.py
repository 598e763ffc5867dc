"""What a chunk is computed behind is chosen once, and found again when one of it is deleted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retriever import ChunkSettings, Document, PrefixKind, Retriever, Scope
from retriever.primer_groups import GROUP, central
from retriever.scope import DEFAULT_SCOPE
from tests.fakes.models import HashingEmbedder, WordCounter
from tests.retriever.conftest import OpenRetriever

TOPICS = ("fox forest hunts", "whale sea sings", "bread oven flour")
KINDS: tuple[PrefixKind, PrefixKind] = ("primer", "neighbours")


def corpus(each: int, first: int = 0) -> list[Document]:
    """Documents of one chunk on three topics."""
    return [
        Document(f"{topic.split()[0]}-{n}", f"{topic} number{n}")
        for n in range(first, first + each)
        for topic in TOPICS
    ]


@pytest.fixture
def retriever(open_retriever: OpenRetriever) -> Retriever:
    opened = open_retriever()
    opened.ingest(corpus(8))
    return opened


def choose(
    retriever: Retriever, doc_id: str, kind: PrefixKind, count: int = 3, max_tokens: int = 1000
) -> list[str]:
    [chunk] = retriever.catalog.chunks_of(doc_id)
    chosen = retriever.prefix_chunks.choose(
        chunk, kind, scope=DEFAULT_SCOPE, count=count, max_tokens=max_tokens
    )
    [remembered] = retriever.prefix_chunks.of([chunk.chunk_id], kind).values()
    assert remembered == chosen
    return [other.doc_id for other in chosen]


def number(retriever: Retriever, doc_id: str) -> int:
    return retriever.catalog.chunks_of(doc_id)[0].chunk_id


def test_neighbours_are_the_nearest_others_the_nearest_last(retriever: Retriever) -> None:
    found = choose(retriever, "fox-2", "neighbours")
    assert len(found) == 3
    assert all(doc_id.startswith("fox-") and doc_id != "fox-2" for doc_id in found)
    ranked = [p.chunk.doc_id for p in retriever.search("fox forest hunts number2", 4)]
    assert found == ranked[1:][::-1]


def test_a_primer_is_the_same_for_a_whole_group(retriever: Retriever) -> None:
    """A small collection is one group; its central chunks stand behind each other, too."""
    found = {tuple(choose(retriever, d.doc_id, "primer")) for d in corpus(8)}
    full = {names for names in found if len(names) == 3}
    assert len(full) == 1
    [primer] = full
    assert found - full == {tuple(name for name in primer if name != own) for own in primer}


def test_a_grown_collection_has_groups_by_topic(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(corpus(GROUP))
    primers = {d.doc_id: choose(retriever, d.doc_id, "primer", 2) for d in corpus(GROUP)}
    same = [
        all(name.split("-")[0] == own.split("-")[0] for name in names)
        for own, names in primers.items()
    ]
    assert sum(same) / len(same) > 0.9
    assert 3 <= len({tuple(sorted(names)) for names in primers.values() if len(names) == 2}) <= 6


def test_a_primer_s_own_chunks_get_the_next_group_s(open_retriever: OpenRetriever) -> None:
    """Nobody stands behind a part of a primer that is computed for one chunk alone."""
    retriever = open_retriever()
    retriever.ingest(corpus(GROUP))
    primers = [choose(retriever, d.doc_id, "primer") for d in corpus(GROUP)]
    central_ids = {name for names in primers for name in names}
    assert len(central_ids) >= 6
    assert all(len(names) == 3 for names in primers)
    assert len({tuple(names) for names in primers}) == len(central_ids) / 3


def test_groups_of_a_small_collection_stay_as_it_grows(retriever: Retriever) -> None:
    before = choose(retriever, "fox-2", "primer")
    retriever.ingest(corpus(3, first=100))
    assert choose(retriever, "fox-2", "primer") == before
    retriever.ingest(corpus(GROUP, first=200))
    assert choose(retriever, "whale-200", "primer") != before, "there are further groups now"


def test_nothing_stands_behind_itself_or_what_says_the_same(retriever: Retriever) -> None:
    retriever.ingest([Document("copy", "fox forest hunts number2")])
    for kind in KINDS:
        assert not {"fox-2", "copy"} & set(choose(retriever, "fox-2", kind, 24))


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_fit_into_the_context(retriever: Retriever, kind: PrefixKind) -> None:
    """Every chunk has four words."""
    assert len(choose(retriever, "fox-2", kind, 3, max_tokens=8)) == 2
    assert choose(retriever, "fox-2", kind, 3, max_tokens=3) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_collection_of_one_has_no_companions(
    open_retriever: OpenRetriever, kind: PrefixKind
) -> None:
    retriever = open_retriever()
    retriever.ingest([Document("only", "a b c")])
    assert choose(retriever, "only", kind) == []


def test_prefixes_are_of_the_same_collection(retriever: Retriever) -> None:
    other = Scope("acme", "default")
    retriever.ingest([Document("own", "fox forest hunts number2")], scope=other)
    [chunk] = retriever.catalog.chunks_of("own", scope=other)
    for kind in KINDS:
        assert not retriever.prefix_chunks.choose(
            chunk, kind, scope=other, count=3, max_tokens=1000
        )


def test_what_stands_behind_a_chunk_is_found_before_it_is_deleted(retriever: Retriever) -> None:
    prefixes = retriever.prefix_chunks
    lost, *rest = choose(retriever, "fox-2", "neighbours")
    own = number(retriever, "fox-2")
    [prefixed] = prefixes.behind([number(retriever, lost)])[number(retriever, lost)]
    assert prefixed.chunk.doc_id == "fox-2"
    assert [c.doc_id for c in prefixed.prefix] == [lost, *rest]

    [gone] = retriever.delete([lost])
    assert prefixes.of([own], "neighbours") == {own: []}, "its KV behind them is to be purged"
    prefixes.forget([gone])
    assert prefixes.of([own], "neighbours") == {}
    assert lost not in choose(retriever, "fox-2", "neighbours")


def test_a_primer_that_lost_a_chunk_is_replaced(retriever: Retriever) -> None:
    before = choose(retriever, "fox-2", "primer")
    gone = retriever.delete([before[0]])
    retriever.prefix_chunks.forget(gone)
    after = choose(retriever, "fox-2" if before[0] != "fox-2" else "fox-3", "primer")
    assert len(after) >= 2
    assert before[0] not in after


def test_documents_are_open_until_both_copies_are_stored(retriever: Retriever) -> None:
    prefixes = retriever.prefix_chunks
    assert len(prefixes.open("primer", 100)) == 24
    for document in corpus(8):
        choose(retriever, document.doc_id, "primer")
    assert len(prefixes.open("primer", 100)) == 24
    prefixes.set_exact([number(retriever, d.doc_id) for d in corpus(8)])
    assert prefixes.open("primer", 100) == []
    assert len(prefixes.open("neighbours", 5)) == 5, "another kind is to be chosen anew"
    assert prefixes.of([number(retriever, "fox-1")], "neighbours") == {}


def test_a_deleted_document_leaves_nothing(retriever: Retriever) -> None:
    choose(retriever, "fox-2", "neighbours")
    retriever.delete(["fox-2"])
    assert ("", "default", "fox-2") not in {
        (scope.tenant, scope.collection, doc)
        for scope, doc in retriever.prefix_chunks.open("primer", 99)
    }
    assert retriever.prefix_chunks.prefixed([1, 2, 3, 4, 5, 6, 7, 8, 9]) == []


def test_choices_survive_a_restart(tmp_path: Path) -> None:
    def opened() -> Retriever:
        made = Retriever.in_folder(tmp_path, HashingEmbedder(), ChunkSettings(WordCounter(), 64))
        made.start()
        return made

    retriever = opened()
    retriever.ingest(corpus(8))
    before = {d.doc_id: choose(retriever, d.doc_id, "primer") for d in corpus(8)}
    retriever.close()
    again = opened()
    of = again.prefix_chunks.of([number(again, doc_id) for doc_id in before], "primer")
    for doc_id, names in before.items():
        assert [c.doc_id for c in of[number(again, doc_id)]] == names
    again.close()


def test_central_vectors_are_of_their_group() -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(4, dtype=np.float32)
    vectors = np.concatenate([c + 0.05 * rng.standard_normal((20, 4)) for c in centres])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = central(vectors.astype(np.float32), 4, 3)
    assert found.shape == (4, 3)
    assert {frozenset(int(place) // 20 for place in row) for row in found} == {
        frozenset([topic]) for topic in range(4)
    }
    assert (found == central(vectors.astype(np.float32), 4, 3)).all()
