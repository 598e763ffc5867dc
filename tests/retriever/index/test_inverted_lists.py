"""Scopes that are so large that their search is approximate."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import IndexCorrupt
from kvstitch.retriever.index.scope_index import RECALL, BuildStopped, build
from kvstitch.retriever.index.vector_index import VectorIndex
from kvstitch.retriever.scope import DEFAULT_SCOPE

DIM, COUNT, EXACT = 48, 6_000, 2_000
SPACE = EmbeddingSpace("fake", "1", DIM)


def grouped(count: int, seed: int = 0, spread: float = 0.5) -> Vectors:
    """Vectors of length one around 60 topics, as texts' are."""
    random = np.random.default_rng(seed)
    topics = np.random.default_rng(99).normal(size=(60, DIM))
    vectors = topics[random.integers(60, size=count)]
    vectors = vectors + spread * random.normal(size=vectors.shape)
    scaled: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


@pytest.fixture
def index() -> VectorIndex:
    index = VectorIndex(exact_up_to=EXACT)
    index.reset(DIM)
    index.add(list(range(COUNT)), grouped(COUNT))
    return index


@pytest.fixture
def built(index: VectorIndex) -> VectorIndex:
    assert index.overdue() == [DEFAULT_SCOPE]
    index.rebuild(DEFAULT_SCOPE)
    assert index.overdue() == []
    return index


def found_share(index: VectorIndex, vectors: Vectors, ids: np.ndarray, **search: object) -> float:
    """Share of the 10 best of a brute-force search that `index` finds, over 50 queries."""
    queries, found = grouped(50, seed=7), 0
    for query in queries:
        best = set(ids[np.argsort(-(vectors @ query))[:10]].tolist())
        found += len(best & {i for i, _ in index.search(query, 10, **search)})  # type: ignore[arg-type]
    return found / 500


def test_a_large_scope_reads_few_lists_and_finds_what_an_exact_search_finds(
    built: VectorIndex,
) -> None:
    part = built._parts[DEFAULT_SCOPE]
    assert part.reads is not None and part.reads.probes[0] <= part.faiss.nlist * 0.25
    assert RECALL <= built.recall < 1.0001
    vectors, ids = grouped(COUNT), np.arange(COUNT)
    assert found_share(built, vectors, ids) >= 0.97
    hits = built.search(vectors[17], 3)
    assert hits[0][0] == 17
    assert [score for _, score in hits] == pytest.approx(
        [float(vectors[i] @ vectors[17]) for i, _ in hits], abs=1e-5
    )


@pytest.mark.parametrize("allowed", [5, 40, 600])
def test_a_filter_finds_as_many_as_there_are(built: VectorIndex, allowed: int) -> None:
    ids = np.random.default_rng(1).choice(COUNT, allowed, replace=False)
    assert found_share(built, grouped(COUNT)[ids], ids, allowed_ids=set(ids.tolist())) >= 0.95 * (
        min(allowed, 10) / 10
    )
    query = grouped(1, seed=3)[0]
    assert len(built.search(query, allowed + 3, set(ids.tolist()))) == allowed


def test_more_than_the_lists_hold_are_found_all_the_same(built: VectorIndex) -> None:
    assert len(built.search(grouped(1)[0], COUNT)) == COUNT


def test_a_removed_vector_is_gone_at_once_and_an_added_one_found(built: VectorIndex) -> None:
    vectors = grouped(COUNT)
    built.replace([17], [9_000], vectors[17:18])
    [(found, score), *_] = built.search(vectors[17], 2)
    assert found == 9_000 and score == pytest.approx(1)
    built.remove(list(range(100)))
    everything = {i for i, _ in built.search(vectors[3], COUNT)}
    assert everything == {*range(100, COUNT), 9_000}


def test_changes_while_lists_are_built_are_kept(
    index: VectorIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = grouped(COUNT)
    begun, go_on = threading.Event(), threading.Event()

    def slow(*args: object) -> object:
        begun.set()
        assert go_on.wait(120)
        return build(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("kvstitch.retriever.index.vector_index.build", slow)
    thread = threading.Thread(target=index.rebuild, args=(DEFAULT_SCOPE,))
    thread.start()
    assert begun.wait(120)
    index.remove([17, 18])
    index.replace([19], [9_000, 18], vectors[[19, 40]])
    assert index.search(vectors[19], 1)[0][0] == 9_000  # searched meanwhile, exactly
    go_on.set()
    thread.join(120)
    assert index.recall < 1.0001 and index._parts[DEFAULT_SCOPE].reads is not None
    assert {i for i, _ in index.search(vectors[0], COUNT + 5)} == index.ids
    assert index.ids == set(range(COUNT)) - {17, 19} | {9_000}
    assert {i for i, _ in index.search(vectors[40], 2)} == {18, 40}


def test_a_stopped_build_leaves_the_exact_search(index: VectorIndex) -> None:
    asked = iter([False, False, True])
    with pytest.raises(BuildStopped):
        index.rebuild(DEFAULT_SCOPE, lambda: next(asked))
    assert index.overdue() == [DEFAULT_SCOPE] and index.recall == 1
    index.remove([1])
    assert len(index.search(grouped(1)[0], COUNT)) == COUNT - 1


def test_vectors_without_groups_stay_exact_until_there_are_twice_as_many() -> None:
    index = VectorIndex(exact_up_to=EXACT)
    index.reset(DIM)
    noise = np.random.default_rng(5).normal(size=(3 * EXACT, DIM)).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    index.add(list(range(EXACT + 1)), noise[: EXACT + 1])
    index.rebuild(DEFAULT_SCOPE)
    assert index.recall == 1 and index._parts[DEFAULT_SCOPE].reads is None
    assert index.overdue() == []
    index.add(list(range(EXACT + 1, 3 * EXACT)), noise[EXACT + 1 :])
    assert index.overdue() == [DEFAULT_SCOPE]


def test_a_scope_that_has_become_small_is_searched_exactly_again(built: VectorIndex) -> None:
    built.remove(list(range(EXACT // 2 - 10, COUNT)))
    assert built.overdue() == [DEFAULT_SCOPE]
    built.rebuild(DEFAULT_SCOPE)
    assert built.recall == 1 and built.overdue() == []
    vectors = grouped(COUNT)[: EXACT // 2 - 10]
    assert found_share(built, vectors, np.arange(len(vectors))) == 1


def test_lists_are_saved_and_read(built: VectorIndex, tmp_path: Path) -> None:
    built.remove([5])
    built.save(tmp_path, SPACE, 1, "token")
    other = VectorIndex(exact_up_to=EXACT)
    other.load(tmp_path, SPACE)
    assert (other.recall, other.ids, other.overdue()) == (built.recall, built.ids, [])
    query = grouped(1, seed=3)[0]
    assert other.search(query, 10) == built.search(query, 10)
    other.add([9_000], query[None])
    assert other.search(query, 1)[0][0] == 9_000
    manifest = tmp_path / "manifest.json"
    fields = json.loads(manifest.read_text())
    fields["scopes"][0]["reads"] = None
    manifest.write_text(json.dumps(fields))
    with pytest.raises(IndexCorrupt, match="does not hold"):
        VectorIndex().load(tmp_path, SPACE)
    fields["scopes"][0]["reads"] = {"probes": [1], "recall": 1}
    manifest.write_text(json.dumps(fields))
    with pytest.raises(IndexCorrupt, match="depths"):
        VectorIndex().load(tmp_path, SPACE)
