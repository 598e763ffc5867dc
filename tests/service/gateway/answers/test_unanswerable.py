"""Questions that nothing found is about, and small talk, over HTTP, against a fake worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from kvstitch.service.gateway.answers.unanswerable import is_small_talk, sentence
from kvstitch.service.messages.requests import Generate
from tests.service.gateway.rig import Rig, events, running

NOWHERE = "Who painted the Mona Lisa in Florence?"
SAID = "The documents do not say anything about this."


@pytest.fixture
def rig(folder: Path, data: Path) -> Iterator[Rig]:
    with running(folder, data, unanswerable="say") as rig:
        rig.ingest()
        yield rig


def asked(rig: Rig) -> list[Generate]:
    """What the model was asked."""
    assert rig.worker is not None
    return [each for each in rig.worker.seen(Generate) if isinstance(each, Generate)]


def test_what_is_not_in_the_documents_is_said_and_no_model_is_asked(rig: Rig) -> None:
    result = rig.ask(question=NOWHERE).json()
    assert result["text"] == SAID and result["finish_reason"] == "stop"
    assert result["found"] is False and result["citations"] == [] == result["attributions"]
    assert 0 <= result["relevance"] < 0.5
    assert any("about the question" in warning for warning in result["warnings"])
    assert result["usage"]["total_tokens"] == 0 and result["cache"]["documents"] == []
    assert asked(rig) == []
    assert rig.metric("kvstitch_unanswerable_total", done="say") == 1
    about = rig.ask().json()
    assert about["found"] is True and about["relevance"] >= 0.5 and len(asked(rig)) == 1


def test_a_stream_says_it_as_text(rig: Rig) -> None:
    (_, sources), (name, token), (_, done) = rig.stream(question=NOWHERE)
    assert sources["found"] is False and sources["citations"] == []
    assert name == "token" and token == {"text": SAID} and done["text"] == SAID


def test_openais_routes_say_it(rig: Rig) -> None:
    client = openai.OpenAI(base_url=f"{rig.url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": NOWHERE}]
    model = rig.gateway.prompts.model
    whole = client.chat.completions.create(model=model, messages=messages)
    assert whole.choices[0].message.content == SAID
    assert whole.choices[0].finish_reason == "stop" and whole.model_extra is not None
    assert whole.model_extra["kvstitch"]["found"] is False
    stream = client.chat.completions.create(model=model, messages=messages, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == SAID
    two = client.completions.create(model=model, prompt=NOWHERE, n=2)
    assert [choice.text for choice in two.choices] == [SAID, SAID] and asked(rig) == []


def test_a_request_chooses_what_is_done(rig: Rig) -> None:
    model = rig.ask(question=NOWHERE, unanswerable="model").json()
    assert model["found"] is False and model["citations"] == [] and model["text"] != SAID
    anyway = rig.ask(question=NOWHERE, unanswerable="answer").json()
    assert anyway["found"] is True and anyway["citations"] and anyway["relevance"] < 0.5
    alone, with_passages = asked(rig)
    assert alone.documents == [] and with_passages.documents != []
    for done in ("model", "answer"):
        assert rig.metric("kvstitch_unanswerable_total", done=done) == 1


def test_only_a_model_can_answer_in_a_form_or_go_on_with_a_text(rig: Rig) -> None:
    formed = rig.ask(question=NOWHERE, guided={"choice": ["yes", "no"]}).json()
    assert formed["found"] is False and formed["text"] != SAID
    messages = [{"role": "user", "content": NOWHERE}, {"role": "assistant", "content": "It was"}]
    going_on = {"messages": messages, "continue_final_message": True}
    assert rig.http.post("/v1/rag/generate", json=going_on).json()["text"] != SAID
    assert rig.ask(question=NOWHERE, max_tokens=0).json()["text"] == ""
    assert len(asked(rig)) == 3


def test_documents_that_a_request_names_or_brings_are_not_judged(rig: Rig) -> None:
    named = rig.ask(question=NOWHERE, documents=["rome"]).json()
    assert [c["doc_id"] for c in named["citations"]] == ["rome"] and named["relevance"] is None
    brought = rig.ask(question=NOWHERE, inline_documents=[{"text": "A market."}]).json()
    assert brought["found"] is True and brought["relevance"] is None
    greeted = rig.ask(question="Hello!", documents=["rome"]).json()
    assert greeted["found"] is True


def test_a_search_says_it_and_shows_what_it_found(rig: Rig) -> None:
    nothing = rig.http.post("/v1/search", json={"query": NOWHERE}).json()
    assert nothing["found"] is False and nothing["results"] and nothing["relevance"] < 0.5
    assert any("about the question" in warning for warning in nothing["warnings"])
    found = rig.http.post("/v1/search", json={"query": "the capital of Norway"}).json()
    assert found["found"] is True and found["relevance"] >= 0.5 and found["warnings"] == []


def test_a_dry_run_says_what_would_be_done(rig: Rig) -> None:
    explained = rig.ask(question=NOWHERE, explain=True).json()
    assert explained["found"] is False and explained["documents"] == []
    assert explained["relevance"] < 0.5
    assert rig.metric("kvstitch_unanswerable_total", done="say") == 0


def test_a_follow_up_is_judged_together_with_what_was_asked_before(rig: Rig) -> None:
    messages = [
        {"role": "user", "content": "What is the capital of Norway?"},
        {"role": "assistant", "content": "Oslo."},
        {"role": "user", "content": "And who is its mayor?"},
    ]
    follow_up = rig.http.post("/v1/rag/generate", json={"messages": messages}).json()
    assert follow_up["found"] is True and follow_up["relevance"] >= 0.5
    messages[-1] = {"role": "user", "content": "Thanks a lot!"}
    thanks = rig.http.post("/v1/rag/generate", json={"messages": messages}).json()
    assert thanks["found"] is False and thanks["retrieval"] is None and thanks["text"] != SAID


def test_a_text_of_ones_own_is_said(folder: Path, data: Path) -> None:
    with running(folder, data, unanswerable="say", unanswerable_text="Ask Anna.") as rig:
        rig.ingest()
        assert rig.ask(question=NOWHERE).json()["text"] == "Ask Anna."


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (NOWHERE, SAID),
        ("Wie hoch ist der Eiffelturm in Paris?", "Dazu steht nichts in den Dokumenten."),
        ("Quelle est la hauteur de la tour Eiffel ?", "Les documents ne disent rien à ce sujet."),
        ("Mona Lisa?", SAID),  # no language is sure
    ],
)
def test_it_is_said_in_the_questions_language(question: str, said: str) -> None:
    assert sentence(question, "") == said and sentence(question, "No.") == "No."


@pytest.mark.parametrize(
    ("text", "is_talk"),
    [
        ("Hi, who are you?", True),
        ("thanks!", True),
        ("Guten Tag, wie geht es dir?", True),
        ("Merci beaucoup, au revoir", True),
        ("¡Hola! ¿Cómo estás?", True),
        ("Спасибо!", True),
        ("你好", True),
        ("Hi, how long is the warranty?", False),
        ("Thanks. And the warranty?", False),
        ("hi-fi", False),
        ("What is HI?", False),
        ("bye " * 40, False),
        ("", False),
    ],
)
def test_small_talk_is_all_that_a_text_says(text: str, is_talk: bool) -> None:
    assert is_small_talk(text) is is_talk


def test_small_talk_is_answered_by_the_model_alone(rig: Rig) -> None:
    with rig.http.stream(
        "POST", "/v1/rag/generate", json={"question": "Hi, who are you?", "stream": True}
    ) as response:
        (_, sources), *_ = events(response)
    assert sources["found"] is False and sources["retrieval"] is None
    (only,) = asked(rig)
    assert only.documents == []
    assert rig.ask(question="Hi, who are you?", unanswerable="answer").json()["found"] is True


def test_an_answer_without_documents_is_not_begun_as_if_it_were_from_them(rig: Rig) -> None:
    prompts = rig.gateway.prompts
    prompts.format = replace(prompts.format, answer_prefix="The documents say:")
    for question, begun in (("Hello!", False), (NOWHERE, False), ("the capital of Norway", True)):
        text = rig.ask(question=question, unanswerable="model").json()["text"]
        assert text.startswith("The documents say:") is begun
        written = prompts.tokenizer.decode(asked(rig)[-1].question)
        assert written.endswith("The documents say:") is begun
