from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import EmbedderMismatch, IndexCorrupt, IndexMissing
from kvstitch.retriever.index.vector_index import VectorIndex
from kvstitch.retriever.scope import Scope

DIM = 16
SPACE = EmbeddingSpace("fake", "1", DIM)


def unit_vectors(count: int, seed: int = 0) -> Vectors:
    vectors = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    scaled: Vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


@pytest.fixture
def index() -> VectorIndex:
    index = VectorIndex()
    index.reset(DIM)
    return index


def test_search_equals_brute_force(index: VectorIndex) -> None:
    vectors, query = unit_vectors(500), unit_vectors(1, seed=1)[0]
    ids = list(range(1000, 1500))
    index.add(ids, vectors)
    scores = vectors @ query
    expected = [ids[row] for row in np.argsort(-scores)[:10]]
    hits = index.search(query, 10)
    assert [hit[0] for hit in hits] == expected
    assert [hit[1] for hit in hits] == pytest.approx(np.sort(scores)[::-1][:10], abs=1e-5)


def test_more_than_there_is_gives_all(index: VectorIndex) -> None:
    index.add([1, 2, 3], unit_vectors(3))
    assert len(index.search(unit_vectors(1)[0], 100)) == 3


def test_empty_index_gives_nothing(index: VectorIndex) -> None:
    assert index.search(unit_vectors(1)[0], 5) == []


def test_ties_come_by_id_even_across_the_last_place(index: VectorIndex) -> None:
    same = np.repeat(unit_vectors(1), 40, axis=0)
    ids = list(range(40))
    np.random.default_rng(0).shuffle(ids)
    index.add(ids, same)
    for k in (1, 3, 39, 40):
        assert [hit[0] for hit in index.search(same[0], k)] == list(range(k))
    allowed = list(range(10, 30))
    assert [hit[0] for hit in index.search(same[0], 3, allowed)] == [10, 11, 12]


def test_filter_keeps_to_allowed_ids(index: VectorIndex) -> None:
    index.add(list(range(100)), unit_vectors(100))
    query = unit_vectors(1, seed=1)[0]
    everything = index.search(query, 100)
    allowed = {3, 14, 15, 92, 999}
    expected = [hit for hit in everything if hit[0] in allowed]
    assert index.search(query, 10, allowed) == expected
    assert index.search(query, 2, allowed) == expected[:2]
    assert index.search(query, 10, []) == []


def test_removed_ids_are_gone_and_added_ones_replace(index: VectorIndex) -> None:
    vectors = unit_vectors(10)
    index.add(list(range(10)), vectors)
    assert index.remove([3, 4, 77]) == 2
    index.add([5], vectors[3:4])
    assert len(index) == 8
    [(found, score)] = index.search(vectors[3], 1)
    assert found == 5 and score == pytest.approx(1.0)
    assert index.ids == {0, 1, 2, 5, 6, 7, 8, 9}


def test_vectors_of_another_size_are_refused_and_change_nothing(index: VectorIndex) -> None:
    index.add([1], unit_vectors(1))
    with pytest.raises(ValueError, match="shape"):
        index.replace([1], [2], np.zeros((1, DIM + 1), dtype=np.float32))
    assert index.ids == {1}


def test_save_and_load(index: VectorIndex, tmp_path: Path) -> None:
    index.add(list(range(50)), unit_vectors(50))
    index.remove([7])
    saved = index.save(tmp_path / "index", SPACE, 12, "token")
    other = VectorIndex()
    loaded = other.load(tmp_path / "index", SPACE)
    assert loaded == saved
    assert (loaded.scopes[0].count, loaded.generation, loaded.token) == (49, 12, "token")
    query = unit_vectors(1, seed=1)[0]
    assert other.search(query, 5) == index.search(query, 5)
    other.remove([8])
    assert len(other) == 48


def test_next_save_replaces_the_last_one(index: VectorIndex, tmp_path: Path) -> None:
    for generation in range(3):
        index.add([generation], unit_vectors(1, generation))
        index.save(tmp_path, SPACE, generation, "token")
    assert len(list(tmp_path.iterdir())) == 2
    assert VectorIndex().load(tmp_path, SPACE).scopes[0].count == 3


