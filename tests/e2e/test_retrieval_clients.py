"""KvstitchRetriever and KvstitchEmbeddings against a real service: LangChain's own tests of
retrievers and embeddings, and LlamaIndex's retriever inside of its query engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from langchain_core.runnables import RunnablePassthrough
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeRelationship
from llama_index.llms.openai_like import OpenAILike

from kvstitch import Client, langchain, llama_index
from kvstitch.client import errors
from kvstitch.retriever import LocalEmbedder
from tests.e2e.conftest import Documents
from tests.e2e.embedding_server import IN_PROCESS
from tests.e2e.models import demo_or_tiny
from tests.e2e.service import Service

QUESTION = "Which colour does the family wear?"


@pytest.fixture(scope="module")
def asked(
    tmp_path_factory: pytest.TempPathFactory, corpus: Documents, twelve: Documents
) -> Iterator[Service]:
    """A service of its own: LangChain's tests have a fixture `model`, which the shared one uses."""
    folder = tmp_path_factory.mktemp("frameworks")
    with Service(
        demo_or_tiny(folder / "demo", [d["text"] for d in corpus]), folder / "data", **IN_PROCESS
    ) as one:
        one.ingest(twelve)
        yield one


@pytest.fixture(scope="module")
def url(asked: Service) -> str:
    return f"http://127.0.0.1:{asked.port}"


@pytest.fixture
def named(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The service is found by its environment variable, as LangChain's tests have no fixture."""
    monkeypatch.setenv("KVSTITCH_URL", url)
    return url


@pytest.mark.usefixtures("named")
class TestLangChainRetriever(RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[langchain.KvstitchRetriever]:
        return langchain.KvstitchRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"retrieval": "dense"}

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


@pytest.mark.usefixtures("named")
class TestLangChainEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[langchain.KvstitchEmbeddings]:
        return langchain.KvstitchEmbeddings


def test_langchain_gets_what_the_service_finds(url: str, twelve: Documents) -> None:
    with Client(url) as client:
        found = client.search(QUESTION, retrieval="dense", top_k=3).results
    retriever = langchain.KvstitchRetriever(base_url=url, retrieval="dense", k=3)
    documents = retriever.invoke(QUESTION)
    assert [d.id for d in documents] == [str(r.chunk_id) for r in found]
    assert [d.page_content for d in documents] == [r.text for r in found]
    texts = {d["doc_id"]: d["text"] for d in twelve}
    for document, result in zip(documents, found, strict=True):
        told = document.metadata
        cited = texts[told["kvstitch_doc_id"]][
            told["kvstitch_char_start"] : told["kvstitch_char_end"]
        ]
        assert cited == document.page_content and told["kvstitch_score"] == result.score
    floor = found[1].score
    above = langchain.KvstitchRetriever(base_url=url, retrieval="dense", min_score=floor, k=9)
    assert [d.id for d in above.invoke(QUESTION)] == [str(r.chunk_id) for r in found[:2]]
    with pytest.raises(errors.InvalidRequest, match="top_k"):
        retriever.invoke(QUESTION, k=1000)


def test_langchain_embeds_more_than_one_batch(url: str) -> None:
    texts = [f"The ship {n} is blue." for n in range(langchain.BATCH_TEXTS + 2)]
    embeddings = langchain.KvstitchEmbeddings(url, model="all-MiniLM-L6-v2")
    vectors = embeddings.embed_documents(texts)
    assert len(vectors) == len(texts) and len(vectors[0]) == 384
    assert vectors[-1] == pytest.approx(embeddings.embed_query(texts[-1]), abs=0.02)  # bfloat16
    with pytest.raises(errors.ModelNotFound):
        langchain.KvstitchEmbeddings(url, model="ada").embed_query("x")


def test_langchain_answers_from_the_retriever_in_a_chain(url: str, asked: Service) -> None:
    """Retrieved by LangChain, answered by the service from what stands in the prompt."""
    model = asked.http.get("/v1/models").json()["data"][0]["id"]
    retriever = langchain.KvstitchRetriever(base_url=url, k=1)
    llm = ChatOpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        model=model,
        max_tokens=4,
        extra_body={"kvstitch": {"top_k": 0}},
    )
    chain = (
        {"context": retriever, "question": RunnablePassthrough()}
        | RunnablePassthrough.assign(
            prompt=lambda found: f"{found['context'][0].page_content}\n{found['question']}"
        )
        | (lambda found: found["prompt"])
        | llm
    )
    assert str(chain.invoke(QUESTION).content)


def test_openai_embeds(url: str) -> None:
    """The client asks for base64; LangChain's sends text where it is told to."""
    texts = ["The ship is blue.", "A goat."]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.embeddings.create(model="all-MiniLM-L6-v2", input=texts)
        with pytest.raises(openai.BadRequestError, match="token ids"):
            client.embeddings.create(model="all-MiniLM-L6-v2", input=[[1, 2], [3]])
    vectors = [one.embedding for one in answer.data]
    assert answer.usage.prompt_tokens == 12  # with the two marks that BERT puts around a text
    expected = LocalEmbedder()
    expected.start()
    assert np.allclose(vectors, expected.embed(texts)[0], atol=0.01)  # bfloat16
    other = OpenAIEmbeddings(
        model="all-MiniLM-L6-v2",
        openai_api_base=f"{url}/v1",
        openai_api_key="none",
        check_embedding_ctx_length=False,
    )
    assert np.allclose(other.embed_documents(texts), vectors, atol=1e-6)


def test_llama_index_retrieves(url: str, twelve: Documents) -> None:
    with Client(url) as client:
        found = client.search(QUESTION, top_k=2).results
    nodes = llama_index.KvstitchRetriever(url, top_k=2).retrieve(QUESTION)
    assert [node.node.get_content() for node in nodes] == [r.text for r in found]
    assert [node.score for node in nodes] == [r.score for r in found]
    source: Any = nodes[0].node.relationships[NodeRelationship.SOURCE]
    assert source.node_id == found[0].doc_id in {d["doc_id"] for d in twelve}
    assert nodes[0].node.metadata["title"] == found[0].title


async def test_llama_index_retrieves_asynchronously(url: str) -> None:
    retriever = llama_index.KvstitchRetriever(url, top_k=2, retrieval="sparse")
    assert [n.node_id for n in await retriever.aretrieve(QUESTION)] == [
        n.node_id for n in retriever.retrieve(QUESTION)
    ]


def test_llama_index_answers_from_the_retriever_in_a_query_engine(url: str, asked: Service) -> None:
    model = asked.http.get("/v1/models").json()["data"][0]["id"]
    llm = OpenAILike(
        api_base=f"{url}/v1",
        api_key="none",
        model=model,
        is_chat_model=True,
        max_tokens=4,
        additional_kwargs={"extra_body": {"kvstitch": {"top_k": 0}}},
    )
    retriever = llama_index.KvstitchRetriever(url, top_k=2)
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)
    answer = engine.query(QUESTION)
    assert str(answer)
    assert [n.node_id for n in answer.source_nodes] == [
        n.node_id for n in retriever.retrieve(QUESTION)
    ]
