"""Chunks that are precomputed behind others: asked for as they were stored, purged completely."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from service.messages.requests import ChunkTokens, Generate, Precompute, Purge
from tests.fakes.worker import FakeWorker, stored_key
from tests.service.gateway.model_folders import byte_tokenizer
from tests.service.gateway.rig import Rig, running, until

TOPICS = ("fox forest hunts", "whale sea sings", "bread oven flour")
CORPUS = [
    {"doc_id": f"{topic.split()[0]}-{n}", "text": f"{topic} number{n}"}
    for n in range(3)
    for topic in TOPICS
]
COPIES = 2 * len(CORPUS)


@pytest.fixture(params=["primer", "neighbours"])
def rig(request: pytest.FixtureRequest, folder: Path, data: Path) -> Iterator[Rig]:
    with running(folder, data, prefix_mode=request.param, companions=2) as opened:
        opened.ingest(CORPUS)
        until(lambda: len(fake(opened).stored) >= COPIES - 1, "every chunk alone, too")
        until(lambda: settled(opened), "nothing left to do")
        yield opened


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def settled(rig: Rig) -> bool:
    kind = rig.gateway.prompts.prefix_mode
    return not rig.gateway.retriever.retriever.prefix_chunks.open(kind, 1)  # type: ignore[arg-type]


def asked(rig: Rig, question: str = "fox forest hunts", top_k: int = 4) -> Sequence[ChunkTokens]:
    answer = rig.ask(question=question, top_k=top_k)
    assert answer.status_code == 200, answer.text
    message = fake(rig).seen(Generate)[-1]
    assert isinstance(message, Generate)
    return message.documents


def text_of(rig: Rig, doc_id: str) -> tuple[int, ...]:
    [chunk] = rig.gateway.retriever.catalog.chunks_of(doc_id)
    return tuple(rig.gateway.prompts.segment(chunk))


def holds(stored: tuple[int, ...], ids: tuple[int, ...]) -> bool:
    return any(stored[at : at + len(ids)] == ids for at in range(len(stored)))


def test_a_prompt_asks_for_what_was_stored(rig: Rig) -> None:
    """The first chunk behind S alone, all others behind two more."""
    for question in TOPICS:
        first, *others = asked(rig, question)
        assert not first.behind
        assert all(len(other.behind) in (1, 2) for other in others), "a primer's own have one"
        assert all(stored_key(chunk) in fake(rig).stored for chunk in (first, *others))


def test_inline_documents_stand_behind_nothing(rig: Rig) -> None:
    inline = [{"text": "a fox"}, {"text": "a whale"}]
    assert rig.ask(inline_documents=inline).status_code == 200
    [*_, message] = fake(rig).seen(Generate)
    assert isinstance(message, Generate)
    assert [chunk.behind for chunk in message.documents] == [[], []]


def test_a_deleted_text_is_in_nothing_that_is_stored(rig: Rig) -> None:
    """Not in what stood behind it either. That is computed again behind others."""
    everyones = asked(rig)[1].behind[0]
    [doc_id] = [d["doc_id"] for d in CORPUS if text_of(rig, d["doc_id"]) == tuple(everyones)]
    gone = text_of(rig, doc_id)
    assert sum(holds(stored, gone) for stored in list(fake(rig).stored)) > 2
    receipt = rig.http.delete(f"/admin/documents/{doc_id}").json()
    assert receipt["state"] == "completed" and receipt["chunks"] == 1
    assert receipt["kv"]["memory"] > 2, "its own KV, and that of others behind it"
    assert not any(holds(stored, gone) for stored in list(fake(rig).stored))
    until(lambda: settled(rig), "others are computed again")
    assert not any(holds(stored, gone) for stored in list(fake(rig).stored))
    for question in TOPICS:
        assert all(stored_key(chunk) in fake(rig).stored for chunk in asked(rig, question))


def test_a_changed_document_leaves_nothing_of_its_old_text(rig: Rig) -> None:
    gone = {doc["doc_id"]: text_of(rig, doc["doc_id"]) for doc in CORPUS[:3]}
    rig.ingest([{"doc_id": doc_id, "text": f"quite another text {doc_id}"} for doc_id in gone])
    until(lambda: fake(rig).seen(Purge) and settled(rig), "purged and computed again")
    for ids in gone.values():
        assert not any(holds(stored, ids) for stored in list(fake(rig).stored))


def test_a_prefix_chunk_deleted_while_a_chunk_is_computed_leaves_nothing(rig: Rig) -> None:
    gone = text_of(rig, "fox-0")
    retriever = rig.gateway.retriever.retriever

    def meanwhile(chunk: ChunkTokens) -> None:
        retriever.delete(["fox-0"])

    fake(rig).on_chunk = meanwhile
    rig.ingest([{"doc_id": "new", "text": "fox forest hunts again"}])
    fake(rig).on_chunk = lambda chunk: None
    # Only the catalog was told of this deletion; what is computed after it must not need it.
    new = [stored for stored in list(fake(rig).stored) if holds(stored, text_of(rig, "new"))]
    until(lambda: not any(holds(stored, gone) for stored in new if stored in fake(rig).stored),
          "purged")  # fmt: skip


def test_another_mode_computes_everything_again(folder: Path, data: Path) -> None:
    with running(folder, data) as first:
        first.ingest(CORPUS)
        assert len(fake(first).stored) == len(CORPUS)
        stored = set(fake(first).stored)
    worker = FakeWorker("")
    worker.stored = stored
    with running(folder, data, worker=worker, prefix_mode="primer", companions=2) as again:
        until(lambda: settled(again) and len(worker.stored) > len(CORPUS), "without being asked")
        for question in TOPICS:
            assert all(stored_key(chunk) in worker.stored for chunk in asked(again, question))


def test_a_small_collection_that_grows_gets_longer_prefixes(folder: Path, data: Path) -> None:
    with running(folder, data, prefix_mode="neighbours", companions=2) as rig:
        rig.ingest(CORPUS[:1])
        until(lambda: settled(rig), "stored")
        rig.ingest(CORPUS[1:])
        until(lambda: settled(rig), "stored")
        rig.ingest(CORPUS)  # unchanged
        until(lambda: settled(rig), "stored")
        assert all(len(chunk.behind) == 2 for chunk in asked(rig)[1:])
        assert len(fake(rig).stored) == COPIES, "what stood behind fewer was purged"


def test_a_document_that_kills_the_worker_every_time_is_given_up(folder: Path, data: Path) -> None:
    """First by its job, then in spare time; it does not keep the worker dying for ever."""
    token = byte_tokenizer().encode("☠").ids[0]
    fake_worker = "tests.fakes.worker"
    command = (sys.executable, "-m", fake_worker, "--crash-token", str(token))
    with running(folder, data / "d", command=command, prefix_mode="primer") as rig:
        assert rig.ingest([{"doc_id": "bad", "text": "this one ☠"}])["state"] == "dead"
        until(lambda: rig.http.get("/status").json()["corpus"]["complete"], "given up")
        assert rig.metric("kvstitch_worker_restarts_total") == 6


def test_what_stands_behind_the_same_is_sent_together(folder: Path, data: Path) -> None:
    """However the documents come, so that the worker can compute many chunks at once."""
    documents = [
        {"doc_id": f"{topic.split()[0]}-{n}", "text": f"{topic} number{n}"}
        for n in range(30)
        for topic in TOPICS
    ]
    with running(folder, data, prefix_mode="primer", companions=2) as rig:
        rig.ingest(documents)
        sent = [
            tuple(tuple(ids) for ids in chunk.behind)
            for message in fake(rig).seen(Precompute)
            if isinstance(message, Precompute)
            for chunk in message.documents
        ]
        behind = [ids for ids in sent if ids][: len(documents)]  # then the other copies
        changes = sum(a != b for a, b in pairwise(behind))
        assert len(set(behind)) >= 3
        assert changes == len(set(behind)) - 1


def test_a_document_that_kills_the_worker_does_not_stop_the_others(
    folder: Path, data: Path
) -> None:
    """Their second copies are made in one call with its own."""
    token = byte_tokenizer().encode("☠").ids[0]
    fake_worker = "tests.fakes.worker"
    command = (sys.executable, "-m", fake_worker, "--crash-token", str(token))
    with running(folder, data / "d", command=command, prefix_mode="primer") as rig:
        bad = {"doc_id": "bad", "text": "this one ☠"}
        assert rig.ingest([*CORPUS, bad])["state"] == "dead"
        until(lambda: rig.http.get("/status").json()["corpus"]["complete"], "given up")
        assert settled(rig)
