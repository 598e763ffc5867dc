"""Vector search in PostgreSQL (pgvector) beside FAISS in the gateway: recall, times, building.

    python -m benchmarks.fleet.pgvector_recall --data nq_test.jsonl nq_dev.jsonl [--vectors 50000]

Run it in a checkout, with a PostgreSQL that has pgvector (the tests' server). One catalog in
PostgreSQL, two retrievers over it, as two gateways would have: one keeps the vectors in FAISS, one
searches in the database. Passages and questions are Natural Questions', embedded by MiniLM; the
rest of the collection are mixtures of two passages' vectors with noise. Every document has
`tenth` and `hundredth` for filters. Exact is FAISS, which compares every vector.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.retrieval.vector_index import mixtures
from retriever import ChunkSettings, DocFilter, LocalEmbedder, Retriever, parse_filter
from retriever.catalog import tables
from retriever.catalog.catalog import Catalog
from retriever.embedders.base import EmbeddingSpace, Vectors, space_of
from retriever.index.pgvector_index import PgvectorIndex
from retriever.index.vector_index import VectorIndex
from retriever.index.vector_search import VectorSearch
from retriever.sql.database import Database
from tests.fakes.models import HashingEmbedder, WordCounter
from tests.postgresql_server import postgresql_server
from tuning.environment import describe

OUT = Path("benchmarks/results/fleet/pgvector_recall.json")
SEED = 0
BEST = 10
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "nine tenths": {"tenth": {"ne": 0}},
    "a tenth": {"tenth": 3},
    "a hundredth": {"hundredth": 42},
}
ADDED = 500  # rows that are added once the graph is there
WARM_UP = 3  # questions before those that are timed


class Prepared(HashingEmbedder):
    """Has the vectors of the questions already: searches are timed without embedding."""

    def __init__(self, questions: Sequence[str], vectors: Vectors) -> None:
        super().__init__(vectors.shape[1])
        self._vectors = dict(zip(questions, vectors, strict=True))

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.array([self._vectors[text] for text in texts], dtype=np.float32)


class Timed(PgvectorIndex):
    """Tells how long making the graph took."""

    graph_s = 0.0

    def complete(self) -> None:
        self.graph_s = _seconds(super().complete)


def main() -> int:
    """Measures, prints and writes the results; 1 if a recall is below 0.99."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="nq_*.jsonl")
    parser.add_argument("--vectors", type=int, default=50_000)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    lines = [line for path in args.data for line in path.read_text("utf-8").splitlines()]
    rows = [json.loads(line) for line in lines]
    questions = [row["question"] for row in rows[: args.questions + WARM_UP]]
    embedder = LocalEmbedder()
    embedder.start()
    with closing(embedder):
        passages = embedder.embed([f"{row['title']}\n{row['text']}" for row in rows])
        asked = embedder.embed(questions)
    random = np.random.default_rng(SEED)
    vectors = np.concatenate([passages, mixtures(passages, args.vectors - len(rows), random)])
    prepared = Prepared(questions, asked)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(postgresql_server()).database()
        database = stack.enter_context(closing(tables.catalog_database(url)))
        filled_s = _seconds(lambda: _fill(database, space_of(prepared), vectors))
        pgvector = Timed(database)
        indexes: dict[str, VectorSearch] = {
            "faiss": VectorIndex(exact_up_to=args.vectors),
            "pgvector": pgvector,
        }
        retrievers = {
            name: Retriever.in_folder(
                folder / name, prepared, ChunkSettings(WordCounter(), 256),
                database=database, index=index,
            )
            for name, index in indexes.items()
        }  # fmt: skip
        built_s = {name: round(_seconds(r.start), 1) for name, r in retrievers.items()}
        graph_s = pgvector.graph_s
        result = {
            "environment": {**describe(), "seed": SEED, **_versions(database)},
            "vectors": len(vectors),
            "real_passages": len(rows),
            "questions": args.questions,
            "filled_s": round(filled_s, 1),
            "start_s": built_s,
            "graph_s": round(graph_s, 1),
            "added_later_ms": round(_added_ms(pgvector, database, vectors), 2),
            "mib_in_database": _mib(database, prepared.dim),
            "filters": {
                name: _compared(retrievers, questions, where) for name, where in FILTERS.items()
            },
        }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return int(min(f["recall"] for f in result["filters"].values()) < 0.99)


