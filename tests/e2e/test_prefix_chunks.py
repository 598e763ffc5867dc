"""Prefix modes in which chunks are computed behind other chunks, on a whole service."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service, tiers

MODES = ("primer", "neighbours")


def until_complete(service: Service) -> None:
    """Every chunk is stored behind others and alone."""
    service.until(
        lambda: service.http.get("/status").json()["corpus"]["complete"],
        "both copies of every chunk",
    )


@pytest.mark.parametrize("mode", MODES)
def test_every_order_hits_completely_also_after_a_restart(
    serve: Serve, twelve: Documents, mode: str
) -> None:
    names = [document["doc_id"] for document in twelve]
    with serve(prefix_mode=mode, companions=2, primers=2) as service:
        service.ingest(twelve)
        until_complete(service)
        for attempt in range(2):
            firsts = set()
            for shift in range(4):
                wanted = names[shift : shift + 3]
                answer = service.ask(
                    f"What is {twelve[shift]['title']} known for?",
                    documents=wanted, top_k=3, fusion={"method": "pie"}, max_tokens=2,
                )  # fmt: skip
                assert "cold" not in tiers(answer), answer["cache"]
                first, *others = answer["cache"]["documents"]
                firsts.add(first["doc_id"])
                assert first["behind"] == 0
                most = 4 if mode == "primer" else 2
                assert all(1 <= other["behind"] <= most for other in others)
                assert mode != "primer" or max(other["behind"] for other in others) > 2
            assert len(firsts) > 1
            if attempt == 0:
                service.kill_nine()
                service.start()


def test_a_repaired_prompt_of_all_rows_is_a_full_prefill(serve: Serve, twelve: Documents) -> None:
    with serve(prefix_mode="primer", companions=2, primers=1) as service:
        service.ingest(twelve)
        until_complete(service)
        question = f"What is {twelve[0]['title']} known for?"
        full = service.ask(question, top_k=4, fusion={"method": "vanilla"}, max_tokens=16)
        whole = service.ask(
            question, top_k=4, fusion={"method": "question_scout", "ratio": 1.0}, max_tokens=16
        )
        one = service.ask(question, top_k=1, fusion={"method": "pie"}, max_tokens=16)
        one_full = service.ask(question, top_k=1, fusion={"method": "vanilla"}, max_tokens=16)
    assert whole["text"] == full["text"]
    assert one["text"] == one_full["text"], "the first chunk of a prompt is exact in every mode"


def test_deleting_a_text_deletes_what_stood_behind_it(serve: Serve, twelve: Documents) -> None:
    with serve(prefix_mode="neighbours", companions=2, primers=1) as service:
        service.ingest(twelve)
        until_complete(service)
        explained = service.ask(f"What is {twelve[0]['title']} known for?", explain=True, top_k=4)
        assert all(d["behind"] for d in explained["documents"][1:])
        own = sum(d["doc_id"] == twelve[3]["doc_id"] for d in explained["documents"])
        receipt = service.http.delete(f"/admin/documents/{twelve[3]['doc_id']}").json()
        assert receipt["state"] == "completed"
        assert sum(receipt["kv"].values()) > 2 * receipt["chunks"] - own
        answer = service.ask(f"What is {twelve[0]['title']} known for?", top_k=4, max_tokens=2)
        assert twelve[3]["doc_id"] not in {c["doc_id"] for c in answer["citations"]}


@pytest.mark.slow
def test_documents_of_another_mode_are_hits_while_they_are_computed_again(
    serve: Serve, twelve: Documents
) -> None:
    """As after an upgrade: what is stored answers, until what is better is stored."""
    with serve(prefix_mode="system") as service:
        service.ingest(twelve)
        service.kill_nine()
        service.configure(prefix_mode="primer", companions=2, primers=1)
        service.start()
        names = [document["doc_id"] for document in twelve]

        def all_behind() -> bool:
            behind: set[int] = set()
            for first in range(0, 12, 3):
                answer = service.ask(
                    "What is it known for?", documents=names[first : first + 3], top_k=3,
                    fusion={"method": "pie"}, max_tokens=1,
                )  # fmt: skip
                assert "cold" not in tiers(answer), answer["cache"]
                behind |= {each["behind"] for each in answer["cache"]["documents"][1:]}
            return 0 not in behind

        service.until(all_behind, "every chunk behind a primer")
        until_complete(service)
