"""What the gateway adds to a request: end to end over HTTP minus embed, retrieve and the worker.

The real service with its demo model, two processes, one client that asks one question after
another on one connection. Left in the figure: HTTP, validation, planning the prompt, the way to the
worker and back, detokenising. A sample is one request.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.speed.outcome import Figure, Outcome, at_most
from benchmarks.speed.setup import Setup
from demo.client import Client
from demo.corpus_files import read_documents, read_questions
from demo.process import free_port, service

NOT_GATEWAY = ("embed", "retrieve", "queue", "load", "prefill", "evict", "first_token", "decode")
WARM_UP = 3
ANSWER = 8


def run(setup: Setup) -> Outcome:
    documents = read_documents()[: setup.shape.documents]
    questions = [q.question for q in read_questions()]
    wanted = WARM_UP + setup.shape.questions
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        data_dir, port = Path(folder) / "data", free_port()
        data_dir.mkdir()
        url = f"http://127.0.0.1:{port}"
        with service(data_dir, port, Path(folder) / "service.log"):
            with Client(url) as client:
                for _ in client.progress(client.precompute(documents)):
                    pass
            with httpx.Client(base_url=url, timeout=60) as http:
                for turn in range(wanted):
                    rows.append(_ask(http, questions[turn % len(questions)]))
    timed = rows[WARM_UP:]
    return Outcome(
        [
            Figure(
                "gateway overhead per request at concurrency 1",
                [1000 * row["overhead_s"] for row in timed],
                at_most(5),
                "ms",
            )
        ],
        {"requests": timed},
    )


def _ask(http: httpx.Client, question: str) -> dict[str, Any]:
    started = time.perf_counter()
    reply = http.post("/v1/rag/generate", json={"question": question, "max_tokens": ANSWER})
    total = time.perf_counter() - started
    reply.raise_for_status()
    stages = reply.json()["stages"]
    known = sum(stages.get(name, 0.0) for name in NOT_GATEWAY)
    return {"total_s": total, "overhead_s": total - known, "stages": stages}
