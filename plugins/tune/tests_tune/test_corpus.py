"""Prompts of a tuning run are those that the service would build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstitch.retriever import Document, Retriever, Scope
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.service.errors import InvalidRequest, InvalidSetting
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.search.async_retriever import make_embedder
from kvstitch.service.settings import load
from kvstitch_tune.corpus import of_collection, of_documents
from tests.service.gateway.model_folders import FORMAT, make_folder

DOCUMENTS = [
    Document("oslo", "Oslo is the capital of Norway, by the fjord.", "Oslo"),
    Document("bergen", "Bergen is rainy and has a fish market.", "Bergen"),
    Document("rome", "Rome is the capital of Italy, on the Tiber.", "Rome"),
]


@pytest.mark.parametrize(("order", "place"), [("best_first", 0), ("best_last", -1)])
def test_passages_stand_in_the_order_that_the_model_wants(
    tmp_path: Path, order: str, place: int
) -> None:
    fmt: dict[str, Any] = {**FORMAT, "passage_order": order}
    settings = load(data_dir=tmp_path / "data")
    prompts = PromptBuilder(make_folder(tmp_path / "model", fmt=fmt), settings)
    with of_documents(DOCUMENTS, prompts, settings, max_context=1024) as corpus:
        prompt = corpus.prompt("What is the capital of Norway?", task="tune")
    texts = [prompts.tokenizer.decode(ids) for ids in prompt.documents]
    assert len(texts) == 3 and texts[place].startswith("Oslo\n")


def test_other_modes_know_what_the_service_would_put_before_each_passage(tmp_path: Path) -> None:
    settings = load(data_dir=tmp_path / "data", companions=1, primers=1)
    prompts = PromptBuilder(make_folder(tmp_path / "model", fmt=FORMAT), settings)
    with of_documents(DOCUMENTS, prompts, settings, max_context=1024) as corpus:
        prompt = corpus.prompt("What is the capital of Norway?", task="tune")
        nothing = corpus.prompt("Oslo", task="tune")
    for kind in ("primer", "neighbours"):
        first, *others = prompt.behind[kind]
        assert first == (), "the first passage of a prompt is exact"
        for passage, behind in zip(prompt.documents[1:], others, strict=True):
            texts = [tuple(ids) for prefix in behind for ids in prefix]
            assert len(texts) <= 1 and passage not in texts
            assert set(texts) <= set(prompt.documents)
    assert any(prompt.behind["neighbours"])
    assert nothing.key != prompt.key


def test_a_collection_in_postgresql_is_read_and_left_as_it_is(
    tmp_path: Path, postgresql_url: str
) -> None:
    settings = load(data_dir=tmp_path / "data", database=postgresql_url, companions=1, primers=1)
    prompts = PromptBuilder(make_folder(tmp_path / "model", fmt=FORMAT), settings)
    shared = catalog_database(postgresql_url)
    served = Retriever.in_folder(
        tmp_path / "served",
        make_embedder(settings),
        prompts.chunking(),
        database=shared,
    )
    served.start()
    served.ingest(DOCUMENTS, scope=Scope(collection="cities"))
    served.ingest([Document("other", "Oslo is elsewhere.")], scope=Scope("tenant", "cities"))
    before = served.catalog.state()
    with of_collection("cities", prompts, settings, max_context=1024) as corpus:
        assert corpus.documents == 3
        prompt = corpus.prompt("What is the capital of Norway?", task="tune")
    texts = [prompts.tokenizer.decode(ids) for ids in prompt.documents]
    assert len(texts) == 3 and any(text.startswith("Oslo\n") for text in texts)
    assert any(prompt.behind["neighbours"])
    assert served.catalog.state() == before
    (oslo,) = served.search("capital of Norway", 1, scope=Scope(collection="cities"))
    assert served.prefix_chunks.prefixed([oslo.chunk.chunk_id]) == []
    with (
        pytest.raises(InvalidRequest, match="no collection 'towns'"),
        of_collection("towns", prompts, settings, max_context=1024),
    ):
        pass
    served.close()
    shared.close()


def test_a_database_that_is_away_is_named(tmp_path: Path) -> None:
    settings = load(data_dir=tmp_path / "data", database="postgresql://127.0.0.1:1/none")
    prompts = PromptBuilder(make_folder(tmp_path / "model", fmt=FORMAT), settings)
    with (
        pytest.raises(InvalidSetting, match="KVSTITCH_DATABASE"),
        of_collection("cities", prompts, settings, max_context=1024),
    ):
        pass
