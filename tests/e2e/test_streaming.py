"""The stream and the JSON answer are the same answer; sampling, stops and eviction do what they
say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.service import Service

QUESTION = "Which colour does the family wear?"


def streamed(service: Service, **fields: object) -> tuple[list[str], str, dict[str, Any]]:
    """Event names, concatenated tokens, done; checks the order of events."""
    with service.stream(QUESTION, **fields) as events:
        received = list(events)
    names = [name for name, _ in received]
    assert names[0] == "sources" and names[-1] == "done"
    assert set(names[1:-1]) <= {"token"}
    first, last = received[0][1]["citations"], received[-1][1]["citations"]
    # What the answer made of a passage is known at its end.
    assert first == [
        {name: citation[name] for name in before}
        for before, citation in zip(first, last, strict=True)
    ]
    assert all(citation["used"] in (True, False) for citation in last)
    text = "".join(data["text"] for name, data in received if name == "token")
    return names, text, received[-1][1]


@pytest.mark.parametrize("fusion", ["vanilla", "a3", "pie", "full_reuse"])
def test_the_stream_is_the_json_answer(service: Service, fusion: str) -> None:
    """sources, token …, done; the tokens make up done's text; without `stream` it is the same."""
    fields = {"fusion": {"method": fusion}, "max_tokens": 24, "top_k": 3}
    names, text, done = streamed(service, **fields)
    assert text == done["text"]
    assert names.count("token") > 1
    assert done["usage"]["completion_tokens"] == 24
    assert done["finish_reason"] == "length"
    assert done["fusion"]["method"] == fusion
    whole = service.ask(QUESTION, **fields)
    assert set(whole) == set(done)
    for same in ("text", "citations", "usage", "finish_reason", "fusion", "model", "warnings"):
        assert whole[same] == done[same], same
    cache, cached = whole["cache"], done["cache"]
    assert cache["rows_per_layer"] == cached["rows_per_layer"]
    assert cache["recomputed_tokens"] == cached["recomputed_tokens"]
    *rows, _ = cache["rows_per_layer"]  # the last layer computes what the first token needs
    if fusion == "vanilla":
        assert set(rows) == {whole["usage"]["prompt_tokens"]}
    else:
        assert rows[-1] < whole["usage"]["prompt_tokens"]


def test_a_seed_reproduces_a_sampled_answer(service: Service) -> None:
    """The same seed gives the same text, other seeds give others; a seed that was not given is
    reported, and reproduces the answer as well."""
    fields = {"temperature": 2.0, "max_tokens": 24}
    first = service.ask(QUESTION, seed=7, **fields)
    assert first["seed"] == 7
    assert service.ask(QUESTION, seed=7, **fields)["text"] == first["text"]
    assert streamed(service, seed=7, **fields)[1] == first["text"]
    others = {service.ask(QUESTION, seed=seed, **fields)["text"] for seed in range(4)}
    assert len(others) > 1
    unseeded = service.ask(QUESTION, **fields)
    assert unseeded["seed"] is not None
    assert service.ask(QUESTION, seed=unseeded["seed"], **fields)["text"] == unseeded["text"]


def test_stop_strings_end_the_answer_before_them(service: Service) -> None:
    """The text ends where the stop string would begin, in the stream too, even if the string spans
    tokens; the sequence stops early."""
    whole = service.ask(QUESTION, max_tokens=48)
    text = whole["text"]
    assert len(text) > 12, text
    stop = text[len(text) // 2 : len(text) // 2 + 5]
    for stops in (stop, [stop, "never in any text"]):
        answer = service.ask(QUESTION, max_tokens=600, stop=stops)
        assert answer["text"] == text[: text.index(stop)]
        assert answer["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] < 600
    _, tokens, done = streamed(service, max_tokens=48, stop=stop)
    assert tokens == done["text"] == text[: text.index(stop)]


def test_eviction_is_reported(service: Service) -> None:
    """snapkv keeps its budget of the prompt per layer after the first token; without it all stays;
    the first token is the same."""
    kept = service.ask(QUESTION, max_tokens=4)
    prompt = kept["usage"]["prompt_tokens"]
    assert kept["eviction"] is None
    assert set(kept["cache"]["kept_per_layer"]) == {prompt}
    budget = 40
    evicted = service.ask(QUESTION, max_tokens=4, eviction={"method": "snapkv", "budget": budget})
    assert evicted["eviction"]["method"] == "snapkv" and evicted["eviction"]["budget"] == budget
    assert prompt > 2 * budget
    for tokens in evicted["cache"]["kept_per_layer"]:
        assert 0 < tokens < prompt
    assert min(evicted["cache"]["kept_per_layer"]) <= budget + 1
    assert evicted["stages"]["evict"] > 0


def test_stages_and_times_are_reported(service: Service) -> None:
    """Every stage has a duration, and they fit into the whole."""
    answer = service.ask(QUESTION, max_tokens=8)
    stages, timing = answer["stages"], answer["timing"]
    expected = {"embed", "retrieve", "plan", "queue", "load", "prefill", "first_token", "decode"}
    assert expected <= set(stages)
    assert all(seconds >= 0 for seconds in stages.values())
    assert sum(stages.values()) <= timing["total_s"] * 1.05
    assert 0 < timing["ttft_s"] < timing["total_s"]
    assert timing["tpot_s"] == pytest.approx((timing["total_s"] - timing["ttft_s"]) / 7)


def test_line_separators_in_text_do_not_break_the_stream(service: Service) -> None:
    """Readers of lines, as every HTTP library has one, break lines at more than the stream does."""
    title = "one\u2028two\u2029three\x85four"
    service.ingest([{"doc_id": "separators", "title": title, "text": "The colour is blue."}])
    fields = {"documents": ["separators"], "top_k": 1, "max_tokens": 2}
    with service.stream(QUESTION, **fields) as events:
        received = list(events)
    assert received[0][1]["citations"][0]["title"] == title
    assert received[-1][0] == "done"
    service.http.delete("/admin/documents/separators").raise_for_status()
