"""Time that the gateway adds to a request: total minus embedding, retrieval and the worker.

The real service with its demo model, in two processes, and one client that asks one question after
another on one connection. What remains is HTTP, validation, building the prompt, messages to the
worker and back, and detokenising; also the client itself, which is the standard library's. A sample
is one request.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

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
                for _ in client.precompute(documents):
                    pass
            with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as http:
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


def _ask(http: HTTPConnection, question: str) -> dict[str, Any]:
    body = json.dumps({"question": question, "max_tokens": ANSWER, "prefix_cache": False})
    started = time.perf_counter()
    http.request("POST", "/v1/rag/generate", body, {"Content-Type": "application/json"})
    reply = http.getresponse()
    answer = reply.read()
    total = time.perf_counter() - started
    if reply.status != 200:
        raise RuntimeError(f"{reply.status}: {answer.decode()}")
    stages = json.loads(answer)["stages"]
    known = sum(stages.get(name, 0.0) for name in NOT_GATEWAY)
    return {"total_s": total, "overhead_s": total - known, "stages": stages}
