"""One long document keeps nobody waiting, says how far it is, and can be cancelled."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvstitch.retriever.embedders import CountedVectors
from kvstitch.service.gateway.documents.indexing_stage import LONG_BYTES
from kvstitch.service.gateway.documents.parsing.parser import ParsedDocument
from kvstitch.service.gateway.search import async_retriever
from tests.fakes.models import HashingEmbedder
from tests.service.gateway.rig import Rig, running, until

NOTE = {"doc_id": "note", "text": "The fjord is deep."}


class SlowEmbedder(HashingEmbedder):
    """Takes long: a book takes half a minute, and no test here waits for its end."""

    texts = 0

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        self.texts += len(texts)
        time.sleep(0.02 * len(texts))
        return super().embed(texts)


@pytest.fixture
def embedder() -> SlowEmbedder:
    return SlowEmbedder()


@pytest.fixture
def rig(folder: Path, data: Path, embedder: SlowEmbedder) -> Iterator[Rig]:
    with running(folder, data, embedder=embedder) as rig:
        yield rig


def book(doc_id: str = "book", size: int = LONG_BYTES) -> dict[str, str]:
    """More than a thousand chunks."""
    line = "So many words about nothing in particular, number %d.\n"
    return {"doc_id": doc_id, "text": "".join(line % n for n in range(size // 50))}


def post(rig: Rig, *documents: dict[str, str]) -> str:
    response = rig.http.post("/admin/precompute", json={"documents": list(documents)})
    assert response.status_code == 202, response.text
    return str(response.json()["job_id"])


def job(rig: Rig, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = rig.http.get(f"/admin/jobs/{job_id}").json()
    return found


def embedding(rig: Rig, job_id: str) -> dict[str, Any]:
    """The step of its long document, once some of it is embedded."""
    return until(
        lambda: next((s for s in job(rig, job_id)["steps"] if s["done"]), None), "embedding"
    )


def test_small_documents_overtake_a_long_one_which_says_how_far_it_is(rig: Rig) -> None:
    long = post(rig, book(), {"doc_id": "beside", "text": "Of the same job."})
    step = embedding(rig, long)
    assert step["step"] == "embedding" and step["total"] > 1000 and step["eta_s"] > 5
    assert rig.finished(post(rig, NOTE))["state"] == "succeeded"
    assert rig.ask().json()["citations"]
    after = job(rig, long)
    assert after["state"] == "running" and after["progress"]["done"] == 1
    assert step["done"] <= after["steps"][0]["done"] < after["steps"][0]["total"]


def test_long_ones_take_turns_and_the_others_wait_and_say_so(rig: Rig) -> None:
    ids = [post(rig, book(f"book-{n}")) for n in range(5)]
    until(lambda: sum(bool(job(rig, each)["steps"]) for each in ids) == 5, "all are known")
    embedding(rig, ids[0])
    embedding(rig, ids[1])
    assert "come first" in job(rig, ids[4])["waiting"]
    assert rig.finished(post(rig, NOTE))["state"] == "succeeded"


def test_cancelling_ends_the_work_at_once(rig: Rig, embedder: SlowEmbedder) -> None:
    long = post(rig, book())
    step = embedding(rig, long)
    assert rig.http.delete(f"/admin/jobs/{long}").json()["state"] == "cancelled"
    assert job(rig, long)["steps"] == []

    def at_rest() -> bool:
        before = embedder.texts
        time.sleep(0.8)  # twice what a part takes
        return embedder.texts == before

    until(at_rest, "the part that was under way has ended")
    assert embedder.texts < step["total"]
    assert rig.http.get("/admin/documents/book").status_code == 404


def test_a_cancelled_text_is_not_held_until_garbage_is_collected(rig: Rig) -> None:
    """What hundreds of cancelled books hold would be seldom collected."""

    def held() -> bool:
        # Asked for its class with `isinstance`, a module of torch warns.
        documents = [each for each in gc.get_objects() if type(each) is ParsedDocument]
        return any(each.doc_id == "let go" for each in documents)

    gc.disable()
    try:
        long = post(rig, book("let go"))
        embedding(rig, long)
        until(held, "the text is there")
        rig.http.delete(f"/admin/jobs/{long}").raise_for_status()
        until(lambda: not held(), "the text is let go")
    finally:
        gc.enable()


def test_memory_is_given_back_when_nothing_is_left_to_index(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after short documents; and not by a thread of low priority, which would keep the C
    library's lock from all others while it does not run."""
    niceness: list[int] = []

    def give_back() -> None:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    monkeypatch.setattr(async_retriever, "give_back", give_back)
    assert rig.finished(post(rig, NOTE))["state"] == "succeeded"
    until(lambda: niceness, "memory is given back")
    assert set(niceness) == {os.getpriority(os.PRIO_PROCESS, os.getpid())}


def test_the_next_revision_waits_for_a_long_one_and_wins(rig: Rig) -> None:
    long = post(rig, book("same", LONG_BYTES + 1000))
    embedding(rig, long)
    short = post(rig, {"doc_id": "same", "text": "Short."})
    assert rig.finished(post(rig, NOTE))["state"] == "succeeded"
    assert job(rig, short)["state"] == "queued"
    rig.http.delete(f"/admin/jobs/{long}")
    assert rig.finished(short)["state"] == "succeeded"
    assert rig.http.get("/admin/documents/same").json()["text"] == "Short."


def test_a_long_one_is_stored_as_any_other(folder: Path, data: Path) -> None:
    with running(folder, data) as rig:
        done = rig.finished(post(rig, book(), NOTE))
        assert done["state"] == "succeeded" and done["progress"]["done"] == 2
        assert done["chunks"] > 1000 and done["steps"] == []
        assert rig.worker is not None and len(rig.worker.stored) == done["chunks"]
        found = rig.http.get("/admin/documents/book").json()
        assert found["text"] == book()["text"]
        again = rig.finished(post(rig, book()))
        assert again["changes"] == {"unchanged": 1}


def test_work_that_a_restart_has_ended_begins_again(folder: Path, data: Path) -> None:
    with running(folder, data, embedder=SlowEmbedder()) as rig:
        long = post(rig, book())
        embedding(rig, long)
    with running(folder, data) as rig:
        assert rig.finished(long)["state"] == "succeeded"
