"""From a request's fields to what the worker samples by, and the forms of answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvstitch.service.gateway.answers.forms import form_of
from kvstitch.service.gateway.schemas.generate import MAX_GRAMMAR_CHARS, GenerateRequest, Guided
from kvstitch.service.messages.requests import Generate, Sampling
from tests.service.gateway.answers.test_answer_service import fake
from tests.service.gateway.rig import Rig

FIELDS = {
    "max_tokens": 9,
    "temperature": 0.7,
    "top_p": 0.9,
    "sampling_top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"17": -100, "3": 2.5},
    "min_tokens": 2,
    "ignore_eos": True,
    "stop_token_ids": [7, 8],
    "seed": 5,
    "logprobs": 1,
}


def test_every_field_reaches_the_worker(rig: Rig) -> None:
    assert rig.ask(**FIELDS).status_code == 200
    (request,) = fake(rig).seen(Generate)
    assert isinstance(request, Generate)
    assert request.sampling == Sampling(
        max_tokens=9, temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1,
        presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={17: -100.0, 3: 2.5},
        min_tokens=2, ignore_end=True, stop_ids=[7, 8], seed=5, logprobs=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"min_p": 1.5}, "min_p"),
        ({"sampling_top_k": -1}, "sampling_top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"guided": {}}, "guided"),
        ({"guided": {"json_object": True, "regex": "a"}}, "guided"),
        ({"guided": {"regex": "a("}}, "guided.regex"),
        ({"guided": {"json_schema": {"type": "nothing"}}}, "guided.json_schema"),
        ({"guided": {"json_schema": {"$ref": "#/nope"}}}, "guided.json_schema"),
        (
            {"guided": {"json_schema": {"type": "array", "uniqueItems": True}, "strict": True}},
            "guided.json_schema",
        ),
        ({"guided": {"json_schema": {"enum": ["x" * MAX_GRAMMAR_CHARS]}}}, "guided.json_schema"),
        ({"guided": {"grammar": "start: nothing"}}, "guided.grammar"),
        ({"guided": {"choice": []}}, "guided.choice"),
        ({"guided": {"regex": "a"}, "min_tokens": 1}, "min_tokens"),
        ({"guided": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
        ({"top_logits": 1}, "top_logits"),
    ],
)
def test_what_cannot_be_is_named(shared: Rig, fields: dict[str, object], name: str) -> None:
    before = len(fake(shared).seen(Generate))
    refused = shared.ask(**fields)
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["param"] == name
    assert len(fake(shared).seen(Generate)) == before


@pytest.mark.parametrize(
    "guided",
    [
        {"json_object": True},
        {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"regex": "[a-z]+"},
        {"choice": ['say "yes"', "no\n", "peut-être"]},
        {"grammar": 'start: "a" | "b"'},
        {"grammar": 'root ::= "a" | "b"'},
    ],
)
def test_forms_become_grammars(shared: Rig, guided: dict[str, object]) -> None:
    """With a form the prompt does not begin the answer, and only the form and `stop` end it."""
    fake(shared).answer = lambda request: shared.gateway.prompts.tokenizer.encode_text("a\n\nb")
    result = shared.ask(guided=guided, max_tokens=16).json()
    request = fake(shared).seen(Generate)[-1]
    assert isinstance(request, Generate)
    form = Guided.model_validate(guided)
    written = shared.gateway._forms._processes.write(form_of(form))
    assert request.sampling.grammar == written.grammar
    assert result["text"] == "a\n\nb"


def test_an_error_of_a_form_says_what_is_wrong(rig: Rig) -> None:
    for guided, what in (
        ({"regex": "a("}, "unclosed group"),
        ({"json_schema": {"type": "array", "uniqueItems": True}, "strict": True}, "uniqueItems"),
    ):
        assert what in rig.ask(guided=guided).json()["error"]["message"]


def answering(ids: list[int]) -> Callable[[Generate], list[int]]:
    return lambda request: ids


def test_what_is_not_held_is_checked_and_said(rig: Rig) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    for text, said in (('["a", "a"]', "does not match the schema"), ('["a"]', "and matches")):
        ids = rig.gateway.prompts.tokenizer.encode_text(text)
        fake(rig).answer = answering(ids)
        warnings = rig.ask(guided={"json_schema": schema}, max_tokens=99).json()["warnings"]
        assert any("uniqueItems" in warning and said in warning for warning in warnings), warnings


@pytest.mark.parametrize("field", ["stop", "stop_token_ids"])
def test_nothing_but_its_form_ends_an_answer(rig: Rig, field: str) -> None:
    tokenizer = rig.gateway.prompts.tokenizer
    text = "\n  red or blue"
    ids = tokenizer.encode_text(text)
    fake(rig).answer = lambda request: ids
    stop = " or" if field == "stop" else [ids[3]]
    result = rig.ask(guided={"choice": [text, "green"]}, max_tokens=99, **{field: stop}).json()
    assert result["text"] == text
    assert any(warning.startswith(f"{field} was left out") for warning in result["warnings"])


def test_stop_strings_wait_for_the_shortest_answer(rig: Rig) -> None:
    tokenizer = rig.gateway.prompts.tokenizer
    ids = tokenizer.encode_text("one,two,three")
    first = next(n for n in range(len(ids)) if "," in tokenizer.decode(ids[: n + 1])) + 1
    fake(rig).answer = lambda request: ids
    assert rig.ask(max_tokens=60, stop=",").json()["text"] == "one"
    assert rig.ask(max_tokens=60, stop=",", min_tokens=first).json()["text"] == "one,two"


@pytest.mark.parametrize("ends", [True, False])
def test_the_models_own_stop_strings_end_free_answers(rig: Rig, ends: bool) -> None:
    prompts = rig.gateway.prompts
    prompts.format = replace(prompts.format, stop=("\n",), answer_prefix="So: ")
    free = GenerateRequest(question="q", stop=["!"], ignore_eos=not ends)
    guided = free.model_copy(update={"guided": Guided(json_object=True)})
    for request, expected in ((free, "So: a" if ends else "So: a\nb"), (guided, "a\nb!c")):
        text = prompts.answer_text(request)
        pieces = [text.push(token) for token in prompts.tokenizer.encode_text("a\nb!c")]
        assert "".join(pieces) == text.text == expected
