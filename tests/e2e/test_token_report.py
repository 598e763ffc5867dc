"""`include_tokens`: what became of every token, over HTTP, on the tier that held it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Documents, Serve
from tests.e2e.service import Service, tiers

QUESTION = "Which colour does the family wear?"


def flat(segment: dict[str, Any], field: str) -> list[Any]:
    """Of every token."""
    return [run[field] for run in segment["runs"] for _ in range(run["tokens"])]


def check(service: Service, *, known: bool = True, **fields: Any) -> dict[str, Any]:
    """An answer whose tokens are those of its report, on the tiers that a dry run found before;
    not `known`: what is stored differs from what the store believes, so the report has to do."""
    asked = {"fusion": {"method": "a3"}, "top_k": 3, "max_tokens": 3, **fields}
    foretold = service.ask(QUESTION, explain=True, **asked)
    answer = service.ask(QUESTION, include_tokens=True, include_text=True, **asked)
    cache = answer["cache"]
    tokens = cache["tokens"]
    told = [tokens["system"], *tokens["documents"]]
    reported = [cache["system"], *cache["documents"]]
    looked_up = [foretold["system"], *foretold["documents"]]
    held = [segment["tier"] for segment in (looked_up if known else reported)]
    for segment, report, tier in zip(told, reported, held, strict=True):
        sources = flat(segment, "source")
        assert len(sources) == len(segment["starts"]) == report["tokens"]
        assert segment["starts"] == sorted(segment["starts"])
        if tier == "cold":
            assert set(sources) == {"cold"}
        else:
            assert sources.count("recomputed") == report["rows_recomputed"]
            assert set(sources) <= {tier, "recomputed"}
    asked_tokens = flat(tokens["question"], "source")
    assert set(asked_tokens) == {"question"}
    assert QUESTION in tokens["question"]["text"]
    everything = [*told, tokens["question"]]
    prompt = answer["usage"]["prompt_tokens"]
    assert sum(len(flat(segment, "source")) for segment in everything) == prompt
    entries = sum(sum(flat(segment, "entries")) for segment in everything)
    assert abs(entries - sum(cache["kept_per_layer"]) * tokens["kv_heads"]) < 0.01
    for citation, segment in zip(answer["citations"], tokens["documents"], strict=True):
        assert citation["text"] in segment["text"]
    return answer


@pytest.mark.slow
def test_every_token_on_the_tier_that_held_it(serve: Serve, twelve: Documents) -> None:
    """Memory, SSD after a restart, partly cold, evicted; nothing unless it is asked for."""
    with serve() as service:
        service.ingest(twelve)
        answer = check(service)
        assert tiers(answer) == ["memory"] * 3
        evicted = check(service, eviction={"method": "streaming_llm", "budget": 64})
        segments = evicted["cache"]["tokens"]
        gone = [flat(segment, "entries").count(0) for segment in segments["documents"]]
        prompt = evicted["usage"]["prompt_tokens"]
        assert sum(gone) == round((1 - evicted["cache"]["coverage"]) * prompt) > 0
        assert service.ask(QUESTION, max_tokens=2)["cache"]["tokens"] is None
        full = check(service, known=False, fusion={"method": "vanilla"})
        assert tiers(full) == ["cold"] * 3
        service.until(lambda: service.wrote("ssd", len(twelve) + 1), "not everything is on disk")
        service.kill_nine()
        service.configure(memory_tier_mib=0)
        service.start()
        assert tiers(check(service)) == ["ssd"] * 3
        lost = next(iter(sorted(service.chunk_files())))
        lost.unlink()
        mixed = check(service, known=False, top_k=len(twelve))
        assert sorted(set(tiers(mixed)) | {mixed["cache"]["system"]["tier"]}) == ["cold", "ssd"]
