"""`kvstitch doctor` on an index whose embedder is behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstitch.retriever import ChunkSettings, Document, EndpointEmbedder, Retriever
from kvstitch.service.settings import Settings
from kvstitch_doctor.data_folder import check_index
from tests.fakes.models import HashingEmbedder, WordCounter
from tests.retriever.http_endpoint import endpoint


def embeddings(path: str, body: Any) -> tuple[int, Any]:
    vectors = HashingEmbedder(16).embed(body["input"]).tolist()
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
