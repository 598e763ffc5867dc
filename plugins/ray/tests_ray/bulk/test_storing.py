"""A retriever that only stores: others search the catalog, and follow what it did."""

from __future__ import annotations

from pathlib import Path

from kvstitch.retriever import ChunkSettings, Document, Retriever
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.retriever.index.vector_index import VectorIndex
from kvstitch_ray.bulk.corpus import storing_retriever
from tests.fakes.models import HashingEmbedder, WordCounter

CHUNKING = ChunkSettings(WordCounter(), 16)
DOCUMENTS = [Document(f"d{n}", f"Words of number {n}. " * 8) for n in range(3)]


def storing(tmp_path: Path, index: VectorIndex | None = None) -> Retriever:
    database = catalog_database(tmp_path / "catalog.db")
    made = storing_retriever(database, HashingEmbedder(), CHUNKING, index=index)
    made.start()
    return made


def test_what_it_stores_is_found_by_whoever_opens_the_catalog(tmp_path: Path) -> None:
    retriever = storing(tmp_path)
    assert {result.status for result in retriever.ingest(DOCUMENTS)} == {"created"}
    assert {result.status for result in retriever.ingest(DOCUMENTS)} == {"unchanged"}
    (changed,) = retriever.ingest([Document("d0", "Newer words.")])
    assert changed.status == "updated" and changed.removed_chunk_ids
    retriever.save()
    retriever.close()
    searching = Retriever.in_folder(tmp_path, HashingEmbedder(), CHUNKING)
    report = searching.start()
    assert report.vectors == searching.catalog.counts().chunks
    (found,) = searching.search("Newer words.", 1)
    assert (found.chunk.doc_id, found.chunk.text) == ("d0", "Newer words.")
    searching.close()


def test_an_index_in_the_database_gets_its_vectors_and_no_others(tmp_path: Path) -> None:
    other = storing(tmp_path)
    other.ingest(DOCUMENTS[:1])
    index = VectorIndex()
    retriever = storing(tmp_path, index)
    own = retriever.ingest(DOCUMENTS[1:])
    assert sorted(index.ids) == sorted(c.chunk_id for result in own for c in result.chunks)
    (changed,) = retriever.ingest([Document("d1", "Newer words.")])
    kept = [c.chunk_id for c in own[1].chunks] + [c.chunk_id for c in changed.chunks]
    assert sorted(index.ids) == sorted(kept)
    for each in (other, retriever):
        each.close()