def _fill(database: Database, space: EmbeddingSpace, vectors: Vectors) -> None:
    """A document of one chunk for every vector, with the tables' own COPY."""
    Catalog(database).start()
    with database.write() as write:
        write.execute(tables.scopes.insert(), {"tenant": "", "collection": "default"})
        write.execute(tables.spaces.insert(), asdict(space))
        content: dict[str, Iterator[tuple[Any, ...]]] = {
            "documents (document, scope_id, doc_id, revision, space_id, created, updated, "
            "num_chars, pinned, title, metadata, text)": (
                (n, 1, f"d{n}", "r", 1, 0.0, 0.0, 1, 0, "", _metadata(n), "x")
                for n in range(1, len(vectors) + 1)
            ),
            "chunks (chunk_id, document, ordinal, char_start, char_end, tokens, text)": (
                (n, n, 0, 0, 1, 1, "x") for n in range(1, len(vectors) + 1)
            ),
            "vectors (chunk_id, space_id, vector)": (
                (n, 1, vector.astype("<f4").tobytes()) for n, vector in enumerate(vectors, 1)
            ),
        }
        for table, rows in content.items():
            cursor: Any = write.connection.cursor()
            with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
    with database.write() as write:
        for table in ("documents", "chunks", "vectors"):
            write.exec_driver_sql(f"ANALYZE {table}")


def _metadata(number: int) -> str:
    return json.dumps({"tenth": number % 10, "hundredth": number % 100})


def _compared(
    retrievers: dict[str, Retriever], questions: Sequence[str], where: dict[str, Any]
) -> dict[str, Any]:
    """Recall of pgvector against FAISS, and milliseconds of whole searches, in turns."""
    doc_filter = DocFilter(where=parse_filter(where)) if where else None
    times: dict[str, list[float]] = {name: [] for name in retrievers}
    common = wanted = 0
    for number, question in enumerate(questions):
        found: dict[str, set[int]] = {}
        for name, retriever in retrievers.items():
            begun = time.perf_counter()
            hits = retriever.search(question, BEST, doc_filter)
            times[name].append(1000 * (time.perf_counter() - begun))
            found[name] = {hit.chunk.chunk_id for hit in hits}
        if number >= WARM_UP:
            wanted += len(found["faiss"])
            common += len(found["faiss"] & found["pgvector"])
    return {
        "recall": round(common / wanted, 4),
        **{
            f"{name}_ms": {
                "p50": round(statistics.median(values[WARM_UP:]), 2),
                "p95": round(float(np.percentile(values[WARM_UP:], 95)), 2),
            }
            for name, values in times.items()
        },
    }


def _added_ms(index: PgvectorIndex, database: Database, vectors: Vectors) -> float:
    """Milliseconds to add a row to the graph as it is, which is what an ingest does."""
    table = f"pgvector_{vectors.shape[1]}"
    ids = list(range(1, ADDED + 1))
    with database.write() as write:
        write.exec_driver_sql(f"DELETE FROM {table} WHERE chunk_id <= {ADDED}")
    return 1000 * _seconds(lambda: index.add(ids, vectors[:ADDED])) / ADDED


def _mib(database: Database, dim: int) -> dict[str, float]:
    with database.read() as read:
        return {
            name: round(
                read.exec_driver_sql(f"SELECT pg_relation_size('{table}')").scalar_one() / 2**20, 1
            )
            for name, table in (("rows", f"pgvector_{dim}"), ("graph", f"pgvector_{dim}_hnsw"))
        }


def _versions(database: Database) -> dict[str, str]:
    with database.read() as read:
        server = read.exec_driver_sql("SHOW server_version").scalar_one()
        query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        return {"postgresql": server, "pgvector": read.exec_driver_sql(query).scalar_one()}


def _seconds(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