@pytest.mark.parametrize(
    "space",
    [
        EmbeddingSpace("other", "1", DIM),
        EmbeddingSpace("fake", "2", DIM),
        EmbeddingSpace("fake", "1", DIM * 2),
    ],
)
def test_another_embedder_is_refused(
    index: VectorIndex, tmp_path: Path, space: EmbeddingSpace
) -> None:
    index.save(tmp_path, SPACE, 0, "token")
    with pytest.raises(EmbedderMismatch, match="fake@1"):
        VectorIndex().load(tmp_path, space)


def test_nothing_saved(tmp_path: Path) -> None:
    with pytest.raises(IndexMissing):
        VectorIndex().load(tmp_path, SPACE)


def test_a_scope_is_searched_alone_and_saved_alone(index: VectorIndex, tmp_path: Path) -> None:
    ours, theirs = Scope("ours"), Scope("theirs")
    vectors = unit_vectors(20)
    index.add(list(range(10)), vectors[:10], scope=ours)
    index.add(list(range(10, 20)), vectors[10:], scope=theirs)
    first = {saved.tenant: saved.file for saved in index.save(tmp_path, SPACE, 0, "t").scopes}
    assert {hit[0] for hit in index.search(vectors[15], 99, scope=ours)} == set(range(10))
    assert index.search(vectors[15], 99, [15], scope=ours) == []
    assert index.search(vectors[15], 99) == []
    assert index.remove([15], scope=ours) == 0

    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("index-*")}
    index.remove(list(range(10)), scope=ours)
    [kept] = index.save(tmp_path, SPACE, 1, "t").scopes
    assert kept.file == first["theirs"]
    [left] = tmp_path.glob("index-*")
    assert left.name == kept.file and left.stat().st_mtime_ns == written[left]
    assert len(index) == 10


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_damaged_index_file_is_refused(index: VectorIndex, tmp_path: Path, damage: str) -> None:
    index.add(list(range(50)), unit_vectors(50))
    path = tmp_path / index.save(tmp_path, SPACE, 0, "token").scopes[0].file
    match damage:
        case "flip":
            flip_a_byte(path)
        case "truncate":
            path.write_bytes(path.read_bytes()[:-100])
        case "empty":
            path.write_bytes(b"")
        case "remove":
            path.unlink()
    with pytest.raises(IndexCorrupt):
        index.load(tmp_path, SPACE)
    assert len(index) == 50


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"name": 1}'])
def test_damaged_manifest_is_refused(index: VectorIndex, tmp_path: Path, content: str) -> None:
    index.save(tmp_path, SPACE, 0, "token")
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(IndexCorrupt):
        index.load(tmp_path, SPACE)


@pytest.mark.parametrize(
    ("field", "value"),
    [("format", 1), ("file", "../index"), ("count", 3), ("collection", ""), ("scopes", None)],
)
def test_manifest_that_does_not_fit_is_refused(
    index: VectorIndex, tmp_path: Path, field: str, value: object
) -> None:
    index.add([1, 2], unit_vectors(2))
    index.save(tmp_path, SPACE, 0, "token")
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    where = manifest if field in manifest else manifest["scopes"][0]
    where[field] = value
    path.write_text(json.dumps(manifest))
    with pytest.raises(IndexCorrupt):
        index.load(tmp_path, SPACE)


def test_searches_during_changes_see_old_or_new_never_neither(index: VectorIndex) -> None:
    """One vector is replaced again and again under new ids: each search finds exactly one."""
    vector = unit_vectors(1)
    index.add([0], vector)
    index.add(list(range(10_000, 10_500)), unit_vectors(500, seed=3))
    stop = threading.Event()
    wrong: list[list[tuple[int, float]]] = []

    def search() -> None:
        while not stop.is_set():
            hits = [hit for hit in index.search(vector[0], 2) if hit[0] < 10_000]
            if len(hits) != 1:
                wrong.append(hits)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 200):
        index.replace([number - 1], [number], vector)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
