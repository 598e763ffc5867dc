"""/retrieval, with the bodies that Dify sends and reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvstitch_dify.translation import Records, RetrievalRequest
from tests.service.gateway.rig import Rig, running

DOCUMENTS: list[dict[str, Any]] = [
    {"doc_id": "oslo", "title": "Oslo", "text": "Oslo is the capital of Norway.",
     "metadata": {"lang": "en", "year": 2020, "day": "2026-01-02", "tags": ["a"]}},
    {"doc_id": "rome", "text": "Rome is the capital of Italy.",
     "metadata": {"lang": "it", "year": 2024, "day": "2026-03-04", "note": ""}},
    {"doc_id": "plain", "title": "Plain", "text": "The capital of nowhere."},
    {"doc_id": "pay", "title": "Pay", "text": "The capital of the fund.", "readers": ["hr"]},
    {"doc_id": "red", "text": "The capital of hidden things.", "readers": ["hr"],
     "collection": "closed"},
]  # fmt: skip


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    from tests.service.gateway.model_folders import make_folder

    folder = make_folder(tmp_path_factory.mktemp("dify") / "model")
    with running(folder, tmp_path_factory.mktemp("d")) as rig:
        rig.ingest(DOCUMENTS)
        yield rig


@pytest.fixture
def locked(folder: Path, data: Path, create: Callable[..., str]) -> Iterator[Rig]:
    with running(folder, data) as rig:
        rig.http.headers["Authorization"] = f"Bearer {create()}"
        rig.ingest(DOCUMENTS)
        yield rig


def body(**more: Any) -> dict[str, Any]:
    setting = {"top_k": 5, "score_threshold": 0.0}
    return {"retrieval_setting": setting, "query": "capital", "knowledge_id": "default", **more}


def ask(rig: Rig, **more: Any) -> httpx.Response:
    return rig.http.post("/retrieval", json=body(**more))


def test_records(asked: Rig) -> None:
    setting = {"top_k": 1, "score_threshold": 0.1}
    reply = ask(asked, query="Oslo is the capital of Norway.", retrieval_setting=setting)
    assert reply.status_code == 200
    (record,) = reply.json()["records"]
    assert 0.5 < record.pop("score") <= 1.0
    assert reply.json() == {"records": [{**record, "score": reply.json()["records"][0]["score"]}]}
    assert record == {
        "content": "Oslo is the capital of Norway.",
        "title": "Oslo",
        "metadata": {
            "lang": "en", "year": 2020, "day": "2026-01-02", "tags": ["a"],
            "kvstitch_doc_id": "oslo", "kvstitch_start": 0, "kvstitch_end": 30,
        },
    }  # fmt: skip


def test_scores_are_from_0_to_1_and_in_order(asked: Rig) -> None:
    records = ask(asked).json()["records"]
    scores = [record["score"] for record in records]
    assert len(records) == 4 and scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores) and scores[0] > scores[-1]
    assert {record["title"] for record in records} >= {"rome"}, "a title is never empty"
    strict = ask(asked, retrieval_setting={"top_k": 5, "score_threshold": 1.0})
    assert strict.status_code == 200 and strict.json() == {"records": []}


CONDITIONS: list[tuple[str, str, Any, set[str]]] = [
    ("lang", "is", "en", {"oslo"}),
    ("lang", "is not", "en", {"rome", "plain", "pay"}),
    ("lang", "in", ["en", "it"], {"oslo", "rome"}),
    ("lang", "not in", ["en", "it"], {"plain", "pay"}),
    ("lang", "start with", "e", {"oslo"}),
    ("lang", "empty", None, {"plain", "pay"}),
    ("note", "empty", None, {"oslo", "rome", "plain", "pay"}),
    ("lang", "not empty", None, {"oslo", "rome"}),
    ("year", "=", 2020, {"oslo"}),
    ("year", "=", "2020", {"oslo"}),
    ("year", "≠", 2020, {"rome", "plain", "pay"}),
    ("year", ">", 2020, {"rome"}),
    ("year", "<", 2024, {"oslo"}),
    ("year", "≥", 2020, {"oslo", "rome"}),
    ("year", "≤", "2020.5", {"oslo"}),
    ("day", "before", "2026-02-01", {"oslo"}),
    ("day", "after", "2026-02-01", {"rome"}),
]


@pytest.mark.parametrize("name, operator, value, expected", CONDITIONS)
def test_conditions(asked: Rig, name: str, operator: str, value: Any, expected: set[str]) -> None:
    one = {"name": name, "comparison_operator": operator, "value": value}
    found = ask(asked, metadata_condition={"logical_operator": "and", "conditions": [one]})
    assert found.status_code == 200, found.text
    records = found.json()["records"]
    assert {record["metadata"]["kvstitch_doc_id"] for record in records} == expected


def test_conditions_together(asked: Rig) -> None:
    conditions = [
        {"name": "lang", "comparison_operator": "is", "value": "en"},
        {"name": ["year", "none"], "comparison_operator": ">", "value": 2022},
    ]
    for operator, expected in (("and", set()), (None, set()), ("or", {"oslo", "rome"})):
        where = {"logical_operator": operator, "conditions": conditions}
        records = ask(asked, metadata_condition=where).json()["records"]
        assert {record["metadata"]["kvstitch_doc_id"] for record in records} == expected
    assert len(ask(asked, metadata_condition={"conditions": []}).json()["records"]) == 4


def refusal(reply: httpx.Response) -> tuple[int, int, str]:
    found = reply.json()
    assert found.keys() == {"error_code", "error_msg"}
    return reply.status_code, found["error_code"], found["error_msg"]


@pytest.mark.parametrize(
    "operator, value, said",
    [
        ("contains", "e", "looks for parts of a text"),
        ("not contains", "e", "looks for parts of a text"),
        ("end with", "e", "looks for parts of a text"),
        ("in", "en", "'in' needs a list of texts"),
        (">", "many", "'>' needs a number"),
        ("start with", 3, "'start with' needs a text"),
        ("is", None, "'is' needs a text or a number"),
        ("like", "e", "comparison_operator"),
    ],
)
def test_conditions_that_cannot_be_held(asked: Rig, operator: str, value: Any, said: str) -> None:
    one = {"name": "lang", "comparison_operator": operator, "value": value}
    status, code, message = refusal(ask(asked, metadata_condition={"conditions": [one]}))
    assert (status, code) == (422, 422) and said in message
    assert "metadata_condition.conditions[0]" in message


def test_what_is_wrong_with_a_request(asked: Rig) -> None:
    assert refusal(ask(asked, retrieval_setting={"top_k": 0}))[:2] == (422, 422)
    assert refusal(ask(asked, query=" "))[:2] == (422, 422)
    status, code, message = refusal(ask(asked, knowledge_id="nothing"))
    assert (status, code) == (404, 2001) and "no collection 'nothing'" in message
    # How Dify tries an address when it is registered: neither 403, 404 nor 502.
    assert refusal(asked.http.post("/retrieval"))[:2] == (422, 422)
    assert refusal(asked.http.get("/retrieval"))[:2] == (405, 405)


def test_keys(locked: Rig, create: Callable[..., str]) -> None:
    def sent(authorization: str | None) -> httpx.Response:
        headers = {} if authorization is None else {"Authorization": authorization}
        return httpx.post(f"{locked.url}/retrieval", json=body(), headers=headers)

    assert refusal(sent(None))[:2] == (403, 1001)
    assert refusal(sent("Basic abc"))[:2] == (403, 1001)
    assert refusal(sent("Bearer kvs_wrong"))[:2] == (403, 1002)
    status, code, message = refusal(sent(f"Bearer {create('--scope', 'ingest')}"))
    assert (status, code) == (403, 1002) and "lacks the scope 'generate'" in message
    assert len(sent(f"Bearer {create()}").json()["records"]) == 4

    sales = create("--group", "sales")
    reply = sent(f"Bearer {sales}")
    assert len(reply.json()["records"]) == 3 and "fund" not in reply.text
    closed = httpx.post(
        f"{locked.url}/retrieval",
        json=body(knowledge_id="closed"),
        headers={"Authorization": f"Bearer {sales}"},
    )
    assert refusal(closed)[:2] == (404, 2001), "as a collection that is not there"


def test_the_description_has_its_own_errors_and_examples_that_fit(asked: Rig) -> None:
    operation = asked.http.get("/openapi.json").json()["paths"]["/retrieval"]["post"]
    responses = operation["responses"]
    assert responses.keys() == {"200"} | {
        str(status) for status in (400, 403, 404, 413, 415, 422, 429, 500, 503, 504)
    }
    for status, response in responses.items():
        schema = response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        assert schema == ("Records" if status == "200" else "Refusal")
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    for example in examples.values():
        RetrievalRequest.model_validate(example["value"])
    Records.model_validate(responses["200"]["content"]["application/json"]["example"])
