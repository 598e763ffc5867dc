"""Chunks that are precomputed behind others: asked for as they were stored, purged completely."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

from kvstitch.retriever import Chunk, Scope
from kvstitch.retriever.prefixes.prefix_choice import PrefixKind
from kvstitch.service.gateway.auth.access import ANONYMOUS
from kvstitch.service.gateway.documents.chunk_kv import ChunkKV
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.messages.requests import ChunkTokens, Generate, Precompute, Purge
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


@pytest.fixture(params=[("primer", 2), ("neighbours", 1)])
def rig(request: pytest.FixtureRequest, folder: Path, data: Path) -> Iterator[Rig]:
    mode, primers = request.param
    with running(folder, data, prefix_mode=mode, companions=2, primers=primers) as opened:
        opened.ingest(CORPUS)
        until(lambda: len(fake(opened).stored) >= COPIES - 1, "every chunk alone, too")
        until(lambda: settled(opened), "nothing left to do")
        yield opened


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def settled(rig: Rig) -> bool:
    kind = rig.gateway.prompts.prefix_mode
    return not rig.gateway.retriever.retriever.prefix_chunks.open(kind, 1, count=2)  # type: ignore[arg-type]


def complete(rig: Rig) -> bool:
    return bool(rig.http.get("/status").json()["corpus"]["complete"])


def prefixes(rig: Rig, doc_ids: Sequence[str]) -> dict[str, list[list[int]]]:
    """What prompts take each document behind, where it is not the first."""
    chosen = rig.gateway.retriever.retriever.prefix_chunks
    catalog, segment = rig.gateway.retriever.catalog, rig.gateway.prompts.segment
    numbers = {catalog.chunks_of(doc_id)[0].chunk_id: doc_id for doc_id in doc_ids}
    found: dict[int, list[list[Chunk]]] = {}
    for kind in get_args(PrefixKind):
        found |= chosen.of(list(numbers), kind, made=True)
    return {
        numbers[i]: [segment(chunk) for prefix in each for chunk in prefix]
        for i, each in found.items()
    }


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
    with running(
        folder, data, worker=worker, prefix_mode="primer", companions=2, primers=1
    ) as again:
        until(lambda: settled(again) and len(worker.stored) > len(CORPUS), "without being asked")
        for question in TOPICS:
            assert all(stored_key(chunk) in worker.stored for chunk in asked(again, question))


def test_while_another_mode_is_made_ready_prompts_take_what_is_stored(
    folder: Path, data: Path
) -> None:
    """Chunks of mode system are what a primer's mode stores alone; no answer waits for more."""
    with running(folder, data, prefix_mode="system") as first:
        first.ingest(CORPUS)
        stored = set(fake(first).stored)
    worker = FakeWorker("", chunks_held=True)  # until it was asked in between
    worker.stored = stored
    with running(
        folder, data, worker=worker, prefix_mode="primer", companions=2, primers=1
    ) as again:
        seen = set()
        assert not settled(again)
        while not settled(again):
            for question in TOPICS:
                for chunk in asked(again, question)[1:]:
                    assert stored_key(chunk) in worker.stored
                    seen.add(len(chunk.behind))
            worker.chunks_held = False
        assert seen >= {0}, "it was asked in between"
        assert all(chunk.behind for chunk in asked(again)[1:])


