"""Attributions, marks and quotes in answers over HTTP, against a fake worker."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from kvstitch.service.messages.requests import Generate
from tests.fakes.worker import FakeWorker
from tests.service.gateway.rig import DOCUMENTS, Rig

ANSWER = "Oslo is the capital of Norway. Bergen has a fish market."


def fake(rig: Rig) -> FakeWorker:
    assert rig.worker is not None
    return rig.worker


def answering(rig: Rig, text: str) -> None:
    fake(rig).answer = lambda request: rig.gateway.prompts.tokenizer.encode_text(text)


def cited(result: dict[str, Any]) -> list[list[str]]:
    """Of each sentence, the documents that support it."""
    names = {c["index"]: c["doc_id"] for c in result["citations"]}
    return [[names[index] for index in one["citations"]] for one in result["attributions"]]


def test_an_answer_says_what_supports_each_sentence(rig: Rig) -> None:
    rig.ingest()
    answering(rig, f" {ANSWER} Elephants remember grandmothers.")
    result = rig.ask().json()
    assert cited(result) == [["oslo"], ["bergen"], []]
    text = result["text"]
    spans = [text[one["start"] : one["end"]] for one in result["attributions"]]
    assert spans == ["Oslo is the capital of Norway.", "Bergen has a fish market.",
                     "Elephants remember grandmothers."]  # fmt: skip
    by_name = {c["doc_id"]: c for c in result["citations"]}
    assert [by_name[name]["used"] for name in ("oslo", "bergen", "rome")] == [True, True, False]
    bergen = by_name["bergen"]
    stored = DOCUMENTS[1]["text"]
    quote = stored[bergen["quote_start"] : bergen["quote_end"]]
    assert quote == stored and 0.5 < bergen["support"] <= 1
    assert by_name["rome"]["quote_start"] is None and by_name["rome"]["support"] is None
    assert result["found"] is True


def test_quotes_are_spans_of_the_document_not_of_the_passage(rig: Rig) -> None:
    filler = "Nothing of use is said in this sentence of the page. " * 12
    text = f"{filler}The lighthouse of Skagen is forty-six metres high. {filler}"
    answering(rig, "The lighthouse of Skagen is forty-six metres high.")
    result = rig.ask(inline_documents=[{"text": text}]).json()
    (used,) = [c for c in result["citations"] if c["used"]]
    assert used["char_start"] > 0
    quote = text[used["quote_start"] : used["quote_end"]]
    assert quote == "The lighthouse of Skagen is forty-six metres high."


def test_a_stream_ends_with_the_attributions(rig: Rig) -> None:
    rig.ingest()
    answering(rig, ANSWER)
    seen = rig.stream()
    assert seen[0][1]["found"] is True
    assert "used" not in seen[0][1]["citations"][0]
    done = seen[-1][1]
    assert cited(done) == [["oslo"], ["bergen"]]
    assert done["text"] == "".join(data["text"] for event, data in seen if event == "token")


def test_attribution_can_be_switched_off(rig: Rig) -> None:
    rig.ingest()
    answering(rig, ANSWER)
    result = rig.ask(attribute=False).json()
    assert result["attributions"] is None
    assert all(c["used"] is None for c in result["citations"])


def test_an_answer_in_a_form_has_no_sentences(rig: Rig) -> None:
    rig.ingest()
    answering(rig, "Oslo")
    assert rig.ask(guided={"choice": ["Oslo", "Rome"]}).json()["attributions"] is None


def test_marks_are_put_into_a_whole_answer(rig: Rig) -> None:
    rig.ingest()
    answering(rig, ANSWER)
    result = rig.ask(cite="marks", attribute=False).json()
    place = {c["doc_id"]: c["index"] for c in result["citations"]}
    assert result["text"] == (
        f"Oslo is the capital of Norway [{place['oslo']}]. "
        f"Bergen has a fish market [{place['bergen']}]."
    )
    for one in result["attributions"]:
        assert result["text"][one["start"] : one["end"]].endswith("].")
    for more in ({"stream": True}, {"logprobs": 1}):
        refused = rig.ask(cite="marks", **more)
        assert refused.status_code == 422 and refused.json()["error"]["param"] == "cite"


def test_a_model_is_asked_for_marks_behind_the_question(rig: Rig) -> None:
    rig.ingest()
    answering(rig, "Oslo is the capital of Norway [1]. Bergen is rainy [7].")
    result = rig.ask(cite="inline").json()
    first = result["citations"][0]["doc_id"]
    assert result["text"] == "Oslo is the capital of Norway [1]. Bergen is rainy [7]."
    assert cited(result) == [[first], ["bergen"]]
    assert [one["by"] for one in result["attributions"]] == ["marks", "words"]
    assert any("[7]" in warning for warning in result["warnings"])
    rig.ask()
    with_marks, without = fake(rig).seen(Generate)
    assert isinstance(with_marks, Generate) and isinstance(without, Generate)
    # S and the documents stay as they are, so that what is stored of them is used.
    assert with_marks.system == without.system
    assert [d.ids for d in with_marks.documents] == [d.ids for d in without.documents]
    written = rig.gateway.prompts.tokenizer.decode(with_marks.question)
    titles = [f"[{c['index']}] {c['title']}" for c in result["citations"]]
    assert all(title in written for title in titles) and "What is the capital" in written


def test_no_passage_is_said_plainly_on_all_routes(rig: Rig) -> None:
    result = rig.ask().json()
    assert result["found"] is False and result["citations"] == [] == result["attributions"]
    assert any("cites nothing" in warning for warning in result["warnings"])
    sources, *_, done = rig.stream()
    assert sources[1]["found"] is False and done[1]["found"] is False
    asked = [{"role": "user", "content": "What is the capital of Norway?"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": asked}),
        ("/v1/completions", {"prompt": "What is the capital of Norway?"}),
    ):
        reply = rig.http.post(path, json=body)
        assert reply.status_code == 200, reply.text
        details = reply.json()["kvstitch"]
        assert details["found"] is False and details["citations"] == []
        assert any("cites nothing" in warning for warning in details["warnings"])
    explained = rig.ask(explain=True).json()
    assert explained["found"] is False and any("cites" in w for w in explained["warnings"])
    # Where none were wanted, nothing is missing.
    assert rig.ask(top_k=0).json()["warnings"] == []


def test_documents_urls_are_cited(rig: Rig) -> None:
    linked = {**DOCUMENTS[0], "metadata": {"url": "https://example.org/oslo", "year": 2}}
    rig.ingest([linked, {**DOCUMENTS[2], "metadata": {"url": 7}}])
    urls = {c["doc_id"]: c["url"] for c in rig.ask().json()["citations"]}
    assert urls == {"oslo": "https://example.org/oslo", "rome": None}


@pytest.fixture
def client(rig: Rig) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0)


def test_openai_clients_get_annotations(rig: Rig, client: openai.OpenAI) -> None:
    linked = {**DOCUMENTS[0], "metadata": {"url": "https://example.org/oslo"}}
    rig.ingest([linked, *DOCUMENTS[1:]])
    answering(rig, ANSWER)
    asked: Any = [{"role": "user", "content": "What is the capital of Norway?"}]
    message = client.chat.completions.create(model="model", messages=asked).choices[0].message
    assert message.content == ANSWER and message.annotations is not None
    found = [one.url_citation for one in message.annotations]
    assert [(ANSWER[c.start_index : c.end_index], c.title, c.url) for c in found] == [
        ("Oslo is the capital of Norway.", "Oslo", "https://example.org/oslo"),
        ("Bergen has a fish market.", "Bergen", f"{rig.url}/admin/documents/bergen"),
    ]
    assert rig.http.get(found[1].url).json()["text"] == DOCUMENTS[1]["text"]
    chunks = list(client.chat.completions.create(model="model", messages=asked, stream=True))
    last = chunks[-1].choices[0].delta.model_dump()
    assert last["annotations"] == [one.model_dump() for one in message.annotations]
    details = chunks[-1].model_dump()["kvstitch"]
    assert [c["used"] for c in details["citations"] if c["doc_id"] == "oslo"] == [True]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == ANSWER
