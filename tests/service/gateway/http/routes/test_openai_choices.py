"""Several choices of one request, fields of the sampler, and forms of the answer, as the worker
gets them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvstitch.service.messages.requests import Abort, Generate
from tests.service.gateway.http.routes.test_openai import (
    ASK,
    CHAT,
    TEXT,
    chat,
    fake,
    frames,
    last_request,
    says,
)
from tests.service.gateway.rig import Rig, running, until

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def generated(rig: Rig) -> list[Generate]:
    found = fake(rig).seen(Generate)
    return [message for message in found if isinstance(message, Generate)]


def test_n_choices_have_seeds_one_after_another(rig: Rig) -> None:
    rig.ingest()
    texts = {5: "Oslo", 6: "It is Oslo", 7: "Oslo, of course"}
    encode = rig.gateway.prompts.tokenizer.encode_text
    fake(rig).answer = lambda request: encode(texts[request.sampling.seed or 0])
    asked = {"n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 40}
    found = chat(rig, **asked).json()
    told = [(c["index"], c["message"]["content"]) for c in found["choices"]]
    assert told == [(0, "Oslo"), (1, "It is Oslo"), (2, "Oslo, of course")]
    first, *others = generated(rig)[-3:]
    assert all(other.question == first.question for other in others)
    assert all(other.documents == first.documents for other in others)
    usage = found["usage"]
    assert usage["completion_tokens"] == sum(map(len, texts.values()))
    *chunks, usage_chunk, done = frames(
        chat(rig, stream=True, stream_options={"include_usage": True}, **asked).text
    )
    assert done == "[DONE]"
    assert usage_chunk["usage"]["completion_tokens"] == usage["completion_tokens"]
    assert usage_chunk["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    for number, text in enumerate(texts.values()):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == number]
        assert own[0]["delta"]["role"] == "assistant" and own[-1]["finish_reason"] == "stop"
        assert "".join(c["delta"].get("content", "") for c in own) == text


def test_choices_of_a_stream_come_interleaved(rig: Rig) -> None:
    says(rig, "abcdefgh")
    worker = fake(rig)
    worker.token_delay_s, worker.held = 0.01, True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(chat, rig, stream=True, n=2, kvstitch={"top_k": 0})
        try:
            until(lambda: len(worker.seen(Generate)) == 2, "the worker has both")
        finally:
            worker.held = False
        *chunks, _ = frames(asked.result().text)
    order = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["delta"].get("content")]
    assert order.count(0) == order.count(1) == 8
    assert order != sorted(order)


def test_all_choices_end_when_one_fails_or_the_client_leaves(rig: Rig) -> None:
    fake(rig).token_delay_s = 0.5
    body = {"messages": ASK, "n": 3, "stream": True, "max_tokens": 1000}
    with rig.http.stream("POST", CHAT, json=body) as response:
        next(response.iter_lines())
    until(lambda: len(fake(rig).seen(Abort)) == 3, "aborts")
    until(lambda: rig.metric("kvstitch_requests_in_flight") == 0, "released")


def test_what_was_opened_is_released_if_another_is_refused(folder: Any, data: Any) -> None:
    with running(folder, data, max_waiting=1, max_running=1) as rig:
        response = chat(rig, n=9)
        assert response.status_code == 503, response.text
        until(lambda: rig.metric("kvstitch_requests_in_flight") == 0, "released")
        assert chat(rig).status_code == 200


def test_several_prompts_are_answered_in_their_order(rig: Rig) -> None:
    rig.ingest()
    prompts = ["What is the capital of Norway?", "Which city is rainy?"]
    whole = rig.http.post(TEXT, json={"prompt": prompts, "n": 2, "max_tokens": 3}).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    first, second, third, fourth = generated(rig)[-4:]
    assert first.question == second.question != third.question == fourth.question
    alone = [
        rig.http.post(TEXT, json={"prompt": prompt, "max_tokens": 3}).json()["usage"]
        for prompt in prompts
    ]
    assert whole["usage"]["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in alone)


def test_fields_of_the_sampler_reach_it(rig: Rig) -> None:
    chat(
        rig,
        **{"top_k": 7, "min_p": 0.25, "repetition_penalty": 1.5, "presence_penalty": 0.5},
        **{"frequency_penalty": -0.5, "logit_bias": {"42": -100, "7": 1.5}, "min_tokens": 2},
        **{"ignore_eos": True, "stop_token_ids": [9], "kvstitch": {"top_k": 0}},
    )
    sampling = last_request(rig).sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (7, 0.25, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert sampling.logit_bias == {42: -100, 7: 1.5}
    assert (sampling.min_tokens, sampling.ignore_end, sampling.stop_ids) == (2, True, [9])
    assert last_request(rig).documents == []


def grammar(rig: Rig, path: str = CHAT, **body: Any) -> str:
    asked = {"prompt": "Why?"} if path == TEXT else {"messages": ASK}
    response = rig.http.post(path, json={**asked, **body})
    assert response.status_code == 200, response.text
    return last_request(rig).sampling.grammar


def test_all_names_of_a_form_are_one_form(rig: Rig) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    schemas: list[dict[str, Any]] = [
        {"response_format": wanted},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
    ]
    for path in (CHAT, TEXT):
        assert len({grammar(rig, path, **body) for body in schemas}) == 1
    for ours, name in (("ab+", "regex"), (["a", "b"], "choice"), ('start: "a"', "grammar")):
        guided: dict[str, Any] = {f"guided_{name}": ours}
        one = grammar(rig, **guided)
        assert one and one == grammar(rig, structured_outputs={name: ours})
    anything = grammar(rig, response_format={"type": "json_object"})
    assert anything == grammar(rig, structured_outputs={"json_object": True}) != ""
    assert grammar(rig, response_format={"type": "text"}) == ""
