"""Every call of the client against a gateway, blocking and as coroutines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstitch.client import Done, Job, Sources, Token, errors
from kvstitch.service.messages.replies import Failed
from tests.fakes.models import HashingEmbedder
from tests.retriever.http_endpoint import endpoint
from tests.service.gateway.model_folders import make_folder
from tests.service.gateway.rig import DOCUMENTS, Rig, running, until

NORWAY = "What is the capital of Norway?"


def test_generate_explain_and_search(rig: Rig, client: Any) -> None:
    expected = rig.ask(top_k=2).json()
    answer = client.generate(NORWAY, top_k=2, filter=None)
    assert answer.text == expected["text"] and answer.citations[0].doc_id == "oslo"
    assert [c.score for c in answer.citations] == [c["score"] for c in expected["citations"]]
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert [d.doc_id for d in answer.cache.documents] == [c.doc_id for c in answer.citations]
    assert answer.raw["id"] == answer.id and answer.timing.total_s > 0
    by_messages = client.generate(messages=[{"role": "user", "content": NORWAY}], top_k=2)
    assert by_messages.text == answer.text
    assert client.explain(NORWAY, top_k=1).documents[0]["doc_id"] == "oslo"
    results = client.search(NORWAY, retrieval="dense", top_k=2)
    assert results.ranked_by == "cosine" and results.results[0].text == DOCUMENTS[0]["text"]
    floor = results.results[0].score + 0.1
    none = client.search(NORWAY, retrieval="dense", min_score=floor)
    assert none.results == [] and "min_score" in none.warnings[0]


def test_a_stream_has_events_and_then_a_result(client: Any) -> None:
    whole = client.generate(NORWAY)
    with client.stream(NORWAY) as stream:
        with pytest.raises(errors.UnexpectedResponse, match="not read to its end"):
            _ = stream.result
        events = list(stream)
    assert isinstance(events[0], Sources)
    cited = [citation.chunk_id for citation in events[0].citations]
    assert cited == [citation.chunk_id for citation in whole.citations]
    assert stream.result.citations == whole.citations
    assert stream.result.attributions == whole.attributions != []
    assert isinstance(events[-1], Done) and events[-1].answer is stream.result
    assert all(isinstance(event, Token) for event in events[1:-1])
    assert "".join(event.text for event in events[1:-1]) == whole.text == stream.result.text


def test_leaving_a_stream_ends_the_answer(rig: Rig, client: Any) -> None:
    with client.stream(NORWAY) as stream:
        for _ in stream:
            break
    until(lambda: rig.gateway.limiter.in_flight == 0, "the answer was left")


def test_an_error_in_a_stream_is_raised_as_the_services(rig: Rig, client: Any) -> None:
    assert rig.worker is not None
    rig.worker.refuse = Failed("", "worker_fault", "the engine stumbled")
    try:
        with pytest.raises(errors.ServerError, match="stumbled") as caught:
            list(client.stream(NORWAY))
    finally:
        rig.worker.refuse = None
    assert caught.value.code == "worker_fault" and caught.value.status is None
    assert caught.value.request_id


def test_an_error_before_a_stream_has_its_status_and_field(client: Any) -> None:
    with pytest.raises(errors.NotFound) as caught:
        client.stream("x", documents=["nobody"])
    assert caught.value.status == 404 and caught.value.field == "documents"


def test_embeddings_are_the_services(client: Any) -> None:
    texts = ["the red fox", "an owl"]
    found = client.embeddings(texts)
    assert found.vectors == HashingEmbedder().embed(texts)[0].tolist()
    assert (found.model, found.tokens) == ("hashing", 5)


def test_documents_go_in_and_out(client: Any, kind: Any) -> None:
    name = f"moon-{kind.__name__}"
    seen: list[Job] = []
    job = client.ingest(
        [{"doc_id": f"d{n}", "text": f"Crater {n}.", "metadata": {"n": n}} for n in range(5)],
        collection=name,
        on_progress=seen.append,
        timeout_s=30,
    )
    assert job.state == "succeeded" and job.progress.done == 5 and job.ended
    done = [one.progress.done for one in seen]
    assert seen[-1] == job and done == sorted(done)
    assert client.get_job(job.job_id) == job
    assert job.job_id in [j.job_id for j in client.list_jobs(state="succeeded", limit=3)]
    documents = list(client.list_documents(collection=name))
    assert [d.doc_id for d in documents] == [f"d{n}" for n in range(5)]
    assert len(list(client.list_documents(collection=name, limit=2))) == 2
    one = client.get_document("d3", collection=name)
    assert one.text == "Crater 3." and one.metadata == {"n": 3}
    assert client.delete_document("d3", collection=name).doc_ids == ["d3"]
    with pytest.raises(errors.NotFound):
        client.get_document("d3", collection=name)
    receipt = client.delete_documents(filter={"n": {"lt": 2}}, collection=name)
    assert receipt.doc_ids == ["d0", "d1"]
    assert client.get_receipt(receipt.receipt_id).documents == 2
    assert client.pin_document("d2", collection=name).pinned
    assert not client.unpin_document("d2", collection=name).pinned
    assert name in [one.collection for one in client.collections()]
    assert client.delete_documents(["d2", "gone"], collection=name).documents == 1
    assert client.delete_collection(name).doc_ids == ["d4"]
    assert name not in [one.collection for one in client.collections()]


def test_lines_are_documents(client: Any, kind: Any) -> None:
    name = f"lines-{kind.__name__}"
    lines = [b'{"doc_id": "one", "text": "One."}', b'{"doc_id": "two", "text": "Two."}']
    job = client.wait(client.precompute_lines(lines, collection=name))
    assert job.state == "succeeded" and job.progress.done == 2
    assert client.get_document("two", collection=name).text == "Two."
    assert client.get_job(job.job_id, errors=1).errors == []


def test_pages_are_followed_to_their_end(
    client: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstitch.client.async_client.PAGE_ITEMS", 2)
    name = f"pages-{kind.__name__}"
    documents = [{"doc_id": f"{n}", "text": f"Text {n}."} for n in range(5)]
    client.ingest(documents, collection=name)
    found = [d.doc_id for d in client.list_documents(collection=name)]
    assert found == [d["doc_id"] for d in documents]
    assert len(list(client.list_documents(collection=name, limit=3))) == 3


def test_files_are_read_and_named(client: Any, kind: Any, tmp_path: Path) -> None:
    name = f"files-{kind.__name__}"
    (tmp_path / "kettle.md").write_text("# Kettle\n\nIt boils.")
    files = [tmp_path / "kettle.md", ("a/toaster.html", b"<h1>Toaster</h1><p>It toasts.</p>")]
    job = client.ingest_files(files, collection=name, metadata={"year": 2024})
    assert job.state == "succeeded"
    stored = client.get_document("a/toaster.html", collection=name)
    assert stored.title == "Toaster" and stored.metadata["year"] == 2024
    assert client.get_document("kettle.md", collection=name).text == "# Kettle\n\nIt boils."
    with pytest.raises(errors.InvalidRequest, match="two files are named 'x'"):
        client.precompute_files([("x", b"1"), ("x", b"2")])


def test_the_same_key_is_the_same_job(client: Any, kind: Any) -> None:
    documents = [{"doc_id": "one", "text": "One."}]
    key = f"key-{kind.__name__}"
    first, second = (client.precompute(documents, idempotency_key=key) for _ in range(2))
    assert first.job_id == second.job_id
    other = client.precompute(documents)
    assert other.job_id != first.job_id
    assert client.wait(other.job_id).state == client.wait(first).state == "succeeded"


def test_a_job_that_has_ended_cannot_be_cancelled(client: Any) -> None:
    job = client.ingest([{"doc_id": "brief", "text": "Brief."}])
    with pytest.raises(errors.Conflict) as caught:
        client.cancel_job(job.job_id)
    assert caught.value.code == "conflict"


def test_methods_and_status(client: Any) -> None:
    methods = client.methods()
    assert "a3" in [one.name for one in methods.fusion] and methods.defaults["fusion"]
    assert client.status()["state"] == "ready"


def test_rerank_sorts_texts(kind: Any, tmp_path: Path, data: Path) -> None:
    def answer(path: str, body: Any) -> tuple[int, Any]:
        return 200, [{"index": i, "score": len(text)} for i, text in enumerate(body["texts"])]

    with (
        endpoint(answer) as model,
        running(make_folder(tmp_path / "model"), data, reranker_url=model.url) as rig,
    ):
        client = kind(rig.url)
        found = client.rerank("longest", ["a", "abc", "ab"], top_n=2)
        client.close()
    assert [(r.index, r.relevance_score) for r in found.results] == [(1, 3.0), (2, 2.0)]
    assert found.results[0].document is not None and found.results[0].document.text == "abc"


def test_rerank_says_what_to_set(client: Any) -> None:
    with pytest.raises(errors.NoReranker, match="KVSTITCH_RERANKER_URL"):
        client.rerank("x", ["a"])


@pytest.mark.parametrize("name", ["", "..", "a/../b"])
def test_a_name_that_leads_elsewhere_is_refused(client: Any, name: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        client.get_document(name)
