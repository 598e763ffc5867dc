"""`kvstitch ask`: streams an answer, then says where it came from and what it cost."""

from __future__ import annotations

import argparse
import json
from typing import Any

from service.cli.http import Refused, checked, client, events


def run(given: argparse.Namespace) -> int:
    fusion: dict[str, Any] = {"method": given.method}
    if given.ratio is not None:
        fusion["ratio"] = given.ratio
    body: dict[str, Any] = {"question": given.question, "fusion": fusion}
    for name, value in (
        ("top_k", given.top_k),
        ("documents", given.document),
        ("max_tokens", given.max_tokens),
    ):
        if value is not None:
            body[name] = value
    with client(given.url) as http:
        if given.json:
            result = checked(http.post("/v1/rag/generate", json=body))
            print(json.dumps(result, indent=2, ensure_ascii=False))
            return 0
        request = http.stream("POST", "/v1/rag/generate", json={**body, "stream": True})
        with request as response:
            for event, data in events(response):
                if event == "token":
                    print(data["text"], end="", flush=True)
                elif event == "done":
                    print("\n")
                    print(summary(data))
                    return 0
    raise Refused("the stream ended without a result")


def summary(result: dict[str, Any]) -> str:
    """Citations, then one line of facts."""
    tiers = {d["chunk_id"]: d for d in result["cache"]["documents"]}
    lines = []
    for cited in result["citations"]:
        segment = tiers.get(cited["chunk_id"], {"tier": "?", "rows_recomputed": 0, "tokens": 0})
        lines.append(
            f"[{cited['index']}] {cited['title'] or cited['doc_id']} "
            f"({cited['doc_id']}:{cited['char_start']}-{cited['char_end']}, "
            f"score {cited['score']:.2f}) {segment['tier']}, "
            f"{segment['rows_recomputed']}/{segment['tokens']} rows recomputed"
        )
    usage, timing = result["usage"], result["timing"]
    facts = [
        f"TTFT {1000 * timing['ttft_s']:.0f} ms",
        f"{usage['prompt_tokens_details']['cached_tokens']}/{usage['prompt_tokens']} prompt tokens "
        "from the cache",
        f"{usage['completion_tokens']} tokens",
        f"{result['fusion']['method']}",
        result["finish_reason"],
    ]
    if timing["tpot_s"] is not None:
        facts.insert(1, f"TPOT {1000 * timing['tpot_s']:.1f} ms")
    lines += ["", " · ".join(facts), *(f"warning: {text}" for text in result["warnings"])]
    return "\n".join(lines)
