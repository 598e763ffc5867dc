"""A dozen documents are prefilled once; every later prompt of them is put together from that."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.e2e.conftest import Documents
from tests.e2e.service import Service, tiers


def question(document: dict[str, str]) -> str:
    return f"What is {document['title']} known for?"


@pytest.mark.parametrize("fusion", ["pie", "a3"])
def test_other_orders_and_combinations_hit_completely_and_store_nothing(
    service: Service, twelve: Documents, fusion: str
) -> None:
    """Other questions, top_k and restrictions retrieve the same documents in other orders and sets:
    every one comes from the cache, and not one key is new."""
    before = service.settled_metrics()
    orders: set[tuple[str, ...]] = set()
    names = [d["doc_id"] for d in twelve]
    requests: list[tuple[str, dict[str, Any]]] = [
        (question(d), {"top_k": k}) for d, k in zip(twelve, range(1, 7), strict=False)
    ]
    requests += [
        (question(twelve[0]), {"top_k": 3, "documents": list(chosen)})
        for chosen in itertools.combinations(names[:4], 3)
    ]
    for one in (0, 5, 11):  # the same three documents, another one of them asked about
        for asked in (0, 5, 11):
            wanted = [names[0], names[5], names[11]]
            rotated = wanted[one % 3 :] + wanted[: one % 3]
            requests.append((question(twelve[asked]), {"top_k": 3, "documents": rotated}))
    for text, fields in requests:
        answer = service.ask(text, fusion={"method": fusion}, max_tokens=2, **fields)
        cited = tuple(citation["doc_id"] for citation in answer["citations"])
        assert len(cited) == fields["top_k"]
        if "documents" in fields:
            assert set(cited) <= set(fields["documents"])
        orders.add(cited)
        assert "cold" not in tiers(answer), answer["cache"]
        assert answer["cache"]["system"]["tier"] != "cold"
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    by_set: dict[frozenset[str], int] = {}
    for order in orders:
        by_set[frozenset(order)] = by_set.get(frozenset(order), 0) + 1
    assert max(by_set.values()) > 1, "some documents must have come in more than one order"
    assert len(by_set) > 6, "there must have been many combinations"
    after = service.settled_metrics()
    for name in ("kvstitch_store_new_keys_total", "kvstitch_store_already_present_total"):
        assert after.value(name) == before.value(name)
    assert before.value("kvstitch_store_new_keys_total") >= len(twelve)


def test_where_nothing_is_certain_the_answer_is_full_prefill_s(
    service: Service, twelve: Documents
) -> None:
    asked: dict[str, Any] = {"top_k": 3, "max_tokens": 12, "prefix_cache": False}
    before = service.settled_metrics()
    full = service.ask(question(twelve[1]), profile="exact", **asked)
    answer = service.ask(question(twelve[1]), profile="fast", exact_below=100, **asked)
    assert answer["text"] == full["text"] and "cold" not in tiers(answer)
    assert answer["cache"]["exact_from"] == 0 and full["cache"]["exact_from"] is None
    name, after = "kvstitch_answers_taken_over_total", service.settled_metrics()
    assert after.value(name) == after.value(name, at="first_token") == before.value(name) + 1


@pytest.mark.slow
def test_the_same_text_under_another_name_is_the_same_key(
    service: Service, twelve: Documents
) -> None:
    """Keys are content: a copy of a document, ingested under another id, stores nothing, and takes
    nothing with it when it is deleted."""
    before = service.settled_metrics().value("kvstitch_store_new_keys_total")
    service.ingest([{**twelve[3], "doc_id": "a copy"}])
    answer = service.ask(question(twelve[3]), documents=["a copy"], top_k=1, max_tokens=1)
    assert "cold" not in tiers(answer)
    assert service.settled_metrics().value("kvstitch_store_new_keys_total") == before
    service.http.delete("/admin/documents/a copy").raise_for_status()
    answer = service.ask(question(twelve[3]), documents=[twelve[3]["doc_id"]], top_k=1)
    assert "cold" not in tiers(answer), "the copy's deletion took the original's KV"


@pytest.mark.parametrize("fusion", ["pie", "a3", "samkv"])
def test_an_answer_is_the_same_before_and_after_its_chunks_are_stored(
    service: Service, fusion: str
) -> None:
    """To the last digit of its log-probabilities, with `cold: as_stored`."""
    texts = [f"The {fusion} lighthouse number {n} was built by keeper {7 * n}." for n in range(3)]
    fields = {
        "inline_documents": [{"text": text} for text in texts],
        "fusion": {"method": fusion},
        "max_tokens": 6,
        "logprobs": 5,
        "cold": "as_stored",
    }
    first, *later = [service.ask("Who built lighthouse number 2?", **fields) for _ in range(3)]
    assert tiers(first) == ["cold"] * 3
    assert [d["computed"] for d in first["cache"]["documents"]] == ["as_stored"] * 3
    for answer in later:
        assert "cold" not in tiers(answer)
        assert answer["text"] == first["text"] and answer["logprobs"] == first["logprobs"]
