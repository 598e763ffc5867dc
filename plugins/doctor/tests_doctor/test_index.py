"""`kvstitch doctor` on an index whose embedder is behind HTTP."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kvstitch.retriever import (
    ChunkSettings,
    Document,
    EndpointEmbedder,
    LocalEmbedder,
    Retriever,
)
from kvstitch.retriever.embedders.sentence_model_folder import SentenceModelFolder
from kvstitch.service.settings import Settings
from kvstitch_doctor.data_folder import check_index
from tests.fakes.models import HashingEmbedder, WordCounter
from tests.retriever.http_endpoint import endpoint


def embeddings(path: str, body: Any) -> tuple[int, Any]:
    vectors = HashingEmbedder(16).embed(body["input"])[0].tolist()
    return 200, {"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]}


@pytest.mark.parametrize(("revision", "level"), [("1", "ok"), ("2", "fail")])
def test_it_knows_the_endpoint_again(tmp_path: Path, revision: str, level: str) -> None:
    with endpoint(embeddings) as served:
        url = f"{served.url}/v1"
        retriever = Retriever.in_folder(
            tmp_path, EndpointEmbedder(url, "m", revision="1"), ChunkSettings(WordCounter(), 32)
        )
        retriever.start()
        retriever.ingest([Document("fox", "the red fox")])
        retriever.close()
    asked = Settings(data_dir=tmp_path, embedder="m", embedder_url=url, embedder_revision=revision)
    found = {finding.check: finding.level for finding in check_index(asked)}
    assert found == {"embedder": "ok", "index": level}


@pytest.mark.parametrize(("named", "level"), [("", "ok"), ("all-MiniLM-L6-v2", "fail")])
def test_documents_keep_an_embedder_that_was_fetched(
    tmp_path: Path, named: str, level: str
) -> None:
    default = SentenceModelFolder.read(None).path
    fetched = tmp_path / "models" / "multilingual-e5-small-1"
    shutil.copytree(default, fetched)
    retriever = Retriever.in_folder(
        tmp_path, LocalEmbedder(fetched, dtype="float32"), ChunkSettings(WordCounter(), 32)
    )
    retriever.start()
    retriever.ingest([Document("fuchs", "der rote Fuchs")])
    retriever.close()
    asked = Settings(data_dir=tmp_path, model_cache=fetched.parent, embedder=named)
    found = {finding.check: finding for finding in check_index(asked)}
    assert found["index"].level == level and "multilingual-e5-small-1" in found["index"].message