def test_a_collection_that_grows_gets_its_primers_by_itself(folder: Path, data: Path) -> None:
    """Nothing is handed in again: what was too small for primers is looked at again."""
    with running(folder, data, prefix_mode="primer", companions=3, primers=1) as rig:
        rig.ingest(CORPUS[:2])
        until(lambda: complete(rig), "stored")
        first, second = asked(rig)
        assert first.behind == [] and len(second.behind[0]) > 100, "neutral passages"
        more = [
            {"doc_id": f"{topic.split()[0]}-{n}", "text": f"{topic} number{n}"}
            for n in range(3, 17)
            for topic in TOPICS
        ]
        rig.ingest(more)
        until(lambda: complete(rig), "stored again")
        names = [doc["doc_id"] for doc in (*CORPUS[:2], *more)]
        behind = prefixes(rig, names)
        assert {len(ids) for ids in behind.values()} <= {2, 3}, "a primer's own have two"
        assert sum(len(ids) == 3 for ids in behind.values()) >= len(names) - 3
        copies = {stored_key(ChunkTokens(0, list(text_of(rig, name)), ids))
                  for name, ids in behind.items()}  # fmt: skip
        assert copies <= fake(rig).stored
        alone = {text_of(rig, name) for name in names}
        primers = {tuple(token for each in ids for token in each) for ids in behind.values()}
        left = fake(rig).stored - copies - alone - primers
        assert not any(holds(stored, text_of(rig, name)) for stored in left for name in names)


def test_what_stood_behind_fewer_is_purged_when_a_collection_grows(
    folder: Path, data: Path
) -> None:
    with running(folder, data, prefix_mode="neighbours", companions=2, primers=1) as rig:
        rig.ingest(CORPUS[:2])
        until(lambda: complete(rig), "stored")
        assert {len(ids) for ids in prefixes(rig, [d["doc_id"] for d in CORPUS[:2]]).values()} == {
            1
        }
        rig.ingest(CORPUS[2:])
        until(lambda: complete(rig), "stored")
        assert all(len(chunk.behind) == 2 for chunk in asked(rig)[1:])
        until(lambda: len(fake(rig).stored) == COPIES, "what stood behind fewer was purged")


@pytest.mark.parametrize("mode", ["primer", "neighbours"])
def test_nobody_stands_behind_what_its_readers_may_not_read(
    folder: Path, data: Path, mode: str
) -> None:
    """Also in what the worker is asked to compute, and in what prompts ask for."""
    readers = ("", "finance", "staff")
    own = {
        f"{group}-{n}": IngestDocument(
            f"{group}-{n}", "default", "text" if n % 2 else "md",
            f"fox forest hunts {group} number{n}".encode(), "t", readers=group,
        )
        for n in range(5)
        for group in readers
    }  # fmt: skip
    with running(folder, data, prefix_mode=mode, companions=2, primers=1) as rig:

        async def sent() -> AsyncIterator[IngestDocument]:
            for document in own.values():
                yield document

        job = rig.call(lambda: rig.gateway.corpus.jobs.submit(ANONYMOUS, sent()))
        assert rig.finished(job.job_id)["state"] == "succeeded"
        until(lambda: complete(rig), "all computed")
        group_of = {text_of(rig, name): document.readers for name, document in own.items()}
        computed = [
            chunk
            for message in fake(rig).seen(Precompute)
            if isinstance(message, Precompute)
            for chunk in message.documents
            if chunk.behind
        ]
        assert {group_of[tuple(chunk.ids)] for chunk in computed} == set(readers)
        for chunk in (*computed, *asked(rig, top_k=8)):
            allowed = {"", group_of[tuple(chunk.ids)]}
            assert {group_of[tuple(ids)] for ids in chunk.behind} <= allowed


def test_a_document_that_kills_the_worker_every_time_is_given_up(folder: Path, data: Path) -> None:
    """By its job, and not again in spare time."""
    token = byte_tokenizer().encode("☠").ids[0]
    fake_worker = "tests.fakes.worker"
    command = (sys.executable, "-m", fake_worker, "--crash-token", str(token))
    with running(folder, data / "d", command=command, prefix_mode="primer") as rig:
        assert rig.ingest([{"doc_id": "bad", "text": "this one ☠"}])["state"] == "dead"
        until(lambda: rig.http.get("/status").json()["corpus"]["complete"], "given up")
        assert rig.metric("kvstitch_worker_restarts_total") == 3


