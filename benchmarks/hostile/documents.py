"""A note beside a long document: when it is found, when it is answered from, and how soon the long
one is cancelled."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Any

import httpx

from benchmarks.hostile.phases import Place

WORDS = [
    *("harbour", "winter", "ledger", "engine", "valley", "copper", "signal", "garden", "bridge"),
    *("mirror", "timber", "orchard", "station", "captain", "meadow", "lantern", "quarry", "market"),
]
POLL_S = 0.1
GIVE_UP_S = 300.0
TARGETS = {"found_s": 5.0, "answered_s": 10.0, "cancelled_s": 2.0}


def book(size: int, source: random.Random) -> str:
    """About so many characters of sentences."""
    sentences, length = [], 0
    while length < size:
        sentence = " ".join(source.choices(WORDS, k=12)).capitalize() + f" {length}.\n"
        sentences.append(sentence)
        length += len(sentence)
    return "".join(sentences)


async def beside_a_long_one(where: Place, size: int, notes: int, seed: int) -> dict[str, Any]:
    """Hand in a text of so many bytes, and then notes, one after the other."""
    source = random.Random(seed)
    async with where.client(where.hostile) as other, where.client(where.readers[0]) as http:
        await _note(http, "warm", source)
        long = await _hand_in(other, "book", book(size, source))
        await asyncio.sleep(1.0)
        each = [await _note(http, f"note-{number}", source) for number in range(notes)]
        job = (await other.get(f"/admin/jobs/{long}")).json()
        began = time.perf_counter()
        (await other.delete(f"/admin/jobs/{long}")).raise_for_status()
        while (await other.get(f"/admin/jobs/{long}")).json()["steps"]:
            await asyncio.sleep(POLL_S)
        cancelled_s = time.perf_counter() - began
    return {
        "bytes": size,
        "the long one's state meanwhile": job["state"],
        "its steps": job["steps"],
        "found_s": [round(one["found_s"], 2) for one in each],
        "answered_s": [round(one["answered_s"], 2) for one in each],
        "median": {
            name: round(statistics.median(one[name] for one in each), 2)
            for name in ("found_s", "answered_s")
        },
        "cancelled_s": round(cancelled_s, 2),
        "targets": TARGETS,
    }


async def _note(http: httpx.AsyncClient, doc_id: str, source: random.Random) -> dict[str, float]:
    """Seconds from handing in a note until it is found, and until an answer cites it."""
    code = f"{source.choice(WORDS)}-{source.randrange(10**6)}"
    began = time.perf_counter()
    await _hand_in(http, doc_id, f"The code of the {doc_id} is {code}.")
    question = f"What is the code of the {doc_id}?"

    async def seen(path: str, **body: Any) -> float:
        while time.perf_counter() < began + GIVE_UP_S:
            reply = await http.post(path, json=body)
            if reply.status_code == 200 and f'"{doc_id}"' in reply.text:
                return time.perf_counter() - began
            await asyncio.sleep(POLL_S)
        raise TimeoutError(f"{path}: {doc_id} is not found after {GIVE_UP_S:g} s")

    found_s = await seen("/v1/search", query=question, top_k=3)
    answered_s = await seen("/v1/rag/generate", question=question, top_k=3, max_tokens=16)
    return {"found_s": found_s, "answered_s": answered_s}


async def _hand_in(http: httpx.AsyncClient, doc_id: str, text: str) -> str:
    reply = await http.post(
        "/admin/precompute", params={"doc_id": doc_id}, content=text.encode(),
        headers={"Content-Type": "text/plain"},
    )  # fmt: skip
    reply.raise_for_status()
    return str(reply.json()["job_id"])
