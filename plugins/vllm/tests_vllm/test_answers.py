"""Answers that vLLM decodes: a real gateway and worker, and a server that speaks vLLM's routes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Service
from tests_vllm.vllm_server import RECORDED, Vllm, started

QUESTION = "Who pays on Friday?"
METHODS = ("vanilla", "question_scout", "pie")


def settings(vllm: Vllm) -> dict[str, object]:
    return {"engine": "vllm", "engine_url": vllm.url, "hand_over_dir": vllm.shared,
            "dtype": "float32"}  # fmt: skip


@pytest.fixture(scope="module")
def vllm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = started(model, tmp_path_factory.mktemp("shared"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def handing(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Any, vllm: Vllm
) -> Iterator[Service]:
    with Service(model, tmp_path_factory.mktemp("it") / "data", **settings(vllm)) as running:
        running.ingest(twelve)
        yield running


@pytest.fixture
def service(handing: Service, vllm: Vllm) -> Iterator[Service]:
    """The same for all; it has left nothing in shared memory when a test ends."""
    vllm.asked.clear()
    vllm.loaded.clear()
    vllm.pause_s, vllm.dies_after, vllm.refuses, vllm.loses, vllm.left = 0.0, None, None, False, 0
    handing.until(lambda: handing.http.get("/health/ready").status_code == 200, "it is not ready")
    yield handing
    handing.until(lambda: not vllm.segments(), "a segment is left")


@pytest.fixture(scope="module")
def own_answers(
    tmp_path_factory: pytest.TempPathFactory, model: Path, twelve: Any
) -> dict[str, dict[str, Any]]:
    """What the service's own engine answers, by method."""
    with Service(model, tmp_path_factory.mktemp("own") / "data", dtype="float32") as own:
        own.ingest(twelve)
        return {m: own.ask(QUESTION, fusion={"method": m}, logprobs=2) for m in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_it_answers_as_the_own_engine_does(service, vllm, own_answers, method):
    own = own_answers[method]
    answer = service.ask(QUESTION, fusion={"method": method}, logprobs=2)
    assert vllm.loaded == [answer["usage"]["prompt_tokens"] - 1]
    same = ("text", "citations", "usage", "finish_reason", "fusion", "warnings")
    assert {name: answer[name] for name in same} == {name: own[name] for name in same}
    for said, expected in zip(answer["logprobs"], own["logprobs"], strict=True):
        assert said["logprob"] == pytest.approx(expected["logprob"], abs=1e-3)
        both = [[t["token_id"] for t in each["top_logprobs"]] for each in (said, expected)]
        assert both[0] == both[1]
    parts = ("embed", "retrieve", "plan", "queue", "load", "prefill", "hand_over", "engine")
    assert sum(answer["stages"][part] for part in parts) <= answer["timing"]["ttft_s"]
    for part in ("hand_over", "engine"):
        assert answer["stages"][part] > 0
        assert service.metrics().value("kvstitch_stage_seconds_count", stage=part) >= 1


def test_a_segment_goes_when_it_is_loaded(service, vllm):
    vllm.pause_s = 0.5
    with service.stream(QUESTION, max_tokens=6) as events:
        assert next(e for e in events if e[0] == "token")
        service.until(lambda: not vllm.segments(), "it outlives the first token")
        assert [e[0] for e in events][-1] == "done"


def test_no_two_answers_share_approximate_kv(service, vllm):
    """vLLM's own prefix cache goes by salt: one for each prompt that was handed over."""
    for _ in range(2):
        service.ask(QUESTION)
        service.ask("Hello", top_k=0, max_tokens=2)
    first, alone, _, again = vllm.asked
    assert "kv_transfer_params" in first and "kv_transfer_params" not in alone
    assert alone["cache_salt"] == again["cache_salt"] and len(first["cache_salt"]) >= 43
    assert len({body["cache_salt"] for body in vllm.asked}) == 3


def test_sampling_is_as_it_was_asked_for(service, vllm):
    fields = {"temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
              "presence_penalty": 0.2, "frequency_penalty": 0.3, "min_tokens": 1,
              "logit_bias": {"5": 1.5}, "ignore_eos": True, "stop_token_ids": [9],
              "max_tokens": 3}  # fmt: skip
    answer = service.ask(QUESTION, **fields, sampling_top_k=7)
    (body,) = vllm.asked
    assert {name: body[name] for name in fields} == fields and body["top_k"] == 7
    assert body["seed"] == answer["seed"] is not None


def test_chat_responses_and_stop_strings(service):
    message = {"role": "user", "content": QUESTION}
    chat = service.http.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 8})
    text = chat.json()["choices"][0]["message"]["content"]
    assert text and chat.json()["usage"]["completion_tokens"] == 8
    said = service.http.post("/v1/responses", json={"input": QUESTION, "max_output_tokens": 8})
    assert said.json()["output"][-1]["content"][0]["text"] == text
    stop = text[len(text) // 2 :][:3]
    answer = service.ask(QUESTION, stop=[stop], max_tokens=64)
    assert answer["finish_reason"] == "stop" and stop not in answer["text"]


@pytest.mark.parametrize(
    ("form", "key"),
    [({"json_schema": {"type": "boolean"}}, "json"), ({"regex": "a+"}, "grammar"),
     ({"choice": ["yes", "no"]}, "grammar")],
    ids=str,
)  # fmt: skip
def test_a_form_is_vllms_to_keep(service, vllm, form, key):
    service.ask(QUESTION, guided=form, max_tokens=4)
    (body,) = vllm.asked
    structured = body["structured_outputs"]
    assert structured.keys() == {key} and not str(structured[key]).startswith('{"grammars"')


@pytest.mark.parametrize(
    "plan", [{"eviction": {"method": "snapkv"}}, {"fusion": {"method": "samkv"}}], ids=str
)
def test_what_only_the_own_engine_can_do_is_refused(service, vllm, plan):
    reply = service.post(QUESTION, **plan)
    assert reply.status_code == 422 and "vLLM decodes" in reply.text and not vllm.asked


def test_what_vllm_refuses_is_refused(service, vllm):
    vllm.refuses = RECORDED["refused"]
    reply = service.post(QUESTION)
    assert reply.status_code == 422 and RECORDED["refused"]["error"]["message"] in reply.text


def test_clients_that_leave_leave_nothing(service, vllm):
    vllm.pause_s = 0.1
    with service.stream(QUESTION, max_tokens=100) as events:
        next(e for e in events if e[0] == "token")
    service.until(lambda: vllm.left == 1, "vLLM goes on")

    def leave() -> None:
        with service.stream(QUESTION, max_tokens=100) as events:
            next(events)

    clients = [threading.Thread(target=leave) for _ in range(16)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert service.ask(QUESTION, max_tokens=3)["usage"]["completion_tokens"] == 3


def test_a_hand_over_that_is_lost_is_computed(service, vllm):
    vllm.loses = True
    answer = service.ask(QUESTION, fusion={"method": "vanilla"}, max_tokens=8)
    tokens = answer["usage"]["prompt_tokens"]
    why = f"vLLM computed {tokens - 1} tokens of the prompt itself: its log says why"
    assert answer["warnings"] == [why]
    vllm.loses = False
    again = service.ask(QUESTION, fusion={"method": "vanilla"}, max_tokens=8)
    assert again["text"] == answer["text"] and not again["warnings"]


def test_the_gate_compares_what_vllm_answers(vllm, model, twelve, tmp_path_factory):
    """Also what only vLLM's side can spoil: the worker's own logits are right throughout."""
    folder, before = tmp_path_factory.mktemp("gate") / "data", len(vllm.asked)
    gate = {"gate_sample": 1.0, "gate_min_checks": 4}
    with Service(model, folder, **settings(vllm), **gate) as service:
        service.ingest(twelve)

        def checks(outcome: str) -> float:
            labels = {"method": "question_scout", "outcome": outcome}
            return service.metrics().value("kvstitch_gate_checks_total", **labels)

        answer = service.ask(QUESTION, max_tokens=2, logprobs=1)
        assert [len(each["top_logprobs"]) for each in answer["logprobs"]] == [1, 1]
        service.until(lambda: checks("agree") == 1, "no check is made")
        handed, full = vllm.asked[before:]
        assert handed["prompt"] == full["prompt"] and full["max_tokens"] == 1
        assert "kv_transfer_params" not in full and full["cache_salt"] != handed["cache_salt"]
        assert service.ask(QUESTION, max_tokens=2)["logprobs"] is None
        service.until(lambda: checks("agree") == 2, "no second check is made")
        vllm.spoils = True
        try:
            service.until(
                lambda: service.ask(QUESTION, max_tokens=2)["cache"]["gate"] is not None,
                "the method is still trusted",
            )
            assert checks("disagree") > 0
        finally:
            vllm.spoils = False
        service.sigterm()  # a worker that was killed would leave its folder to other tests
        assert service.exit_code() == 0


def test_vllm_ends_midway(service, vllm):
    """What was begun ends in an error; the service is back as soon as vLLM is."""
    vllm.dies_after = 2
    with service.stream(QUESTION, max_tokens=8) as events:
        *_, (name, error) = events
    assert (name, error["error"]["code"]) == ("error", "worker_unavailable")
    vllm.dies_after = None
    service.until(lambda: service.post(QUESTION).status_code == 200, "it is not back")


def test_both_are_killed(service, vllm):
    """What a killed worker has left goes when the next one starts."""
    (left,) = vllm.shared.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    service.kill_nine()
    left.mkdir(mode=0o700, exist_ok=True)  # a worker that outlives its gateway removes it itself
    service.start()
    (now,) = vllm.shared.iterdir()
    assert now != left and service.ask(QUESTION, max_tokens=3)["text"]


def test_other_weights_are_refused(service, vllm, tmp_path):
    vllm.weights, own = "0" * 32, vllm.weights
    service.kill_nine()
    wait, service.wait_ready = service.wait_ready, lambda: service.until(says_why, "it says not")

    def says_why() -> bool:
        try:
            return "other weights" in service.http.get("/health/ready").text
        except Exception:
            return False

    try:
        service.start()
        assert service.post(QUESTION).status_code == 503
    finally:
        vllm.weights, service.wait_ready = own, wait
