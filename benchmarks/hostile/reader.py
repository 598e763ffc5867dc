"""Others who read answers meanwhile, and what they see of it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field

import httpx

from loadtest.measurement.percentiles import percentile

QUESTION = "Tell a long story about a lighthouse, a storm and the people of the village."


@dataclass
class Seen:
    """What readers have seen.

    Attributes:
        ttft_s: Of each answer.
        tpot_s: Of each answer.
        failed: What was said instead of an answer.
    """

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, float | int]:
        return {
            "answers": len(self.tpot_s),
            "failed": len(self.failed),
            **{f"ttft_p{q}_ms": round(1e3 * percentile(self.ttft_s, q), 1) for q in (50, 95)},
            **{f"tpot_p{q}_ms": round(1e3 * percentile(self.tpot_s, q), 1) for q in (50, 95)},
        }


async def read(http: httpx.AsyncClient, seen: Seen, seed: int, tokens: int) -> None:
    """Read one streamed answer of so many tokens."""
    body = {
        "question": f"{seed}: {QUESTION}", "top_k": 0, "max_tokens": tokens, "ignore_eos": True,
        "temperature": 1.0, "seed": seed, "stream": True,
    }  # fmt: skip
    began, first = time.perf_counter(), 0.0
    async with http.stream("POST", "/v1/rag/generate", json=body) as reply:
        if reply.status_code != 200:
            seen.failed.append((await reply.aread()).decode()[:200])
            return
        event = ""
        async for line in reply.aiter_lines():
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: ") and event == "token" and not first:
                first = time.perf_counter()
            elif line.startswith("data: ") and event == "error":
                seen.failed.append(line[6:200])
                return
            elif line.startswith("data: ") and event == "done":
                count = json.loads(line[6:])["usage"]["completion_tokens"]
                seen.ttft_s.append(first - began)
                seen.tpot_s.append((time.perf_counter() - first) / (count - 1))


async def read_until(
    http: httpx.AsyncClient, ended: asyncio.Event, seen: Seen, *, seed: int, tokens: int, least: int
) -> None:
    """Read one answer after the other until something has ended, but so many at least."""
    number = 0
    while not ended.is_set() or number < least:
        await read(http, seen, seed + number, tokens)
        number += 1