def test_of_a_cancelled_job_nothing_is_computed_that_no_question_needs(
    folder: Path, data: Path
) -> None:
    """The worker is away while its documents are indexed; they stay, and are answered from."""
    with running(
        folder, data, heartbeat_timeout_s=1.0, prefix_mode="primer", companions=2, primers=1
    ) as rig:
        rig.lose_worker()
        sent = rig.http.post("/admin/precompute", json={"documents": CORPUS[1:]}).json()
        until(lambda: rig.metric("kvstitch_documents") == len(CORPUS) - 1, "indexed")
        cancelled = rig.http.delete(f"/admin/jobs/{sent['job_id']}").json()
        assert cancelled["progress"]["cancelled"] == len(CORPUS) - 1
        rig.call(fake(rig).start)
        rig.wait_ready()
        rig.ingest(CORPUS[:1])
        until(lambda: complete(rig), "nothing left to do")
        computed = [
            chunk.chunk_id
            for message in fake(rig).seen(Precompute)
            if isinstance(message, Precompute)
            for chunk in message.documents
        ]
        [own] = rig.gateway.retriever.catalog.chunks_of(CORPUS[0]["doc_id"])
        assert set(computed) == {own.chunk_id}, "and what it stands behind, under its number"
        assert len(asked(rig)) == 4
        rig.ingest(CORPUS)
        until(lambda: settled(rig), "sent again, they are stored")
        assert set(prefixes(rig, [document["doc_id"] for document in CORPUS])) == {
            document["doc_id"] for document in CORPUS
        }


def test_what_stands_behind_the_same_is_sent_together(folder: Path, data: Path) -> None:
    """However the documents come, so that the worker can compute many chunks at once."""
    documents = [
        {"doc_id": f"{topic.split()[0]}-{n}", "text": f"{topic} number{n}"}
        for n in range(30)
        for topic in TOPICS
    ]
    with running(folder, data, prefix_mode="primer", companions=2, primers=1) as rig:
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


LONG = {
    "doc_id": "long",
    "text": "\n\n".join(f"fox forest hunts part{n} of long" for n in range(5)),
}


def of_long(rig: Rig) -> list[tuple[int, ...]]:
    chunks = rig.gateway.retriever.catalog.chunks_of("long")
    return [tuple(rig.gateway.prompts.segment(chunk)) for chunk in chunks]


def test_chunks_of_a_document_stand_behind_the_earlier_ones(folder: Path, data: Path) -> None:
    with running(
        folder, data, prefix_mode="primer", companions=2, primers=1, chunk_tokens=48
    ) as rig:
        rig.ingest([*CORPUS, LONG])
        until(lambda: settled(rig), "all are stored behind their prefixes")
        pieces = of_long(rig)
        assert len(pieces) == 5
        found = asked(rig, "fox forest hunts part1 part2 part3 part4 of long")
        assert [tuple(chunk.ids) for chunk in found] == pieces[1:], "in the document's order"
        assert not found[0].behind, "the first one of a prompt is exact behind S"
        for place, chunk in enumerate(found[1:], 2):
            assert [tuple(ids) for ids in chunk.behind] == pieces[:place]
            assert not chunk.also_behind
        assert all(stored_key(chunk) in fake(rig).stored for chunk in found)
        changed = LONG["text"].replace("part4", "another")
        rig.ingest([{**LONG, "text": changed}])
        until(lambda: fake(rig).seen(Purge) and settled(rig), "purged and computed again")
        assert not any(holds(stored, pieces[4]) for stored in list(fake(rig).stored))
        assert rig.http.delete("/admin/documents/long").json()["state"] == "completed"
        for ids in pieces:
            assert not any(holds(stored, ids) for stored in list(fake(rig).stored))


def test_a_long_document_is_purged_in_proportion_to_its_length(folder: Path, data: Path) -> None:
    """Its chunks stand in one another's prefixes: what is stored of them is named once."""
    text = "\n\n".join(f"fox forest hunts part{n} of long" for n in range(400))
    with running(
        folder, data, prefix_mode="primer", companions=2, primers=1, chunk_tokens=48
    ) as rig:
        rig.ingest([*CORPUS, {"doc_id": "long", "text": text}])
        until(lambda: settled(rig), "all are stored behind their prefixes")
        pieces = of_long(rig)
        assert len(pieces) == 400
        assert rig.http.delete("/admin/documents/long").json()["state"] == "completed"
        purged = [
            stored_key(chunk)
            for message in fake(rig).seen(Purge)
            if isinstance(message, Purge)
            for chunk in message.documents
        ]
        assert len(purged) == len(set(purged)) <= 3 * len(pieces)  # 20 * before
        of_it = [stored for stored in list(fake(rig).stored) if holds(stored, pieces[0])]
        assert not of_it and len(fake(rig).stored) < COPIES + len(CORPUS)


def test_of_a_deleted_collection_each_copy_is_purged_once(rig: Rig) -> None:
    """Though most of its documents stand in the prefixes of others."""
    stored = len(fake(rig).stored)
    receipt = rig.http.delete("/admin/collections/default").json()
    assert (receipt["state"], receipt["chunks"]) == ("completed", len(CORPUS))
    purged = [
        stored_key(chunk)
        for message in fake(rig).seen(Purge)
        if isinstance(message, Purge)
        for chunk in message.documents
    ]
    assert len(purged) == len(set(purged)) >= stored and not fake(rig).stored


def test_a_long_document_that_changes_is_read_once_for_all_its_old_chunks(
    folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each of them it took minutes, during which no document could be changed."""
    parts = [f"fox forest hunts part{n} of long" for n in range(400)]
    with running(folder, data, prefix_mode="system", chunk_tokens=48) as rig:
        rig.ingest([{"doc_id": "long", "text": "\n\n".join(parts)}])
        purges = rig.gateway.corpus.ingestion._purges
        of, read = purges._chunks.of, []

        async def counted(scope: Scope, doc_ids: Sequence[str]) -> list[ChunkKV]:
            read.append(doc_ids)
            return await of(scope, doc_ids)

        monkeypatch.setattr(purges._chunks, "of", counted)
        parts[7] = "quite another text"
        rig.ingest([{"doc_id": "long", "text": "\n\n".join(parts)}])
        until(lambda: not purges._store.pending_purges(1), "purged")
        assert len(read) < 20
        assert fake(rig).stored == set(of_long(rig)), "and what is as before is still there"


def test_a_text_in_many_prefixes_is_held_once(folder: Path, data: Path) -> None:
    """A book's chunks with their prefixes took a gigabyte."""
    text = "\n\n".join(f"fox forest hunts part{n} of long" for n in range(100))
    with running(
        folder, data, prefix_mode="primer", companions=2, primers=1, chunk_tokens=48
    ) as rig:
        rig.ingest([{"doc_id": "long", "text": text}])
        kv = rig.gateway.corpus.ingestion._chunks
        for made in (rig.call(lambda: kv.to_store(Scope(), ["long"], 8192))[0],
                     rig.call(lambda: kv.to_purge(Scope(), ["long"]))):  # fmt: skip
            lists = [
                ids
                for each in made
                for copy in each.copies
                for ids in (copy.ids, *(ids for prefix in copy.prefixes for ids in prefix))
            ]
            assert len(lists) > 1000
            assert len({id(ids) for ids in lists}) <= 100


def test_by_setting_they_all_have_primers(folder: Path, data: Path) -> None:
    with running(
        folder, data, prefix_mode="primer", companions=2, primers=1, chunk_tokens=48,
        document_prefix=0,
    ) as rig:  # fmt: skip
        rig.ingest([*CORPUS, LONG])
        until(lambda: settled(rig), "all are stored behind their prefixes")
        found = asked(rig, "fox forest hunts part1 part2 part3 part4 of long")
        assert len({tuple(map(tuple, chunk.behind)) for chunk in found[1:]}) < 3
